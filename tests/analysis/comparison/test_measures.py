"""Measures: the default ones, typed ones, the number read from a run, the better direction, and fronts."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import pareto_front
from rlhf_cli.analysis.comparison.measures import RunMeasure, asked_measure, default_measures
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.metric_arrays import Window
from rlhf_cli.tables.metrics import sign_of
from tests.support.logged_runs import in_memory

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
    for name in ("length", "truncated"):  # a reward may have the name of a cost
        found = defaults(in_memory("x", **FULL, **{f"rewards/{name}/mean": [1.0]}))
        metrics = {label: metric for label, metric, *_ in found}
        assert (len(metrics), metrics[name]) == (len(found), f"rewards/{name}/mean")


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
    # The words of the last screen name metrics of trainers without rewards.
    of_pairs = in_memory("x", **{"rewards/margins": [1.0], "rewards/loss": [1.0], "loss": [1.0]})
    asked = [asked_measure(word, [of_pairs], where="--on").metric for word in ("margins", "-margins", "loss")]
    assert asked == ["rewards/margins", "rewards/margins", "loss"]


def test_direction_by_name() -> None:
    signs = {
        1: "reward rewards/a/mean eval_rewards/a/mean accuracy margin rewards/margins ppo/explained_variance "
        "eval_greedy/rewards/loss eval_sampled/total eval_maj@8/errors",
        0: "lossy klein entropy num_tokens",
        -1: "loss eval_loss kl kl/k3 rewards/a/seconds rewards/truncation/fraction completions/clipped_ratio",
    }
    for sign, names in signs.items():
        assert {name: sign_of(name) for name in names.split()} == dict.fromkeys(names.split(), sign)


CURVES = in_memory("x", **{"m": [1.0, 9.0, 4.0, 2.0], "n": [2.0, 1.0, 1.0, 2.0], "eval_m": [3.0, 5.0, None, 7.0]})


def test_the_number_of_a_run() -> None:
    """A curve gives the mean of its last two events, evaluations give the latest number."""
    for metric, up_to, number in (
        *(("m", None, 3.0), ("m", 3, 6.5), ("eval_m", None, 7.0), ("eval_m", 3, 5.0)),
        *(("eval_m", 0, nan), ("absent", None, nan), ("eval_absent", None, nan)),
    ):
        found = RunMeasure("x", metric, "asked").of(CURVES, Window("last", 2), up_to)
        assert found == pytest.approx(number, nan_ok=True), (metric, up_to)


def test_figures_of_an_evaluation_go_by_their_names_and_not_by_how_these_end() -> None:
    """`piece` ends as `ece` does, and less of that is better."""
    names = ("not_truncated", "piece", "few_tokens", "truncated", "tokens")
    figures = {f"greedy/{name}": 0.5 for name in names}
    signs = {one.metric: one.sign for one in default_measures(with_files({"test": figures}), no_total=None)}
    assert list(signs.values()) == [1, 1, 1, -1, 0]


MEANS = {"a": (1.0, 3.0), "b": (2.0, 2.0), "c": (1.0, 2.0), "d": (3.0, 1.0), "e": (None, 9.0)}
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
    means: dict[str, tuple[float | None, float]], signs: tuple[int, int], best: str, dominated: dict[str, str]
) -> None:
    by = [RunMeasure(label, label, "component", sign) for label, sign in zip("xy", signs, strict=True)]
    estimates = {
        name: {label: Estimate(value, None, None, 1) for label, value in zip("xy", values, strict=True)}
        for name, values in means.items()
    }
    front = pareto_front(by, estimates)
    assert (front.by, front.best, front.dominated) == (("x", "y"), tuple(best), dominated)
