"""Write the batch at which a training stopped to a readable JSON file: texts, rewards, advantages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlhf_cli.redaction import redacted_tree
from rlhf_cli.trainers.trl_protocol import TrlBatch

AsText = Callable[[Sequence[int]], str]

_PER_TOKEN = ("advantages", "returns", "rollout_values", "old_per_token_logps", "ref_per_token_logps")
_NO_LABEL = -100
"""The label that torch's losses ignore, which transformers uses instead of ids."""


def write_batch(
    file: Path,
    heading: Mapping[str, object],
    window: Sequence[tuple[TrlBatch, Tensor]],
    logs: TrlBatch,
    as_text: AsText,
) -> Path:
    """Write heading, the micro-batches of one optimizer step with their losses, and TRL's table of the round.

    window: (tensors by name, loss) per micro-batch. logs: TRL's `_logs` if the trainer generates, else empty. Values
    that are not finite become the texts "nan" or "inf", because JSON has no such numbers. Return the file.
    """
    content = {
        **heading,
        "micro_batches": [{"loss": loss.item(), "rows": _rows(inputs, as_text)} for inputs, loss in window],
        "round": _round(logs),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps(redacted_tree(_plain(content), values_only=True), indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
    return file


def _rows(inputs: object, as_text: AsText) -> list[dict[str, object]]:
    """Return the rows of a micro-batch: ids decoded to text, numbers per row and per token unchanged."""
    if not isinstance(inputs, Mapping):
        return []
    rows: list[dict[str, object]] = []
    for name, tensor in inputs.items():
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            continue
        if tensor.ndim == 2 and name.endswith("ids") and not tensor.is_floating_point():
            mask = inputs.get(
                name.removesuffix("ids") + "mask", inputs.get(name.replace("input_ids", "attention_mask"))
            )
            known = mask.bool() if isinstance(mask, Tensor) and mask.shape == tensor.shape else tensor != _NO_LABEL
            values: list[object] = [
                as_text(ids[is_known].tolist()) for ids, is_known in zip(tensor, known, strict=True)
            ]
            name = name.removesuffix("_ids")
        elif tensor.ndim == 1 or name in _PER_TOKEN:
            values = tensor.tolist()
        else:
            continue
        rows += [{} for _ in range(len(values) - len(rows))]
        for row, value in zip(rows, values, strict=False):
            row[name] = value
    return rows


def _round(logs: TrlBatch) -> list[dict[str, object]]:
    """Return the rows of the newest round of all ranks: prompt, completion, rewards by name, advantage."""
    columns: dict[str, Iterable[object]] = {
        "prompt": logs.get("prompt", ()),
        "completion": logs.get("completion", ()),
        **{f"rewards/{name}": values for name, values in logs.get("rewards", {}).items()},
        "advantage": logs.get("advantages", ()),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Tensor):
        return _plain(value.detach().to(torch.float64).tolist())
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
