"""Says whether a model's rows may be packed, from its configuration: its attention, and how it counts places."""

from __future__ import annotations

from peft import PeftModel
from transformers import PretrainedConfig, PreTrainedModel

from rlhf_cli.packing.row_attention import NAMES

_ROPE_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings that change with the longest place of a batch: a row's numbers would depend on its company."""


def has_relative_positions(config: PretrainedConfig) -> bool:
    """Return whether a row may be moved to the left without another result: rotary embeddings, as in nearly all
    models.
    """
    text = config.get_text_config()
    return bool(getattr(text, "rope_parameters", None) or getattr(text, "rope_theta", None))


def why_not_packed(model: PreTrainedModel | PeftModel) -> str | None:
    """Return what keeps a model's rows from being packed, in words; None where nothing does.

    What a configuration cannot say (a model that does not hand arguments down to its attention) is found out by trying.
    """
    if isinstance(model, PeftModel):
        if any(adapter.is_prompt_learning for adapter in model.peft_config.values()):
            return "virtual tokens stand before every prompt"
        model = model.get_base_model()  # type: ignore[assignment]
    config = model.config
    text = config.get_text_config()
    if text is not config:
        return "it reads more than text"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention is not one of transformers' attention functions"
    if config._attn_implementation not in NAMES:
        return f"its attention is {config._attn_implementation}; packed are {', '.join(NAMES)}"
    if not has_relative_positions(config):
        return "its positions are learned, not rotary"
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in _ROPE_BY_LENGTH:
        return f"its rotary embeddings ({rope['rope_type']}) change with the longest row"
    layers = set(getattr(text, "layer_types", None) or ())
    if layers - {"full_attention"}:
        return f"it has layers of {' and '.join(sorted(layers - {'full_attention'}))}"
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        return f"its attention has a sliding window of {text.sliding_window} tokens"
    return None
