"""Says by the values of a model's configuration whether its rows may be packed: the part of that question that needs no
model, for the plan of a run and for the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping

ATTENTIONS = ("sdpa",)
"""The attention functions of transformers that can be called on each segment of a flat batch."""
_ROPE_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings that change with the longest place of a batch: a row's numbers would depend on its company."""

READ = ("rope_parameters", "rope_theta", "rope_scaling", "layer_types", "sliding_window", "use_sliding_window")
"""The keys of a configuration that are looked at."""

_ROTARY: dict[str, object] = {"rope_theta": 10000.0}
WHERE_NOT_SAID: dict[str, Mapping[str, object]] = {
    "llama": _ROTARY,
    "mistral": _ROTARY | {"sliding_window": 4096},
    "qwen2": _ROTARY | {"use_sliding_window": False},
    "qwen3": _ROTARY | {"use_sliding_window": False},
    "smollm3": _ROTARY | {"use_sliding_window": False},
    "gpt2": {},
}
"""`model_type` -> what transformers takes for a key that its config.json leaves out, as far as it is read here."""


def is_rotary(values: Mapping[str, object]) -> bool:
    """Return whether places are counted by rotary embeddings, so that a row may be moved without another result."""
    return bool(values.get("rope_parameters") or values.get("rope_theta"))


def why_values_not_packed(values: Mapping[str, object], attention: str) -> str | None:
    """Return what in a language model's configuration keeps its rows from being packed; None where nothing does.

    `attention` is the name of its attention function. Keys that a config.json may leave out are those of
    WHERE_NOT_SAID.
    """
    if attention not in ATTENTIONS:
        return f"its attention is {attention}; packed are {', '.join(ATTENTIONS)}"
    if not is_rotary(values):
        return "its positions are learned, not rotary"
    rope = values.get("rope_parameters") or values.get("rope_scaling")  # its name before transformers 5
    if isinstance(rope, Mapping):
        kind = rope.get("rope_type") or rope.get("type")
        if kind in _ROPE_BY_LENGTH:
            return f"its rotary embeddings ({kind}) change with the longest row"
    layers = values.get("layer_types")
    others = {str(kind) for kind in layers if kind != "full_attention"} if isinstance(layers, list | tuple) else set()
    if others:
        return f"it has layers of {' and '.join(sorted(others))}"
    window = values.get("sliding_window")
    if window and values.get("use_sliding_window", True):
        return f"its attention has a sliding window of {window} tokens"
    return None


def why_config_not_packed(config: Mapping[str, object], attention: str) -> str | None:
    """Return the same of what stands in a config.json.

    Raises KeyError for a `model_type` of which it is not known what stands for a key that is left out.
    """
    return why_values_not_packed({**WHERE_NOT_SAID[str(config.get("model_type"))], **config}, attention)
