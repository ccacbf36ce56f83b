"""What a model reads while rows are decoded."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from rlhf_cli.models.live_generation import LiveBatch


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(Rows, tokens) that live generation gives a model to read: the prompts, then one token at a time."""
    shapes: list[tuple[int, int]] = []
    whole = LiveBatch._read

    def reading(batch: LiveBatch, ready: dict[str, Any]) -> Tensor:
        rows, tokens = ready["input_ids"].shape
        shapes.append((rows, tokens))
        return whole(batch, ready)

    monkeypatch.setattr(LiveBatch, "_read", reading)
    return shapes
