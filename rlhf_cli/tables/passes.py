"""List the ways in which rows go through models, and which models may be packed by their configuration's values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlhf_cli.errors import ModelError

GenerationSetting = Literal["auto", "plain"]
"""`auto`: drop finished rows from the batch where possible. `plain`: use transformers' own loop."""

PassMode = Literal["packed", "trimmed", "plain"]
"""`packed`: the tokens of a micro-batch in one flat row, with each prompt once. `trimmed`: rows sorted by length,
without columns that are all padding. `plain`: as in TRL.
"""

READS_IMAGES = "the model reads images"
"""Why the speed paths are off for a vision-language model: rows go through it, and it generates, as in TRL."""

PassSetting = Literal["auto", "packed", "trimmed", "plain"]  # `auto` is the first of these modes that a model supports


@dataclass(frozen=True)
class Passes:
    """How rows go through models, and why not in a faster mode (None if this is the fastest)."""

    mode: PassMode
    why: str | None = None

    def describe(self) -> str:
        """Return `packed`, or `trimmed: its attention has a sliding window of 4096 tokens`."""
        return self.mode if self.why is None else f"{self.mode}: {self.why}"


ALL_ROWS_AT_ONCE = "all rows at once (torch's varlen_attn)"  # how packed rows attend on a GPU, if it has the kernel

ATTENTIONS = ("sdpa",)  # the attention functions of transformers that can be called on each segment of a flat batch
_ROPE_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings that depend on the longest position in a batch: a row's result would depend on the other rows."""

READ = ("rope_parameters", "rope_theta", "rope_scaling", "layer_types", "sliding_window", "use_sliding_window")
"""The configuration keys that are used."""

_ROTARY: dict[str, object] = {"rope_theta": 10000.0}
DEFAULTS_IF_OMITTED: dict[str, Mapping[str, object]] = {
    "llama": _ROTARY,
    "mistral": _ROTARY | {"sliding_window": 4096},
    "qwen2": _ROTARY | {"use_sliding_window": False},
    "qwen3": _ROTARY | {"use_sliding_window": False},
    "smollm3": _ROTARY | {"use_sliding_window": False},
    "gpt2": {},
}
"""`model_type` -> transformers' defaults for the keys read here that a config.json may omit."""


def is_rotary(values: Mapping[str, object]) -> bool:
    """Return whether positions are rotary, so that shifting a row does not change its result."""
    return bool(values.get("rope_parameters") or values.get("rope_theta"))


def why_values_not_packed(values: Mapping[str, object], attention: str) -> str | None:
    """Return what in a language model's configuration, or its `attention` function, prevents packing; None if none."""
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
    """Return the same for a config.json. Raise KeyError for a `model_type` whose defaults are unknown."""
    return why_values_not_packed({**DEFAULTS_IF_OMITTED[str(config.get("model_type"))], **config}, attention)


def refused_packing(passes: Passes, *, where: str) -> ModelError:
    """Return the error for `trainer.passes=packed`, given the supported passes and `where` the key was set."""
    got, expected = f"packed, but {passes.why}", "auto, the fastest mode that works"
    return ModelError("rows cannot be packed", where=where, got=got, expected=expected, hint="trainer.passes=auto")
