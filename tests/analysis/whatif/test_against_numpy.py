"""`rlhf whatif` over rounds of several groups with gaps, against advantages worked out with loops and SciPy's figures.

GRPO fills an excluded entry with its group's mean of that reward; RLOO compares a row, reward by reward, with the other
rows of its group where the reward applies (docs/how-to/rewards.md). Both are written here in float64 from those two
sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rlhf_cli.analysis.what_if import WhatIf, what_if
from rlhf_cli.analysis.whatif_request import ask, read_rounds
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.stored_tables import frozen, write_table

Array = NDArray[np.float64]
NAMES = ("correct", "format", "brevity")
WAS, WOULD = np.array([1.0, 0.5, 0.2]), np.array([1.0, 0.5, -2.0])
ROWS, GROUP = 12, 4
BATCH = f"trainer.args.per_device_train_batch_size={ROWS}"


def groups() -> list[slice]:
    return [slice(first, first + GROUP) for first in range(0, ROWS, GROUP)]


def grpo(scale: str) -> Callable[[Array, Array], Array]:
    def advantages(scores: Array, weights: Array) -> Array:
        filled = scores.copy()
        for reward in filled:
            for rows in groups():
                known = reward[rows][~np.isnan(reward[rows])]
                reward[rows] = np.where(np.isnan(reward[rows]), known.mean() if len(known) else 0.0, reward[rows])
        totals = weights @ filled
        totals[np.isnan(scores).all(axis=0)] = np.nan
        found = np.zeros(ROWS)
        for rows in groups():
            of = totals if scale == "batch" else totals[rows]
            deviation = 1.0 if scale == "none" else np.nanstd(of, ddof=1) + 1e-4
            found[rows] = (totals[rows] - np.nanmean(totals[rows])) / deviation
        return np.nan_to_num(found)

    return advantages


def rloo(scores: Array, weights: Array) -> Array:
    found = np.zeros(ROWS)
    for reward, weight in zip(scores, weights, strict=True):
        for rows in groups():
            for row in range(rows.start, rows.stop):
                others = [reward[one] for one in range(rows.start, rows.stop) if one != row]
                others = [one for one in others if not np.isnan(one)]
                if others and not np.isnan(reward[row]):
                    found[row] += weight * (reward[row] - np.mean(others))
    return found


def answer(run: RunFolder, *words: str) -> WhatIf:
    return what_if(ask(run, list(words)), read_rounds(run), 8)


def plain(values: Array) -> list[object]:
    return [None if np.isnan(value) else float(value) for value in values]


@pytest.mark.parametrize(
    ("words", "advantages"),
    [
        (["trainer.args.scale_rewards=none"], grpo("none")),
        (["trainer.args.scale_rewards=group"], grpo("group")),
        (["trainer.args.scale_rewards=batch"], grpo("batch")),
        (["trainer=rloo", "trainer.args.beta=0"], rloo),
    ],
    ids=["none", "group", "batch", "rloo"],
)
def test_advantages_and_what_they_push(
    place: Path, words: list[str], advantages: Callable[[Array, Array], Array]
) -> None:
    random = np.random.default_rng(1)
    run = frozen(place, *words, BATCH)
    rounds = []
    for step in (1, 2, 3):
        scores = np.stack([random.integers(0, 2, ROWS), random.integers(0, 2, ROWS), random.random(ROWS)]).round(2)
        scores[random.random(scores.shape) < 0.3] = np.nan
        tokens = random.integers(1, 9, ROWS).astype(float)
        rounds.append((scores, tokens))
        columns = {name: plain(column) for name, column in zip(NAMES, scores, strict=True)}
        columns |= {"advantage": plain(advantages(scores, WAS)), "rollout.tokens": [int(one) for one in tokens]}
        write_table(run, step, **columns)
    found = answer(run, "rewards.brevity.weight=-2").rounds
    assert len(found) == 3
    for one, (scores, tokens) in zip(found, rounds, strict=True):
        assert one.why is None
        both = [advantages(scores, weights) for weights in (WAS, WOULD)]
        turned = np.mean([a * b < 0 and min(abs(a), abs(b)) > 1e-3 for a, b in zip(*both, strict=True)])
        assert one.sign_changed == pytest.approx(turned)
        for name, column in zip([*NAMES, "length"], [*scores, tokens], strict=True):
            known = ~np.isnan(column)
            means = np.concatenate([np.full(GROUP, np.nanmean(column[rows])) for rows in groups()])
            pushed = [np.mean((a * (column - means))[known]) for a in both]
            assert one.push[name] == pytest.approx(pushed, abs=1e-5), name
        for side in (0, 1):
            assert sum(share[side] or 0.0 for share in one.share.values()) == pytest.approx(1.0, abs=1e-5)


def test_order_and_best_of_several_groups(place: Path) -> None:
    """tau-b by SciPy, group by group; the best by sets. No score is missing, so totals are plain sums."""
    random = np.random.default_rng(2)
    run = frozen(place, BATCH)
    scores = np.stack([random.integers(0, 2, ROWS), random.integers(0, 2, ROWS), random.integers(0, 4, ROWS) / 4])
    scores = scores.astype(float)
    write_table(run, 1, **{name: plain(column) for name, column in zip(NAMES, scores, strict=True)})
    (found,) = answer(run, "rewards.brevity.weight=-2").rounds
    old, new = (weights @ scores for weights in (WAS, WOULD))
    taus = [stats.kendalltau(old[rows].round(6), new[rows].round(6)).statistic for rows in groups()]
    best = [[set(np.flatnonzero(np.isclose(side[rows], side[rows].max()))) for side in (old, new)] for rows in groups()]
    assert found.tau == pytest.approx(np.nanmean(taus))
    assert found.best_changed == pytest.approx(np.mean([not (one & other) for one, other in best]))
    assert found.mean_total == pytest.approx((old.mean(), new.mean()), rel=1e-6)


def test_a_group_that_is_left_out_is_no_group_whose_best_stays(place: Path) -> None:
    """Of two groups the first has rows that a gate turned away. In the second the best by correct loses to brevity."""
    gate, batch = "rewards.brevity.gate={by: correct, at_least: 1.0}", "trainer.args.per_device_train_batch_size=8"
    run = frozen(place, gate, batch)
    correct, brevity = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], [0.5, None, 0.5, None, 1.0, 0.0, 0.5, 0.5]
    closed_by = [None, "correct", None, "correct", *[None] * 4]
    columns = {"correct": correct, "format": [0.0] * 8, "brevity": brevity, "brevity.closed_by": closed_by}
    write_table(run, 1, **columns)  # type: ignore[arg-type]
    (found,) = answer(run, "rewards.brevity.gate=null", "rewards.brevity.weight=-1").rounds
    assert (found.num_groups, found.num_answered, found.best_changed) == (2, 1, 1.0)


def test_a_running_deviation_over_several_draws_and_the_groups_that_are_kept(place: Path) -> None:
    """Each of two draws divides by all scores up to its end; only the kept rows count, and they may not be others."""
    random = np.random.default_rng(3)
    words = ("trainer.args.scale_rewards=none", "rewards.brevity.normalize=running", "rewards.brevity.gate=null")
    run = frozen(place, *words, BATCH, "sampling.keep_groups={by: correct, tries: 2}")
    so_far, expected = np.array([]), []
    for step in (1, 2):
        scores = np.stack([random.integers(0, 2, 2 * ROWS), random.integers(0, 2, 2 * ROWS), random.random(2 * ROWS)])
        scores[0, :GROUP] = 1.0  # nothing to learn: another draw takes this group's place
        kept = np.arange(2 * ROWS) // GROUP % 6 < 4
        kept[:GROUP] = False
        divided = scores.copy()
        for draw in (slice(0, ROWS), slice(ROWS, 2 * ROWS)):
            so_far = np.concatenate([so_far, scores[2, draw]])
            divided[2, draw] /= so_far.std(ddof=1)
        both = []
        for weights in (WAS, WOULD):
            totals = (weights @ divided).reshape(-1, GROUP)
            both.append((totals - totals.mean(axis=1, keepdims=True)).ravel())
        expected.append([np.mean((side * scores[2])[kept]) for side in both])
        columns = {name: plain(column) for name, column in zip(NAMES, scores, strict=True)}
        write_table(run, step, **columns, advantage=plain(both[0]), **{"sampling.kept": kept.tolist()})
    rounds = answer(run, "rewards.brevity.weight=-2").rounds
    assert [one.why for one in rounds] == [None, None]
    assert [(one.num_groups, one.num_answered) for one in rounds] == [(3, 3)] * 2
    for one, pushes in zip(rounds, expected, strict=True):
        assert one.push["brevity"] == pytest.approx(pushes, abs=1e-5)


def test_totals_that_would_have_kept_other_groups_have_no_advantages(place: Path) -> None:
    run = frozen(place, "trainer.args.scale_rewards=none", BATCH, "sampling.keep_groups={by: total, tries: 2}")
    correct, brevity = [*[1.0, 0.0] * 4, *[1.0] * 4], [0.0] * 8 + [0.0, 1.0, 0.0, 1.0]
    totals = np.array(correct) + 0.2 * np.array(brevity)
    advantage = plain((totals.reshape(-1, GROUP) - totals.reshape(-1, GROUP).mean(axis=1, keepdims=True)).ravel())
    write_table(run, 1, correct=correct, format=[0.0] * ROWS, brevity=brevity, advantage=advantage)  # type: ignore[arg-type]
    assert answer(run, "rewards.correct.weight=2").rounds[0].why is None
    assert "other groups" in str(answer(run, "rewards.brevity.weight=0").rounds[0].why)
