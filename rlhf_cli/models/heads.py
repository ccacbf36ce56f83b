"""Find the head modules of a sequence classifier by the names its architecture uses."""

from __future__ import annotations

import torch
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from rlhf_cli.errors import ModelError


def head_names(path: str, *, revision: str | None = None, trust_remote_code: bool = False) -> list[str]:
    """Return the head modules: `["score"]` for Llama, Qwen and most others, `["classifier"]` for BERT, and DeBERTa's
    pooler.

    They are newly initialised when a language model becomes a reward model, so they are trained fully and saved with an
    adapter. Build the model without weights. Raise ModelError if the architecture has no classifier.
    """
    try:
        config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code, num_labels=1)
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(
            "no reward model can be made of this model",
            where="model.path",
            got=f"{path}: {error!s:.300}",
            expected="an architecture that transformers has a ...ForSequenceClassification of",
        ) from error
    return [
        name
        for name, module in model.named_children()
        if name != model.base_model_prefix and any(True for _ in module.parameters())
    ]


def restore_head_dtype(model: nn.Module) -> None:
    """Restore the dtype of the heads that are trained beside an adapter.

    On quantised weights TRL casts all trained parameters to bfloat16. An adapter layer converts its input, but a head
    does not, so it fails on the first batch if the backbone computes in float32.
    """
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            dtype = next(module.original_module.parameters()).dtype
            for trained in module.modules_to_save.values():
                trained.to(dtype)
