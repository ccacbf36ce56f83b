"""Decides how a run's rows go through its models, and says why: packed, trimmed or as TRL does it."""

from __future__ import annotations

import torch

from rlhf_cli.packing.kernel_choice import heads_of_model, why_a_row_each
from rlhf_cli.packing.packable import why_not_packed
from rlhf_cli.packing.refused_packing import refused_packing
from rlhf_cli.packing.row_attention import register
from rlhf_cli.tables.pass_modes import Passes, PassSetting
from rlhf_cli.trainers.dropout import drops
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What accelerate's mixed precision computes attention in."""


def chosen_passes(trainer: TrlTrainer, setting: PassSetting) -> Passes:
    """Return the fastest way that a trainer's models can go, or the one that is asked for.

    Raises ModelError where `packed` is asked for and a model cannot.
    """
    if setting in ("trimmed", "plain"):
        return Passes(setting, "as asked")
    if trainer.aux_loss_enabled:
        found = Passes("plain", "the loss of the experts' balance counts padding")
    else:
        models = [trainer.model, *([trainer.ref_model] if trainer.ref_model is not None else [])]
        why = next(filter(None, (why_not_packed(trainer.accelerator.unwrap_model(model)) for model in models)), None)
        if why is None and drops(trainer.model):
            why = "it drops at random in training, each row for itself"
        if why is None and trainer.args.torch_compile:
            why = "it is compiled for rows of one shape"
        found = Passes("packed") if why is None else Passes("trimmed", why)
    if setting == "packed" and found.mode != "packed":
        raise refused_packing(found, where="trainer.passes")
    if found.mode == "packed":
        register()
    return found


def why_attention_a_row_each(trainer: TrlTrainer) -> str | None:
    """Return what keeps the policy's packed rows from attending all at once, in words; None where nothing does.

    It is read off the configuration, and asked again of what comes to each layer.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    dtype = _AUTOCAST.get(trainer.accelerator.mixed_precision, model.dtype)
    return why_a_row_each(heads_of_model(model, trainer.accelerator.device, dtype))
