"""Merge an adapter into its base and write whole weights as safetensors.

The sum W + s B A is computed in float32 and rounded once, to the dtype in which the base is stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTuner
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rlhf_cli.errors import ModelError
from rlhf_cli.models.gguf import model_folder
from rlhf_cli.models.model_folders import loaders_of
from rlhf_cli.models.scalar_heads import load_reward_model
from rlhf_cli.project.source_model import SourceModel


def write_merged_weights(source: SourceModel, base: str, folder: Path) -> None:
    """Write an adapter merged into its base as config.json and safetensors. Raise ModelError."""
    transformers_logging.disable_progress_bar()
    try:
        dtype = _stored_dtype(base, trust_remote_code=source.trust_remote_code)
        model = merged(source)
        nn.Module.to(model, dtype)
        model.save_pretrained(str(folder))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        got, expected = f"{type(error).__name__}: {error!s:.400}", f"the adapter as saved, and its base {base}"
        what = f"this {source.kind} cannot be loaded"
        raise ModelError(what, where=str(source.folder), got=got, expected=expected) from error


def merged(source: SourceModel) -> PreTrainedModel:
    """Return an adapter merged into its base, in float32."""
    path, trusted = str(source.folder), source.trust_remote_code
    if source.kind == "reward model":
        loaded = load_reward_model(path, dtype="float32", trust_remote_code=trusted).model
    else:
        loaded = loaders_of(path, trust_remote_code=trusted)[1](path, dtype=torch.float32, trust_remote_code=trusted)
    assert isinstance(loaded, PeftModel)
    tuner = loaded.base_model
    assert isinstance(tuner, BaseTuner)
    model = cast(PreTrainedModel, tuner.merge_and_unload(safe_merge=True))
    model.eval()
    return model


def _stored_dtype(base: str, *, trust_remote_code: bool) -> torch.dtype:
    """Return the dtype in which the base's weights are stored. Raise ModelError if they are quantised or missing."""
    folder = Path(str(model_folder(base, where=base))).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or base.startswith(".")):
        advice = "put it back, or set base_model_name_or_path in adapter_config.json to its new place"
        expected = "the folder that the adapter was trained on"
        raise ModelError("the base model of this adapter is missing", where=base, expected=expected, advice=advice)
    config = AutoConfig.from_pretrained(folder if folder.is_dir() else base, trust_remote_code=trust_remote_code)
    if quantized := getattr(config, "quantization_config", None):
        raise ModelError(
            "an adapter cannot be merged into a quantised base: rounding would lose what it learnt",
            where=base,
            got=f"quantization_config: {quantized}",
            expected="an adapter on weights in float32, bfloat16 or float16",
            advice="publish the adapter as it is, RUN/model: transformers and vLLM load it on its base",
        )
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
