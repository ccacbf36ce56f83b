"""What is said of the way in which packed rows attend, where a run starts and in its provenance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.launch.verify_launch import said_of, ways_of
from rlhf_cli.tables.modes import Passes, RowAttention


def trainer_on(device: str, why: str | None, mode: Any = "packed") -> Any:
    return SimpleNamespace(
        extensions=SimpleNamespace(rewards=SimpleNamespace(passes="auto")),
        accelerator=SimpleNamespace(device=SimpleNamespace(type=device)),
        passes=Passes(mode),
        row_attention=RowAttention(why) if mode == "packed" else None,
        generation_mode=SimpleNamespace(name="live", why="fast"),
    )


@pytest.mark.parametrize(
    ("device", "why", "lines"),
    [
        ("cuda", None, []),
        ("cuda", "it is computed in float32", ["a row each (SDPA): it is computed in float32"]),
        ("cpu", "the device is cpu", []),
    ],
)
def test_a_gpu_that_could_be_faster_is_told_of(device: str, why: str | None, lines: list[str]) -> None:
    said = said_of(trainer_on(device, why))
    assert said == [f"note: packed rows attend {line} (docs/passes.md)" for line in lines]


def test_the_provenance_says_how_packed_rows_attend() -> None:
    assert ways_of(trainer_on("cuda", None))["attention"] == "all rows at once (torch's varlen_attn)"
    assert ways_of(trainer_on("cpu", "the device is cpu"))["attention"] == "a row each (SDPA): the device is cpu"
    assert "attention" not in ways_of(trainer_on("cuda", None, mode="trimmed"))
