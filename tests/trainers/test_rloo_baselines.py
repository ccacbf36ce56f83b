"""RLOO in training where rewards do not apply to every row: its advantages by loops, with KL, clipping, normalising."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch import Tensor
from trl import RLOOTrainer

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.reward_mixin import RewardMixin
from tests.support.tolerances import ARITHMETIC

GROUP = 4
A = [1.0, 0.0, 3.0, -2.0, 0.5, 0.5, 1.0, 7.0]
B = [0.5, None, 0.1, None, None, 2.0, None, None]
C = [None, 4.0, 2.0, 9.0, 1.0, 2.0, 3.0, 4.0]
WEIGHTS = {"a": 1.0, "b": 2.0, "c": -0.5}
"""Two groups of four. b applies to two rows and to one, c to three and to all."""
SOURCE = f"""
def a(completions, **kwargs):
    return {A}

def b(completions, **kwargs):
    return {B}

def c(completions, **kwargs):
    return {C}

def whole(completions, **kwargs):
    return {C[-4:] * 2}
"""
DROP = ("~rewards.correct", "~rewards.format", "~rewards.brevity", "trainer=rloo", "trainer.passes=plain")
EXCLUDING = [
    f"+rewards.{name}={{fn: './mine.py:{name}', weight: {weight}, trial: false}}" for name, weight in WEIGHTS.items()
]


class Round(NamedTuple):
    """What a round of generating came to: given advantages, each row's KL, the rows' totals; of eight rows."""

    advantages: list[float]
    kl: list[float]
    totals: list[float]


@pytest.fixture
def rounds(train, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Round], RunFolder]]:
    """`rounds(*overrides)` runs three steps of RLOO, each on eight new rows, and returns what they were given."""
    (workplace / "mine.py").write_text(SOURCE)
    found: list[Round] = []
    logps: list[Tensor] = []
    forward = RLOOTrainer._get_per_token_logps_and_entropies
    scored = RewardMixin._generate_and_score_completions

    def remember(self: Any, *args: Any, **named: Any) -> Any:
        output = forward(self, *args, **named)
        logps.append(output[0])
        return output

    def watch(self: Any, inputs: Any) -> Any:
        logps.clear()
        output = scored(self, inputs)
        mask = output["completion_mask"]  # the policy's first, then the reference's, where there is one
        kl = ((logps[0] - logps[1]) * mask).sum(1).tolist() if self.beta else [0.0] * len(mask)
        found.append(Round(output["advantages"].tolist(), kl, self._settled.totals.tolist()))
        return output

    monkeypatch.setattr(RLOOTrainer, "_get_per_token_logps_and_entropies", remember)
    monkeypatch.setattr(RewardMixin, "_generate_and_score_completions", watch)

    def run(*overrides: str, name: str = "one") -> tuple[list[Round], RunFolder]:
        words = ("trainer.args.learning_rate=0.05", "trainer.args.num_iterations=1", *overrides)
        code, folder = train(*DROP, *words, name=name)
        assert code == 0
        return found, folder

    return run


def by_hand(
    columns: list[list[float | None]],
    kl: list[float],
    *,
    beta: float = 0.0,
    clip: tuple[float, float] | None = None,
    is_normalized: bool = False,
) -> list[float]:
    """Weighted columns, what clipping takes from a row's total, and the penalty: each less its mean over the others.

    All rows are scorable. Normalised over the batch as TRL does it: less the mean, by the deviation (n - 1) + 1e-4.
    """
    num_rows = len(columns[0])
    totals = [math.fsum(column[row] or 0.0 for column in columns) for row in range(num_rows)]
    low, high = clip or (-math.inf, math.inf)
    taken = [min(max(total, low), high) - total for total in totals]
    everything = [*columns, taken, [-beta * one for one in kl]]
    advantages = [0.0] * num_rows
    for column in everything:
        for row, value in enumerate(column):
            start = row - row % GROUP
            others = [column[other] for other in range(start, start + GROUP) if other != row]
            there = [other for other in others if other is not None]
            if value is not None and there:
                advantages[row] += value - math.fsum(there) / len(there)
    if not is_normalized:
        return advantages
    mean = math.fsum(advantages) / num_rows
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in advantages) / (num_rows - 1))
    return [(one - mean) / (deviation + 1e-4) for one in advantages]


def weighted() -> list[list[float | None]]:
    columns = {"a": A, "b": B, "c": C}
    return [[None if one is None else WEIGHTS[name] * one for one in columns[name]] for name in columns]


@pytest.mark.parametrize(
    ("beta", "clip", "is_normalized"),
    [(0.0, None, False), (0.7, None, False), (0.7, None, True), (0.0, (-1.0, 1.5), True), (0.7, (-1.0, 1.5), False)],
)
def test_every_round_is_by_hand(rounds, beta: float, clip: tuple[float, float] | None, is_normalized: bool) -> None:
    settings = [f"trainer.args.beta={beta}", f"trainer.args.normalize_advantages={str(is_normalized).lower()}"]
    settings += [f"trainer.args.reward_clip_range=[{clip[0]}, {clip[1]}]"] if clip else []
    found, folder = rounds(*EXCLUDING, *settings)
    assert len(found) == 3
    for one in found:
        expected = by_hand(weighted(), one.kl, beta=beta, clip=clip, is_normalized=is_normalized)
        assert one.advantages == pytest.approx(expected, **ARITHMETIC)
    if beta:
        assert max(map(abs, found[-1].kl)) > 0.01  # the policy has moved, or the penalty would not be seen
    if clip:
        assert any(not clip[0] <= total <= clip[1] for total in found[0].totals)
    totals = [math.fsum(column[row] or 0.0 for column in weighted()) for row in range(len(A))]
    assert found[0].totals == pytest.approx(totals, **ARITHMETIC)  # no value is filled in
    events = [event for event in read_metrics(folder.metrics) if "loss" in event]
    mean = math.fsum(totals) / len(totals)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in totals) / (len(totals) - 1))
    for event in events:
        assert event["reward"] == pytest.approx(mean, **ARITHMETIC)
        assert event["reward_std"] == pytest.approx(deviation, **ARITHMETIC)
        assert event["reward"] == pytest.approx(
            math.fsum(event[f"rewards/{name}/weighted_mean"] for name in WEIGHTS), **ARITHMETIC
        )
        shares = {name: share for name, share in event.items() if name.endswith("/advantage_share")}
        if clip or (beta and is_normalized):
            assert not shares  # no sum of parts
        else:
            assert math.fsum(shares.values()) == pytest.approx(1.0, **ARITHMETIC)
