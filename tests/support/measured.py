"""An evaluation of a reward model and one of a policy, with figures that are easy to tell from one another."""

from __future__ import annotations

from typing import Any

from rlhf_cli.evaluation.evaluation_results import (
    Attempts,
    Evaluation,
    Heading,
    PartEvaluation,
    PolicyEvaluation,
    RewardEstimates,
    ShownAnswer,
    TokenEstimate,
)
from rlhf_cli.evaluation.scored_pairs import (
    Calibration,
    ConfidenceBin,
    Disagreement,
    LengthBias,
    RewardDistribution,
    RewardModelEvaluation,
    SliceAccuracy,
)
from rlhf_cli.numerics.intervals import Estimate


def sure(mean: float | None, count: int = 4) -> Estimate:
    """An estimate without an interval."""
    return Estimate(mean, None, None, count)


def around(mean: float, half: float, count: int = 4) -> Estimate:
    """An estimate with an interval of `half` on both sides."""
    return Estimate(mean, mean - half, mean + half, count)


def reward_model(**changes: Any) -> RewardModelEvaluation:
    """Four pairs, three of them in order."""
    good = SliceAccuracy(1.0, 0.25, 1.0, 2, margin=2.5)
    bins = [
        ConfidenceBin(start=0.5, end=0.75, confidence=None, accuracy=sure(None, 0)),
        ConfidenceBin(start=0.75, end=1.0, confidence=0.875, accuracy=around(0.75, 0.125)),
    ]
    values: dict[str, Any] = {
        "rows": 4,
        "pairs_per_second": 8.0,
        "truncated": 0,
        "accuracy": around(0.75, 0.125),
        "ties": 1,
        "calibration": Calibration(ece=0.111, brier=0.222, log_loss=0.333, bins=bins),
        "rewards": RewardDistribution(around(1.5, 0.5), 0.444, sure(2.0), sure(1.0), sure(1.25), min=-1.0, max=3.0),
        "length": LengthBias(
            unit="tokens, chosen minus rejected",
            chosen_longer=good,
            same=None,
            chosen_shorter=SliceAccuracy(0.5, 0.25, 0.75, 2, margin=-0.5),
            pearson=0.555,
            spearman=None,
            longer_wins=sure(0.625),
        ),
        "slices": {"kind": {"a": good}},
        "worst": [Disagreement(3, "why?", "be\ncause", "no", -1.0, 2.0, 0.9525)],
    }
    return RewardModelEvaluation(**(values | changes))


def with_subsets() -> RewardModelEvaluation:
    """The same with a column `subset`."""
    accuracy = SliceAccuracy(1.0, 0.5, 1.0, 4, margin=1.0)
    return reward_model(
        slices={"subset": {"mt-bench-easy": accuracy}},
        worst=[Disagreement(3, "why?", "because", "no", -1.0, 2.0, 0.9525, subset="mt-bench-easy")],
    )


def part(total: float | None, **rewards: float | None) -> PartEvaluation:
    """What one way of answering comes to, with a raw mean a reward."""
    return PartEvaluation(
        rewards={name: RewardEstimates(sure(mean), sure(mean), sure(mean)) for name, mean in rewards.items()},
        total=sure(total) if total is None else around(total, 0.25),
        truncated=sure(0.125),
        tokens=TokenEstimate(5.5, 4.5, 6.5, 4, max=9),
    )


def policy(**changes: Any) -> PolicyEvaluation:
    """Four prompts, answered greedily and with two samples each."""
    values: dict[str, Any] = {
        "rows": 4,
        "parts": {"greedy": part(0.75, correct=0.5), "sampled": part(0.5, correct=0.25)},
        "attempts": {"correct": Attempts(pass_at={1: sure(0.25), 2: sure(0.375)}, maj_at={2: sure(0.3125)})},
        "shown": [ShownAnswer("1+1=", "2", 1.5), ShownAnswer([{"role": "user", "content": "hi"}], "[b]x[/b]", None)],
    }
    return PolicyEvaluation(**(values | changes))


def headed(measured: RewardModelEvaluation | PolicyEvaluation, **changes: Any) -> Evaluation:
    """An evaluation by `rlhf eval` of exp/run on the rows of data.jsonl, or with `step` one of a training."""
    values: dict[str, Any] = {"name": "held_out", "model": "exp/run", "data": "data.jsonl", "time": 12.5}
    return Evaluation(Heading(**(values | changes)), measured)
