"""Measure a reward model on preference rows."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError
from rlhf_cli.evaluation.score_bench import mean_ranks, pearson
from rlhf_cli.evaluation.scored_pairs import (
    SUBSET,
    Calibration,
    ConfidenceBin,
    Disagreement,
    LengthBias,
    Pair,
    RewardDistribution,
    RewardModelEvaluation,
    SliceAccuracy,
    pairs_of,
)
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.numerics import calibration
from rlhf_cli.numerics.intervals import Estimate, student_of_groups, wilson, wilson_of_groups
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.text.suggest import nearest

_BINS = 10
_WORST = 5
_MOST_VALUES = 50
"""Maximum number of values of a slice column. A column with more holds numbers or texts, not categories."""


def evaluate_reward_model(
    scorer: RewardModelScorer, rows: list[Row], *, slices: Sequence[str] = (), as_chat: bool = False
) -> RewardModelEvaluation:
    """Return all measures of a reward model on preference rows.

    `slices` are columns; `subset` is added if it exists. `as_chat` scores plain texts as a conversation. Raise
    DataError for rows that are not pairs and for a wrong slice.
    """
    pairs = pairs_of(rows, as_chat=as_chat)
    wanted = list(dict.fromkeys([*([SUBSET] if SUBSET in rows[0] else []), *slices]))
    groups = {column: _groups(rows, column) for column in wanted}
    questions, chosen_answers, rejected_answers = map(list, zip(*pairs, strict=True))
    began, cut_before = time.perf_counter(), scorer.num_truncated
    scores, lengths = scorer.scored(questions * 2, chosen_answers + rejected_answers)
    seconds, count = time.perf_counter() - began, len(pairs)
    both = torch.tensor(scores, dtype=torch.float64)
    chosen, rejected = both[:count], both[count:]
    longer = torch.tensor(lengths[:count]) - torch.tensor(lengths[count:])
    # Equal for equal prompts; pairs without a separate prompt each get their own number.
    numbers = dict[str, int]()
    names = [repr(prompt) if prompt else f"pair {row}" for row, prompt in enumerate(questions)]
    difference, prompts = chosen - rejected, torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])
    return RewardModelEvaluation(
        rows=count,
        pairs_per_second=count / seconds,
        truncated=scorer.num_truncated - cut_before,
        accuracy=_accuracy(difference, prompts),
        ties=int((difference == 0).sum()),
        calibration=_calibration(difference),
        rewards=_rewards(chosen, rejected, prompts),
        length=_length(difference, longer, prompts),
        slices={
            column: {value: _slice(difference, prompts, torch.tensor(indices)) for value, indices in by_value.items()}
            for column, by_value in groups.items()
        },
        worst=_worst(rows, pairs, chosen, rejected),
        with_eos=scorer.with_eos,
    )


def _accuracy(difference: Tensor, prompts: Tensor) -> Estimate:
    """Count a tie as wrong, as TRL does. Pairs with the same prompt are not independent."""
    return wilson_of_groups((difference > 0).double().tolist(), prompts.tolist())


def _slice(difference: Tensor, prompts: Tensor, which: Tensor) -> SliceAccuracy:
    some = difference[which]
    return SliceAccuracy(**vars(_accuracy(some, prompts[which])), margin=float(some.mean()))


def _calibration(difference: Tensor) -> Calibration:
    bins = calibration.reliability(difference, _BINS)
    columns = (column.tolist() for column in (bins.low, bins.high, bins.confidence, bins.right, bins.count))
    return Calibration(
        ece=calibration.expected_calibration_error(bins),
        brier=calibration.brier(difference),
        log_loss=calibration.log_loss(difference),
        bins=[
            ConfidenceBin(low, high, finite_or_none(confidence), wilson(right, int(count)))
            for low, high, confidence, right, count in zip(*columns, strict=True)
        ],
    )


def _rewards(chosen: Tensor, rejected: Tensor, prompts: Tensor) -> RewardDistribution:
    both = torch.cat([chosen, rejected])

    def mean(values: Tensor) -> Estimate:
        return student_of_groups(values.tolist(), prompts.tolist())

    return RewardDistribution(
        mean=mean((chosen + rejected) / 2),
        deviation=finite_or_none(both.std().item()),
        chosen=mean(chosen),
        rejected=mean(rejected),
        margin=mean(chosen - rejected),
        min=both.min().item(),
        max=both.max().item(),
    )


def _length(difference: Tensor, longer: Tensor, prompts: Tensor) -> LengthBias:
    def where(which: Tensor) -> SliceAccuracy | None:
        return _slice(difference, prompts, which) if which.any() else None

    differences, lengths = difference.numpy(), longer.double().numpy()
    return LengthBias(
        unit="tokens, chosen minus rejected",
        chosen_longer=where(longer > 0),
        same=where(longer == 0),
        chosen_shorter=where(longer < 0),
        pearson=pearson(differences, lengths),
        spearman=pearson(mean_ranks(differences), mean_ranks(lengths)),
        longer_wins=wilson_of_groups(calibration.verdicts(longer).tolist(), prompts.tolist()),
    )


def _worst(rows: list[Row], pairs: list[Pair], chosen: Tensor, rejected: Tensor) -> list[Disagreement]:
    """Return the wrong verdicts with the highest confidence, highest first."""
    difference = chosen - rejected
    order = [int(index) for index in torch.argsort(difference, stable=True)[:_WORST] if difference[index] < 0]
    return [
        Disagreement(
            index,
            *pairs[index],
            chosen[index].item(),
            rejected[index].item(),
            confidence=float(calibration.bradley_terry(-difference[index])),
            subset=rows[index].get(SUBSET),
        )
        for index in order
    ]


def _groups(rows: list[Row], column: str) -> dict[str, list[int]]:
    if column not in rows[0]:
        what = f"no column {column!r} to slice by"
        raise DataError(what, where="--slice", got="columns " + ", ".join(rows[0]), hint=nearest(column, rows[0]))
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(str(row[column]), []).append(index)
    if len(groups) > _MOST_VALUES:
        expected = f"a column of at most {_MOST_VALUES} categories"
        raise DataError(f"the column {column!r} has {len(groups)} different values", where="--slice", expected=expected)
    return dict(sorted(groups.items()))
