"""Choose how a run's rows go through its models and why: packed, trimmed or as in TRL."""

from __future__ import annotations

from typing import cast

from torch import nn
from transformers import PreTrainedModel

from rlhf_cli.packing.packable import why_not_packed
from rlhf_cli.packing.refused_packing import refused_packing
from rlhf_cli.packing.row_attention import register
from rlhf_cli.tables.pass_modes import Passes, PassSetting
from rlhf_cli.trainers.dropout import drops
from rlhf_cli.trainers.trl_protocol import TrlTrainer


def chosen_passes(trainer: TrlTrainer, setting: PassSetting, critic_body: nn.Module | None = None) -> Passes:
    """Return the fastest way that all of a trainer's models support, or the requested one.

    Raise ModelError if `packed` is requested and a model does not support it.
    """
    if setting in ("trimmed", "plain"):
        return Passes(setting, "as asked")
    if trainer.aux_loss_enabled:
        found = Passes("plain", "the loss of the experts' balance counts padding")
    else:
        why = _why_not(trainer.accelerator.unwrap_model(trainer.model), is_trained=True)
        if why is None and trainer.ref_model is not None:
            why = _why_not(trainer.accelerator.unwrap_model(trainer.ref_model), is_trained=False)
        if why is None and critic_body is not None and (of_critic := _why_not(critic_body, is_trained=True)):
            why = f"the critic: {of_critic}"
        if why is None and trainer.args.torch_compile:
            why = "it is compiled for rows of one shape"
        found = Passes("packed") if why is None else Passes("trimmed", why)
    if setting == "packed" and found.mode != "packed":
        raise refused_packing(found, where="trainer.passes")
    if found.mode == "packed":
        register()
    return found


def _why_not(model: nn.Module, *, is_trained: bool) -> str | None:
    why = why_not_packed(cast(PreTrainedModel, model))
    if why is None and is_trained and drops(model):
        return "it drops at random in training, each row for itself"
    return why
