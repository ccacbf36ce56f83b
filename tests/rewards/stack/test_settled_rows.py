"""Rows settled without a training: by hand, and as a training settles rows that have nothing to do with one another."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest
import torch

from rlhf_cli.errors import RewardFailed
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.rewards.stack.aggregating import aggregated
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import SettleRules, settle
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow, settled_rows
from tests.support.settled_columns import NAN, column

NOTHING = ScoredReward(None, None, None)


def component(name: str, **rules: object) -> Component:
    return Component(name=name, score=lambda **_: [], **rules)  # type: ignore[arg-type]


def settled(
    raw: list[list[float | None]],
    *components: Component,
    fixed: list[list[float | None]] | None = None,
    weights: list[float] | None = None,
    aggregate: Any = "sum",
    running: dict[str, RunningDeviation] | None = None,
) -> Any:
    return settled_rows(
        components,
        raw,
        fixed or [[None] * len(components) for _ in raw],
        weights or [1.0] * len(components),
        aggregate=aggregate,
        running=running or {},
    )


def test_by_hand() -> None:
    """b takes 1 off and clips at 2. In the second row its gate gives it 0.5 instead; in the third nothing applies."""
    components = [component("a"), component("b", offset=1.0, clip=(-2.0, 2.0))]
    raw = [[0.5, 4.0], [1.0, None], [None, None]]
    found = settled(raw, *components, fixed=[[None, None], [None, 0.5], [None, None]], weights=[2.0, 0.25])
    assert found.no_total is None
    assert found.rows == [
        ScoredRow(2 * 0.5 + 0.25 * 2, {"a": ScoredReward(0.5, 0.5, 1.0), "b": ScoredReward(4.0, 2.0, 0.5)}),
        ScoredRow(2 * 1 + 0.25 * 0.5, {"a": ScoredReward(1.0, 1.0, 2.0), "b": ScoredReward(None, 0.5, 0.125)}),
        ScoredRow(None, {"a": NOTHING, "b": NOTHING}),
    ]
    assert settled([[], []]).rows == [ScoredRow(None, {}), ScoredRow(None, {})]


class TestAggregate:
    def test_the_example_of_the_documentation(self) -> None:
        """The least of 1 * 2 and 0.5 * 3, of 4 * 1 alone, and of -1 and a closed gate's 0."""
        page = Path(__file__).parents[3].joinpath("docs", "how-to", "rewards.md").read_text()
        (code,) = re.findall(r"```python\n(def weakest.*?)```", page, re.DOTALL)
        names: dict[str, Any] = {}
        exec(code, names)
        found = settled(
            [[2.0, 3.0], [4.0, None], [-1.0, None]],
            *(component("a"), component("b")),
            fixed=[[None, None], [None, None], [None, 0.0]],
            weights=[1.0, 0.5],
            aggregate=names["weakest"],
        )
        assert [row.total for row in found.rows] == [1.5, 4.0, -1.0]

    def test_no_rows_have_no_totals_and_the_error_of_a_function_that_got_none_explains_none(self) -> None:
        assert aggregated(lambda **_: 1 / 0, ["a"], numpy.empty((0, 1)), [1.0]).shape == (0,)
        assert aggregated(lambda **_: [1, 2], ["a"], numpy.ones((2, 1)), [1.0]).dtype == numpy.float64
        for given, is_explained in (2.0, False), (None, True):
            with pytest.raises(RewardFailed) as caught:
                settled([[1.0, given]], component("a"), component("b"), aggregate=lambda rewards, weights: 1 / 0)
            assert (caught.value.advice is not None) == is_explained


