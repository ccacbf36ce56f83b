"""Rows settled without torch get what a training's settling gives rows that have nothing to do with one another."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import Any

import pytest
import torch

from rlhf_cli.numerics.reward_columns import RunningDeviation
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import settle
from rlhf_cli.rewards.stack.scored_rows import settled_rows

NAN = float("nan")


def product(rewards: dict[str, list[float | None]], weights: dict[str, float]) -> list[float | None]:
    """The product of what applies, None above 20: the weights take no part."""
    totals: list[float | None] = []
    for row in zip(*rewards.values(), strict=True):
        made = 1.0
        for value in row:
            made *= 1.0 if value is None else value
        totals.append(None if made > 20 else made)
    return totals


def drawn(seed: int) -> tuple[list[Component], list[Any], list[Any], list[float], dict[str, RunningDeviation]]:
    """Up to four components with rules at random, and rows of scores, failures and closed gates."""
    random = Random(seed)
    components = []
    for index in range(random.randint(1, 4)):
        low = random.uniform(-2, 0)
        components.append(
            Component(
                name=f"r{index}",
                score=lambda **_: [],
                offset=random.choice([0.0, random.uniform(-1, 1)]),
                clip=random.choice([None, (low, low + random.uniform(0, 3))]),
                normalize=random.choice(["none", "none", "running"]),
            )
        )
    num_rows = random.randint(1, 6)

    def matrix(share: float) -> list[list[float | None]]:
        return [[random.gauss(0, 2) if random.random() < share else None for _ in components] for _ in range(num_rows)]

    running = {one.name: RunningDeviation(10.0, 0.0, random.choice([0.0, 40.0])) for one in components}
    return components, matrix(0.7), matrix(0.2), [random.gauss(0, 1) for _ in components], running


def tensor(matrix: list[list[float | None]]) -> torch.Tensor:
    return torch.tensor([[NAN if x is None else x for x in row] for row in matrix], dtype=torch.float64)


def plain(value: float) -> float | None:
    return None if value != value else value


@pytest.mark.parametrize("aggregate", ["sum", product])
def test_as_in_training(aggregate: Any) -> None:
    """Groups of one row, nothing filled in: there every number of the two has to be the other's."""
    seen = 0
    for seed in range(60):
        components, raw, fixed, weights, running = drawn(seed)
        ours = settled_rows(components, raw, fixed, weights, aggregate=aggregate, running=running)
        theirs, _ = settle(
            tensor(raw),
            tensor(fixed),
            torch.tensor(weights, dtype=torch.float64),
            components,
            dict(running),
            names=[one.name for one in components],
            aggregate=aggregate,
            num_generations=1,
            is_training=False,
            fill="zero",
        )
        assert ours.no_total is None
        for row, settled in enumerate(ours.rows):
            expected = plain(theirs.totals[row].item())
            assert settled.total == (None if expected is None else pytest.approx(expected, abs=1e-12)), seed
            for index, reward in enumerate(settled.rewards.values()):
                value = plain(theirs.unfilled[row, index].item())
                assert reward.effective == (None if value is None else pytest.approx(value, abs=1e-12)), seed
                seen += value is not None
    assert seen > 200


def test_no_torch_comes_with_it() -> None:
    seen = "print(*{'torch', 'transformers', 'pandas'} & {*sys.modules})"
    code = f"import sys, rlhf_cli.evaluation.score_completions; {seen}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
