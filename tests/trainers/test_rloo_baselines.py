"""RLOO in training where rewards do not apply to every row: its advantages by loops, with KL, clipping, normalising."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from torch import Tensor
from trl import RLOOTrainer

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.trainers.reward_mixin import RewardMixin
from tests.algorithms.test_leave_out_scores import rloo
from tests.support.tolerances import ARITHMETIC

A = [1.0, 0.0, 3.0, -2.0, 0.5, 0.5, 1.0, 7.0]
B = [0.5, None, 0.1, None, None, 2.0, None, None]
C = [None, 4.0, 2.0, 9.0, 1.0, 2.0, 3.0, 4.0]
WEIGHTS = {"a": 1.0, "b": 2.0, "c": -0.5}
COLUMNS = [
    [None if one is None else WEIGHTS[name] * one for one in values]
    for name, values in zip("abc", (A, B, C), strict=True)
]
"""Two groups of four. b applies to two rows and to one, c to three and to all."""
SOURCE = f"""
def a(completions, **kwargs):
    return {A}

def b(completions, **kwargs):
    return {B}

def c(completions, **kwargs):
    return {C}
"""
DROP = [
    *("~rewards.correct", "~rewards.format", "~rewards.brevity", "trainer=rloo", "trainer.passes=plain"),
    *("trainer.args.learning_rate=0.05", "trainer.args.num_iterations=1"),
]
EXCLUDING = [
    f"+rewards.{name}={{fn: './mine.py:{name}', weight: {weight}, trial: false}}" for name, weight in WEIGHTS.items()
]


class Round(NamedTuple):
    """What a round of generating came to: given advantages, each row's KL, the rows' totals; of eight rows."""

    advantages: list[float]
    kl: list[float]
    totals: list[float]


@pytest.fixture
def rounds(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """What each round of eight new rows is given."""
    (workplace / "mine.py").write_text(SOURCE)
    found, logps = list[Round](), list[Tensor]()
    forward, scored = RLOOTrainer._get_per_token_logps_and_entropies, RewardMixin._generate_and_score_completions

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
    return found


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
    matrix = numpy.array(columns, dtype=float)  # None is NaN
    totals = numpy.nansum(matrix, axis=0)
    taken = numpy.clip(totals, *clip) - totals if clip else numpy.zeros_like(totals)
    parts = [rloo(one) for one in (*matrix, taken, -beta * numpy.array(kl))]
    advantages = numpy.sum(parts, axis=0)
    if is_normalized:
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-4)
    return [float(one) for one in advantages]


@pytest.mark.parametrize(
    ("beta", "clip", "is_normalized"),
    [(0.0, None, False), (0.7, None, True), (0.0, (-1.0, 1.5), True), (0.7, (-1.0, 1.5), False)],
)
def test_every_round_is_by_hand(
    train, rounds: list[Round], beta: float, clip: tuple[float, float] | None, is_normalized: bool
) -> None:
    settings = [f"trainer.args.beta={beta}", f"trainer.args.normalize_advantages={str(is_normalized).lower()}"]
    settings += [f"trainer.args.reward_clip_range=[{clip[0]}, {clip[1]}]"] if clip else []
    code, folder = train(*DROP, *EXCLUDING, *settings)
    assert (code, len(rounds)) == (0, 3)
    for one in rounds:
        expected = by_hand(COLUMNS, one.kl, beta=beta, clip=clip, is_normalized=is_normalized)
        assert one.advantages == pytest.approx(expected, **ARITHMETIC)
    if beta:
        assert max(map(abs, rounds[-1].kl)) > 0.01  # the policy has moved, or the penalty would not be seen
    totals = numpy.nansum(numpy.array(COLUMNS, dtype=float), axis=0)
    assert not clip or not all(clip[0] <= total <= clip[1] for total in totals)
    assert rounds[0].totals == pytest.approx(totals.tolist(), **ARITHMETIC)  # no value is filled in
    for event in [event for event in read_metrics(folder.metrics) if "loss" in event]:
        figures = (event["reward"], event["reward_std"])
        assert figures == pytest.approx((totals.mean(), totals.std(ddof=1)), **ARITHMETIC)
        means = [event[f"rewards/{name}/weighted_mean"] for name in WEIGHTS]
        assert event["reward"] == pytest.approx(math.fsum(means), **ARITHMETIC)
        shares = [share for name, share in event.items() if name.endswith("/advantage_share")]
        if clip or (beta and is_normalized):
            assert not shares  # no sum of parts
        else:
            assert math.fsum(shares) == pytest.approx(1.0, **ARITHMETIC)