class TestWhatNoRowHasAlone:
    @pytest.mark.parametrize("normalize", ["group", "batch", "running"])
    def test_a_deviation_of_other_rows(self, normalize: str) -> None:
        """Gated to 0.25 the second row has a value, and no total all the same, or only gated rows would have one."""
        found = settled(
            [[1.0, 4.0], [3.0, None], [5.0, 6.0]],
            *(component("a"), component("b", normalize=normalize)),
            fixed=[[None, None], [None, 0.25], [None, None]],
        )
        assert [row.total for row in found.rows] == [None] * 3
        assert f"rewards.b.normalize={normalize} divides by the deviation of" in str(found.no_total)
        of_b = [row.rewards["b"] for row in found.rows]
        assert of_b == [ScoredReward(4.0, None, None), ScoredReward(None, 0.25, 0.25), ScoredReward(6.0, None, None)]
        assert [row.rewards["a"].weighted for row in found.rows] == [1.0, 3.0, 5.0]

    def test_a_reward_that_only_watches_takes_no_total_away(self) -> None:
        found = settled([[2.0, 9.0]], component("a"), component("w", weight=0.0, normalize="group"), weights=[1.0, 0.0])
        assert (found.no_total, found.rows[0].total, found.rows[0].rewards["w"].raw) == (None, 2.0, 9.0)

    def test_the_running_deviation_of_a_training_is_had(self) -> None:
        """Of 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9, deviation sqrt(14 / 3). The rows do not change it."""
        running = {"a": RunningDeviation().updated(column(1, 2, 3, NAN, 6).numpy())}
        found = settled([[70.0], [7.0]], component("a", normalize="running"), weights=[2.0], running=running)
        divisor = (14 / 3) ** 0.5
        assert found.no_total is None
        assert [row.total for row in found.rows] == pytest.approx([2 * 70 / divisor, 2 * 7 / divisor], rel=1e-12)


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
    """Up to four components with rules at random, some only watching, and rows of scores, failures and closed gates."""
    random, components = Random(seed), []
    weights = [random.choice([random.gauss(0, 1), random.gauss(0, 1), 0.0]) for _ in range(random.randint(1, 4))]
    for index, weight in enumerate(weights):
        low = random.uniform(-2, 0)
        rules: dict[str, Any] = {"weight": weight, "offset": random.choice([0.0, random.uniform(-1, 1)])}
        rules["clip"] = random.choice([None, (low, low + random.uniform(0, 3))])
        components.append(component(f"r{index}", **rules, normalize=random.choice(["none", "none", "running"])))
    num_rows = random.randint(1, 6)

    def matrix(share: float) -> list[list[float | None]]:
        return [[random.gauss(0, 2) if random.random() < share else None for _ in components] for _ in range(num_rows)]

    running = {one.name: RunningDeviation(10.0, 0.0, random.choice([0.0, 40.0])) for one in components}
    return components, matrix(0.7), matrix(0.2), weights, running


def with_gaps(numbers: Iterable[float | None]) -> list[float]:
    return [NAN if number is None else number for number in numbers]


@pytest.mark.parametrize("aggregate", ["sum", product])
def test_as_in_training(aggregate: Any) -> None:
    """Groups of one row, nothing filled in: there every number of the two has to be the other's."""
    seen = 0
    for seed in range(60):
        components, raw, fixed, weights, running = drawn(seed)
        ours = settled_rows(components, raw, fixed, weights, aggregate=aggregate, running=running)
        theirs, _ = settle(
            torch.tensor([*map(with_gaps, raw)], dtype=torch.float64),
            torch.tensor([*map(with_gaps, fixed)], dtype=torch.float64),
            torch.tensor(weights, dtype=torch.float64),
            SettleRules(components, aggregate, 1, fill="zero"),
            dict(running),
            is_training=False,
        )
        assert ours.no_total is None
        for row, settled in enumerate(ours.rows):
            found = with_gaps([settled.total, *(reward.effective for reward in settled.rewards.values())])
            expected = [theirs.totals[row].item(), *theirs.unfilled[row].tolist()]
            assert found == pytest.approx(expected, abs=1e-12, nan_ok=True), seed
            seen += sum(value == value for value in expected[1:])
    assert seen > 200


def test_no_torch_comes_with_it() -> None:
    seen = "print(*{'torch', 'transformers', 'pandas'} & {*sys.modules})"
    code = f"import sys, rlhf_cli.evaluation.score_completions; {seen}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
