"""Decide from a model's configuration whether its rows can be packed, and whether a row may be moved."""

from __future__ import annotations

from peft import PeftModel
from transformers import PretrainedConfig, PreTrainedModel

from rlhf_cli.tables.passes import READ, is_rotary, why_values_not_packed


def has_relative_positions(config: PretrainedConfig) -> bool:
    """Return whether a row may be moved left with the same result: rotary embeddings, as in nearly all models."""
    text = config.get_text_config()
    return is_rotary({name: getattr(text, name) for name in READ if hasattr(text, name)})


def why_not_packed(model: PreTrainedModel | PeftModel) -> str | None:
    """Return why a model's rows cannot be packed, in words; None if they can.

    A trial detects what a configuration cannot express: a model that does not pass arguments on to its attention.
    """
    if isinstance(model, PeftModel):
        if model.active_peft_config.is_prompt_learning:
            return "virtual tokens stand before every prompt"
        model = model.get_base_model()  # type: ignore[assignment]
    config = model.config
    text = config.get_text_config()
    if text is not config:
        return "it reads more than text"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention is not one of transformers' attention functions"
    values = {name: getattr(text, name) for name in READ if hasattr(text, name)}
    return why_values_not_packed(values, str(config._attn_implementation))
