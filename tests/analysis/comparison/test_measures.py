"""Measures: the default ones, typed ones, the number read from a run, the better direction, and fronts."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import pareto_front
from rlhf_cli.analysis.comparison.measures import RunMeasure, asked_measure, default_measures
from rlhf_cli.evaluation.evaluation_results import evaluation_json
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.metric_arrays import Window
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.metrics import sign_of
from tests.support.logged_runs import compared, configured, in_memory, write_run
from tests.support.measured import headed, part, policy

NAMES = (
    *("reward", "rewards/a/mean", "rewards/b/mean", "rewards/a/std", "loss", "grad_norm"),
    *("kl", "kl/k1_policy_ref", "completions/mean_length", "completions/clipped_ratio"),
    *("eval_pass@4/a", "eval_greedy/rewards/a", "eval_greedy/total", "eval_greedy/tokens", "eval_loss"),
)
FULL: dict[str, Any] = {name: [1.0] for name in NAMES}


def defaults(run: Any, no_total: str | None = None) -> list[tuple[str, str, str, int]]:
    found = default_measures([run], no_total=no_total)
    return [(one.label, one.metric, one.kind, one.sign) for one in found]


COMPONENTS = [("a", "rewards/a/mean", "component", 1), ("b", "rewards/b/mean", "component", 1)]
TOTAL = ("total", "reward", "total", 1)
COSTS = [
    ("kl", "kl/k1_policy_ref", "cost", -1),
    ("length", "completions/mean_length", "cost", 0),
    ("truncated", "completions/clipped_ratio", "cost", -1),
]
HELD_OUT_TOTAL = ("held out greedy total", "eval_greedy/total", "held out", 1)
HELD_OUT = [
    ("held out greedy a", "eval_greedy/rewards/a", "held out", 1),
    ("held out loss", "eval_loss", "held out", -1),
    ("held out pass@4 a", "eval_pass@4/a", "held out", 1),
]


def test_default_measures_of_runs_with_rewards() -> None:
    run = in_memory("x", **FULL)
    assert defaults(run) == [*COMPONENTS, TOTAL, *COSTS, HELD_OUT_TOTAL, *HELD_OUT]
    assert defaults(run, "they differ") == [*COMPONENTS, *COSTS, *HELD_OUT]


@pytest.mark.parametrize("name", ["length", "truncated"])
def test_a_reward_may_have_the_name_of_a_cost(name: str) -> None:
    run = in_memory("x", **FULL, **{f"rewards/{name}/mean": [1.0]})
    metrics = {label: metric for label, metric, *_ in defaults(run)}
    assert (len(metrics), metrics[name]) == (len(defaults(run)), f"rewards/{name}/mean")


def test_default_measures_of_runs_without_rewards() -> None:
    others = {f"eval_{name}": [1.0] for name in ("accuracy", "mean_token_accuracy", "hard_mean_token_accuracy")}
    run = in_memory("x", loss=[1.0], accuracy=[1.0], **{"rewards/margins": [1.0], **others, "odd": [1.0]})
    assert defaults(run) == [
        ("loss", "loss", "learnt", -1),
        ("accuracy", "accuracy", "learnt", 1),
        ("rewards/margins", "rewards/margins", "learnt", 1),
        ("held out accuracy", "eval_accuracy", "held out", 1),
    ]
    assert defaults(in_memory("nothing")) == []


def with_files(*evaluations: dict[str, dict[str, float]]) -> list[Any]:
    return [replace(in_memory(f"r{number}"), evaluations=one) for number, one in enumerate(evaluations)]


def test_the_evaluation_that_most_runs_have_is_compared() -> None:
    runs = with_files({"few": {"accuracy": 0.5}, "all": {"greedy/total": 1.0, "greedy/a": 0.25}}, {"all": {"ece": 0.1}})
    found = default_measures(runs, no_total=None)
    assert [(one.label, one.metric, one.sign, one.evaluation) for one in found] == [
        *(("all: greedy/total", "greedy/total", 1, "all"), ("all: greedy/a", "greedy/a", 1, "all")),
        ("all: ece", "ece", -1, "all"),
    ]
    fair = [one.metric for one in default_measures(runs, no_total="no")]
    assert fair == ["greedy/a", "ece"]
    greedy = found[1]
    assert (greedy.of(runs[0], Window()), isnan(greedy.of(runs[1], Window()))) == (0.25, True)


@pytest.mark.parametrize(
    ("word", "metric", "label", "sign"),
    [
        ("a", "rewards/a/mean", "a", 1),
        ("-a", "rewards/a/mean", "a", -1),
        ("kl", "kl/k1_policy_ref", "kl", -1),
        ("length", "completions/mean_length", "length", 1),  # a typed measure has a direction
        ("-length", "completions/mean_length", "length", -1),
        ("truncation", "completions/clipped_ratio", "truncated", -1),
        ("reward", "reward", "reward", 1),
        ("total", "reward", "total", 1),
        ("rewards/a/mean", "rewards/a/mean", "a", 1),
        ("eval_greedy/rewards/a", "eval_greedy/rewards/a", "held out greedy a", 1),
        ("grad_norm", "grad_norm", "grad_norm", -1),
        ("rewards/a/std", "rewards/a/std", "rewards/a/std", 1),
    ],
)
def test_typed_measures(word: str, metric: str, label: str, sign: int) -> None:
    found = asked_measure(word, [in_memory("x", **FULL)], where="--on")
    assert (found.metric, found.label, found.sign) == (metric, label, sign)


def test_the_words_of_the_last_screen_name_metrics_of_trainers_without_rewards() -> None:
    run = in_memory("x", **{"rewards/margins": [1.0], "rewards/loss": [1.0], "loss": [1.0]})
    asked = [asked_measure(word, [run], where="--on").metric for word in ("margins", "-margins", "loss")]
    assert asked == ["rewards/margins", "rewards/margins", "loss"]


@pytest.mark.parametrize(
    ("metric", "sign"),
    [
        *(("loss", -1), ("eval_loss", -1), ("lossy", 0), ("kl", -1), ("kl/k3", -1), ("klein", 0), ("entropy", 0)),
        *(("reward", 1), ("rewards/a/mean", 1), ("rewards/a/seconds", -1), ("rewards/truncation/fraction", -1)),
        *(("eval_rewards/a/mean", 1), ("accuracy", 1), ("margin", 1), ("rewards/margins", 1)),
        ("ppo/explained_variance", 1),
        ("eval_greedy/rewards/loss", 1),
        *(("eval_sampled/total", 1), ("eval_maj@8/errors", 1), ("completions/clipped_ratio", -1), ("num_tokens", 0)),
    ],
)
def test_direction_by_name(metric: str, sign: int) -> None:
    assert sign_of(metric) == sign


CURVES = in_memory("x", **{"m": [1.0, 9.0, 4.0, 2.0], "n": [2.0, 1.0, 1.0, 2.0], "eval_m": [3.0, 5.0, None, 7.0]})


@pytest.mark.parametrize(
    ("metric", "up_to", "number"),
    [
        ("m", None, 3.0),
        ("m", 3, 6.5),
        ("eval_m", None, 7.0),
        ("eval_m", 3, 5.0),
        ("eval_m", 0, nan),
        ("absent", None, nan),
        ("eval_absent", None, nan),
    ],
)
def test_the_number_of_a_run(metric: str, up_to: int | None, number: float) -> None:
    """A curve gives the mean of its last two events, evaluations give the latest number."""
    found = RunMeasure("x", metric, "asked").of(CURVES, Window("last", 2), up_to)
    assert found == pytest.approx(number, nan_ok=True)


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


EQUALS = {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 0.0), "d": (0.0, 1.0)}


@pytest.mark.parametrize(
    ("means", "signs", "best", "dominated"),
    [
        (MEANS, (1, 1), "abd", {"c": "a"}),
        (MEANS, (1, -1), "d", dict.fromkeys("abc", "d")),  # d (3, 1) is best in both
        (EQUALS, (1, 1), "ab", {"c": "a", "d": "a"}),  # equal settings share their fate
    ],
)
def test_what_no_other_is_better_than_in_everything(
    means: dict[str, tuple[float, float]], signs: tuple[int, int], best: str, dominated: dict[str, str]
) -> None:
    by = [RunMeasure(label, label, "component", sign) for label, sign in zip("xy", signs, strict=True)]
    known = {name: [None if isnan(value) else value for value in values] for name, values in means.items()}
    estimates = {
        name: {label: Estimate(value, None, None, 1) for label, value in zip("xy", values, strict=True)}
        for name, values in known.items()
    }
    front = pareto_front(by, estimates)
    assert (front.by, front.best, front.dominated) == (("x", "y"), tuple(best), dominated)
