"""Stacks that are closed after the test, and runs on completions that are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rewards.stack.given_completions import LIMIT, REWARDS, ROWS, Seen
from tests.support.reward_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """One reward on four rows."""
    made = Bench()
    yield made
    for stack in made.stacks:
        stack.close()


@pytest.fixture
def group(train, workplace: Path, says, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """`group(*overrides)`: one step on one group of ROWS, or of the completions given."""
    from rlhf_cli.trainers.reward_mixin import RewardMixin  # here, for most tests of this room do without TRL

    (workplace / "mine.py").write_text(REWARDS)
    seen = Seen()
    generate_and_score = RewardMixin._generate_and_score_completions

    def spied(self: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = generate_and_score(self, inputs)
        seen.outputs.append(dict(output))
        return output

    monkeypatch.setattr(RewardMixin, "_generate_and_score_completions", spied)

    def run(
        *overrides: str,
        rows: tuple[list[int], ...] = ROWS,
        rewards: tuple[str, ...] = ("++rewards.score={fn: './mine.py:score'}",),
        name: str = "one",
    ) -> Seen:
        says(*rows)
        seen.outputs = []
        sizes = {"per_device_train_batch_size": 4, "max_completion_length": LIMIT, "max_steps": 1}
        words = ["~rewards.correct", "~rewards.format", "~rewards.brevity", *rewards]
        words += [f"trainer.args.{key}={value}" for key, value in sizes.items()]
        code, seen.folder = train(*words, *overrides, name=name)
        assert code == 0
        return seen

    return run
