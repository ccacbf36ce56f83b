"""Decide whether a model's rows may be packed, from its configuration and implementation."""

from __future__ import annotations

from peft import PeftModel
from transformers import PretrainedConfig, PreTrainedModel

from rlhf_cli.tables.packable_models import READ, is_rotary, why_values_not_packed


def has_relative_positions(config: PretrainedConfig) -> bool:
    """Return whether a row may be moved left with the same result: rotary embeddings, as in nearly all models."""
    return is_rotary(_values(config.get_text_config()))


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
    return why_values_not_packed(_values(text), str(config._attn_implementation))


def _values(text: PretrainedConfig) -> dict[str, object]:
    return {name: getattr(text, name) for name in READ if hasattr(text, name)}
