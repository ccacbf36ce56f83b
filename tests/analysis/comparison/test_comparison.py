"""Runs side by side: what is compared, what is no fair comparison, and what is said about it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare, total_in_words
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.errors import UserError
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import configured, write_run, write_sweep

ENDS = {0.0: [0.50, 0.60, 0.70, 0.55], 0.5: [0.54, 0.65, 0.73, 0.61], 1.0: [0.50, 0.61, 0.69, 0.55]}
"""0.5 is better by 0.04, 0.05, 0.03, 0.06; 1 and 0 differ by 0, 0.01, -0.01, 0."""


def of(folders: list[RunFolder], **asked: object) -> Comparison:
    return compare(read_runs(folders)[0], ComparisonOptions(**asked))  # type: ignore[arg-type]


@pytest.fixture
def sweep(place: Path) -> list[RunFolder]:
    return write_sweep(place / "runs" / "sweep", ENDS)


def test_the_verdict_in_words(sweep: list[RunFolder]) -> None:
    """Three comparisons on each of two components: t(3) at 1 - 0.05 / 12 is 6.2315, times 0.012910 / 2 is 0.04022.

    1 against 0.5: differences -0.04, -0.04, -0.04, -0.06 have s = 0.01, and 6.2315 * 0.01 / 2 is 0.03116 around 0.045.
    """
    verdict = of(sweep).verdicts[0]
    assert verdict.text == (
        "0.5 beats 0 on correct by 0.045 [0.005, 0.085] and 1 by 0.045 [0.014, 0.076] (4 seeds). "
        "No clear difference in correct between 0 and 1 (4 seeds). Even 1000 seeds would not separate 0 from 1."
    )


def test_a_baseline_asks_less_and_so_sees_more(sweep: list[RunFolder]) -> None:
    each, against = (of(sweep, on=("correct",), baseline=baseline) for baseline in (None, "0.0"))
    assert (each.comparisons, against.comparisons) == (3, 2)
    widths = [one.verdicts[0].differences[0].difference for one in (each, against)]
    assert widths[0].high - widths[0].low > widths[1].high - widths[1].low  # type: ignore[operator]
    assert "No clear difference in correct between 0 and 1 (4 seeds)." in against.verdicts[0].text


def test_a_total_is_never_compared_where_weights_differ(sweep: list[RunFolder]) -> None:
    """`reward` holds the weight: at 1 it is 0.5 higher for the very same answers, and would win."""
    found = of(sweep)
    assert "total" not in found.values
    assert found.no_total is not None
    assert "rewards.brevity.weight differs" in found.no_total


def test_one_set_of_weights_for_all(sweep: list[RunFolder]) -> None:
    """1 x 0.6325 - 0.2 x 0.5 at weight 0.5, whatever it was trained with."""
    found = of(sweep, weights="correct=1, brevity=-0.2")
    assert found.estimates["weight=0.5"]["total by --weights"].mean == pytest.approx(0.5325)
    assert "1 correct - 0.2 brevity" in str(total_in_words(found))
    assert [verdict.measure.label for verdict in found.verdicts][-1] == "total by --weights"


def test_a_run_without_a_component_has_no_such_total(place: Path) -> None:
    runs = write_sweep(place / "sweep", ENDS)
    runs.append(write_run(place / "other", configured(2.0), {"rewards/correct/mean": [1.0]}))
    found = of(runs, weights="correct=1,brevity=1")
    assert math.isnan(found.values["total by --weights"]["weight=2,seed=0"])


def test_one_seed_says_impossible_and_not_zero(place: Path) -> None:
    found = of(write_sweep(place / "sweep", {0.0: [0.5], 0.5: [0.9]}))
    assert found.estimates["weight=0"]["correct"].low is None
    assert found.verdicts == []
    assert "impossible, not zero" in str(found.no_verdict)
    asked = of(write_sweep(place / "again", {0.0: [0.5], 0.5: [0.9]}), on=("correct",)).verdicts[0].text
    assert asked.startswith("No verdict on correct for 0 and 0.5: they have one seed in common, all else equal")


def test_two_keys_are_averaged_within_a_seed(place: Path) -> None:
    """By weight both learning rates of a seed are one observation: (0.1 + 0.3) / 2 and (0.25 + 0.2) / 2."""
    gains = {(0, 1): 0.1, (0, 2): 0.3, (1, 1): 0.25, (1, 2): 0.2}
    runs = [
        write_run(
            place / f"{weight}-{rate}-{seed}",
            configured(weight, seed, other={"rate": rate}),
            {"rewards/correct/mean": [0.1 * rate + (gain if weight else 0.0)]},
        )
        for (seed, rate), gain in gains.items()
        for weight in (0.0, 0.5)
    ]
    assert of(runs).verdicts == []
    (difference,) = of(runs, by="weight", on=("correct",)).verdicts[0].differences
    assert difference.seeds == ("0", "1")
    assert difference.difference.mean == pytest.approx(0.2125)
    with pytest.raises(UserError, match="several keys differ"):
        of(runs, on=("correct",))


def test_runs_that_do_not_count_for_the_same_reason_are_one_line(place: Path) -> None:
    runs = write_sweep(place / "sweep", {0.0: [0.5]})
    runs += [write_run(place / str(seed), configured(0.0, seed), {}, state="created") for seed in range(1, 6)]
    notes = of(runs).notes
    assert "seed=1, seed=2, seed=3 and 2 more do not count: created, nothing was logged" in notes


def test_an_evaluation_beside_the_run_is_read(place: Path) -> None:
    run = write_run(place / "a", configured(), {"reward": [0.5]})
    (run.path / "eval").mkdir()
    (run.path / "eval" / "held_out.json").write_text(
        '{"kind": "policy", "time": 5, "parts": {"greedy": {"rewards": {"correct": {"raw": {"mean": 0.75}}},'
        ' "total": {"mean": 1.5}}}, "attempts": {"correct": {"pass": {"1": {"mean": 0.5}, "4": {"mean": 0.9}}}}}'
    )
    (run.path / "eval" / "broken.json").write_text("{")
    values = of([run]).values
    assert values["held_out: greedy/correct"] == {"a": 0.75}
    assert values["held_out: pass@4/correct"] == {"a": 0.9}
