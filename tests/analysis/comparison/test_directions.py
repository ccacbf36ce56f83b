"""The better direction of measures, in verdicts and fronts."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pytest

from rlhf_cli.analysis.comparison.comparison import pareto_front
from rlhf_cli.evaluation.evaluation_files import evaluation_json
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import compared, configured, write_run
from tests.support.measured import headed, part, policy


def two_settings(place: Path, metric: str) -> list[RunFolder]:
    """Weight 1 has more of the metric than weight 0 by 0.3, 0.31, 0.29 and 0.3."""
    ends = {0.0: (0.1, 0.2, 0.1, 0.2), 1.0: (0.4, 0.51, 0.39, 0.5)}
    return [
        write_run(place / f"{weight:g}-{seed}", configured(weight, seed), {"rewards/a/mean": [0.5], metric: [value]})
        for weight, values in ends.items()
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("metric", "label", "winner"),
    [
        ("kl/k1_policy_ref", "kl", "0"),
        ("rewards/truncation/fraction", "truncated", "0"),
        ("eval_loss", "eval_loss", "0"),
        ("rewards/correct/mean", "correct", "1"),
        ("eval_greedy/rewards/correct", "eval_greedy/rewards/correct", "1"),
        ("eval_greedy/rewards/loss", "eval_greedy/rewards/loss", "1"),  # a reward may have any name
    ],
)
def test_who_beats_whom(place: Path, metric: str, label: str, winner: str) -> None:
    found = compared(two_settings(place, metric), on=(label,))
    verdict = found.verdicts[0]
    assert verdict.winner == winner
    assert verdict.measure.direction == ("less is better" if winner == "0" else "more is better")


def evaluated(run: RunFolder, name: str, time: float, **figures: float) -> None:
    (run.path / "eval").mkdir(exist_ok=True)
    answers = policy(parts={"greedy": part(None, **figures)}, attempts={})
    content = evaluation_json(headed(answers, time=time))
    (run.path / "eval" / f"{name}.json").write_text(json.dumps(content))


def test_figures_of_an_evaluation_go_by_their_names_and_not_by_how_these_end(place: Path) -> None:
    """`piece` ends as `ece` does, and less of that is better."""
    run = write_run(place / "a", configured(), {"reward": [0.5]})
    evaluated(run, "test", 1.0, not_truncated=0.9, piece=0.5, few_tokens=0.5)
    signs = {measure.label: measure.sign for measure in compared([run]).measures if measure.evaluation}
    assert signs == {
        **{f"test: greedy/{name}": 1 for name in ("not_truncated", "piece", "few_tokens")},
        "test: greedy/truncated": -1,
        "test: greedy/tokens": 0,
    }


MEANS = {"a": (1.0, 3.0), "b": (2.0, 2.0), "c": (1.0, 2.0), "d": (3.0, 1.0), "e": (nan, 9.0)}


def test_what_no_other_is_better_than_in_everything() -> None:
    front = pareto_front(("x", "y"), (1, 1), MEANS)
    assert front.best == ("a", "b", "d")
    assert front.dominated == {"c": "a"}
    assert "e" not in {*front.best, *front.dominated}


def test_where_less_is_better() -> None:
    """With y the other way round d (3, 1) is best in both, and all that have numbers are below it."""
    front = pareto_front(("x", "y"), (1, -1), MEANS)
    assert front.best == ("d",)
    assert set(front.dominated) == {"a", "b", "c"}


def test_equal_settings_share_their_fate() -> None:
    front = pareto_front(("x", "y"), (1, 1), {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 0.0), "d": (0.0, 1.0)})
    assert front.best == ("a", "b")
    assert front.dominated == {"c": "a", "d": "a"}
