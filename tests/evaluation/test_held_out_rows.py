"""Rows of an evaluation: what a training dropped is dropped here, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.errors import ConfigError
from rlhf_cli.evaluation.held_out_rows import load_held_out
from rlhf_cli.plan.prepare import prepare

PAIRS = [("good", "bad"), ("same", "same"), ("fine", "poor"), ("", "empty")]


@pytest.fixture
def words(place: Path) -> list[str]:
    rows = [{"prompt": f"{number}?", "chosen": a, "rejected": b} for number, (a, b) in enumerate(PAIRS)]
    (place / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["trainer=reward", "model=tiny", "data=file", "data.path=pairs.jsonl"]


def test_pairs_that_training_dropped_are_not_evaluated(words: list[str]) -> None:
    """Of four pairs one has equal answers and one an empty one."""
    experiment = prepare([*words, "reward_model.on_bad_pair=drop"]).experiment
    found = load_held_out(experiment, needs="prompt", limit=None, or_training=True)
    assert [row["prompt"] for row in found.rows] == ["0?", "2?"]
    assert found.trained_on is None
    (warning,) = found.warnings
    assert "TRAINING" in warning
    # Negative control: where training refused such pairs there are none to drop.
    kept = load_held_out(prepare(words).experiment, needs="prompt", limit=None, or_training=True)
    assert len(kept.rows) == 4


def test_without_held_out_rows_the_key_is_named(words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_held_out(prepare(words).experiment, needs="prompt", limit=None, or_training=False)
    assert caught.value.where == "data.eval"
