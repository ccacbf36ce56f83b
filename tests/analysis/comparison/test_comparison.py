"""Options of `rlhf compare`, verdicts over seeds, what cannot be compared, and the JSON output field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import (
    Comparison,
    ComparisonOptions,
    _few,
    compare,
    comparison_json,
    why_no_total,
)
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, flat, named, reward_names, weights_of
from rlhf_cli.analysis.comparison.settings import conditions_apart, group_over_seeds
from rlhf_cli.errors import RunError, UserError
from rlhf_cli.text.json_values import JsonTree
from tests.support.logged_runs import compared, configured, in_memory, runs_of, write_sweep


def by_weight(*weights: float) -> list[JsonTree]:
    return [configured(weight, seed) for weight in weights for seed in range(2)]


CORRECT, BREVITY = "rewards/correct/mean", "rewards/brevity/mean"
FOUR = runs_of(
    *by_weight(0.0, 0.5),
    **{CORRECT: [0.1, 0.2, 0.5, 0.61], BREVITY: [0.9, 0.9, 0.1, 0.2], "kl": [1.0, 2.0, 3.0, 4.0], "entropy": [1.0] * 4},
)


def of(runs: Sequence[LoggedRun] = FOUR, **asked: Any) -> Comparison:
    return compare(runs, ComparisonOptions(**asked), all_names=["grad_norm"])


def refused(runs: Sequence[LoggedRun] = FOUR, **asked: Any) -> tuple[object, ...]:
    """Return where the options are refused, what was got, and the hint."""
    with pytest.raises(UserError) as caught:
        of(runs, **asked)
    return caught.value.where, caught.value.got, caught.value.hint


def labels(found: Comparison) -> list[str]:
    return [verdict.measure.label for verdict in found.verdicts]


def test_default_measures_of_verdicts() -> None:
    assert (labels(of()), of().in_common) == (["correct", "brevity"], ["correct", "brevity", "kl"])
    assert labels(of(metrics=("kl", "entropy"))) == ["kl", "entropy"]
    learnt = [
        replace(run, weights={}) for run in runs_of(*by_weight(0.0, 0.5), loss=[1.0, 2.0, 3.0, 4.1], accuracy=[1.0] * 4)
    ]
    assert labels(of(learnt)) == ["loss"]
    assert [one.label for one in of(metrics=("kl",), on=("correct", "kl")).measures] == ["kl", "correct"]


def test_the_family_counts_pairs_times_measures_that_differ() -> None:
    """Three values give three pairs on each of two measures; a measure that is equal in all runs does not count."""
    correct = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    constant = of(runs_of(*by_weight(0.0, 0.5, 1.0), **{CORRECT: correct, BREVITY: [0.5] * 6}))
    assert {one.comparisons for verdict in constant.verdicts for one in verdict.differences} == {3}
    assert constant.comparisons == 3
    without = of(runs_of(*by_weight(0.0, 0.5, 1.0), **{CORRECT: correct}))
    assert constant.verdicts[0].differences == without.verdicts[0].differences
    three = runs_of(*by_weight(0.0, 0.5, 1.0), **{CORRECT: correct, BREVITY: [0.5] * 5 + [0.6]})
    found = of(three)
    assert (found.comparisons, [len(one.differences) for one in found.verdicts]) == (6, [3, 3])
    assert {one.comparisons for verdict in found.verdicts for one in verdict.differences} == {6}
    means = {(one.value, one.other): one.difference.mean for one in found.verdicts[0].differences}
    assert means == pytest.approx({("0.5", "0"): 0.2, ("1", "0"): 0.4, ("1", "0.5"): 0.2})
    assert {value: one.mean for value, one in found.verdicts[0].arms.items()} == pytest.approx(
        {"0": 0.15, "0.5": 0.35, "1": 0.55}
    )
    assert of(three, baseline="0.5", on=("correct",)).comparisons == 2
    (alone,) = of(on=("correct",)).verdicts[0].differences
    assert (alone.comparisons, alone.p_adjusted) == (1, alone.p_value)


TWO_KEYS = runs_of(
    *(configured(weight, seed, kl={"coef": coef}) for weight in (0.0, 0.5) for coef in (1, 2) for seed in (0, 1)),
    **{CORRECT: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9]},
)


def test_by_takes_any_suffix_of_a_key_and_a_baseline_any_spelling_of_its_number() -> None:
    without = of(TWO_KEYS)
    assert (without.verdicts, str(without.no_verdict)[:45]) == ([], "no verdict: 2 keys differ (weight, coef); --b")
    for word in ("weight", "rewards.brevity.weight", "brevity.weight"):
        for runs in (TWO_KEYS, FOUR):
            assert {one.key for one in of(runs, by=word).verdicts} == {"weight"}
    for typed, value in (("0.5", "0.5"), ("0.50", "0.5"), ("5e-1", "0.5"), ("0", "0")):
        assert {one.baseline for one in of(baseline=typed).verdicts} == {value}


@pytest.mark.parametrize(("count", "is_judged"), [(12, True), (13, False)])
def test_up_to_twelve_values_are_compared_pairwise(count: int, is_judged: bool) -> None:
    runs = runs_of(*by_weight(*(0.5 * step for step in range(count))), **{CORRECT: [0.1 * n for n in range(2 * count)]})
    found = of(runs)
    assert bool(found.verdicts) == is_judged
    assert is_judged or "--baseline" in str(found.no_verdict)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"on": ("corect",)}, ("--on", "corect", "correct")),
        ({"metrics": ("gradnorm",)}, ("--metrics", "gradnorm", "grad_norm")),
        ({"by": "wieght"}, ("--by", "wieght", "weight")),
        ({"by": "zzz"}, ("--by", "zzz", "--by weight")),
        ({"by": "seed"}, ("--by", "seed", "--by weight")),
        ({"baseline": "7"}, ("--baseline", "7", "--baseline 0")),
    ],
)
def test_unknown_metrics_keys_and_values_are_refused(asked: dict[str, object], expected: tuple[object, ...]) -> None:
    assert refused(**asked) == expected


def test_a_verdict_without_a_single_key_is_refused() -> None:
    for asked, where in (({"on": ("correct",)}, "--on"), ({"baseline": "0"}, "--baseline")):
        assert refused(TWO_KEYS, **asked) == (where, "weight, coef", "--by weight")
    same = runs_of(*(configured(0.0, seed) for seed in range(2)), **{CORRECT: [0.1, 0.2]})
    assert refused(same, on=("correct",)) == ("--on", "no key that differs", None)
    assert refused(same, by="weight") == ("--by", "weight", None)
    assert (of(same).verdicts, of(same).comparisons) == ([], 0)
    of_words = runs_of(*(configured(aggregate=how) for how in ("sum", "max")), **{CORRECT: [0.1, 0.2]})
    assert refused(of_words, baseline="sun") == ("--baseline", "sun", "sum")


def test_the_front_takes_three_components_or_the_typed_metrics() -> None:
    many = runs_of(*by_weight(0.0, 0.5), **{f"rewards/{name}/mean": [0.1, 0.2, 0.3, 0.4] for name in "abcd"})
    front = of(many).front
    assert (front.by, front.best) == (("a", "b", "c"), ("weight=0.5",))
    two = of(metrics=("kl", "brevity")).front
    assert (two.by, two.dominated) == (("kl", "brevity"), {"weight=0.5": "weight=0"})  # less KL and more brevity
    assert of(runs_of(*by_weight(0.0, 0.5), **{CORRECT: [0.1] * 4})).front is None  # of one measure there is none
    assert of(FOUR[:2]).front is None  # nor of one setting


def test_a_metric_is_reported_missing_only_if_other_seeds_have_it() -> None:
    runs = runs_of(*by_weight(0.0, 0.5), **{CORRECT: [0.1, 0.2, 0.3, 0.4]})
    third, fourth = (replace(run, metrics=in_memory("x", other=[1.0]).metrics) for run in runs[2:])
    assert not any("missing" in note for note in of([*runs[:2], third, fourth]).notes)
    assert f"correct is missing or null in {fourth.name}" in of([*runs[:3], fourth]).notes


@pytest.mark.parametrize(
    ("cells", "apart"),
    [
        ([(0.0, 10), (0.0, 20), (0.5, 10), (0.5, 20)], []),  # each weight under both numbers of steps
        ([(0.0, 10), (0.5, 10)], []),
        ([(0.0, 10), (0.0, 20), (0.5, 10)], ["steps"]),
        ([(0.0, 10), (0.5, 20)], []),  # one key stands for both
        ([(0.0, 10), (0.5, 20), (0.5, 10), (1.0, 20)], ["steps"]),
    ],
)
def test_conditions_that_are_not_crossed_with_the_other_keys(cells: list[tuple[float, int]], apart: list[str]) -> None:
    trainers = {steps: {"name": "grpo", "args": {"max_steps": steps}} for _, steps in cells}
    configs = [{**configured(weight, seed), "trainer": trainers[steps]} for weight, steps in cells for seed in (0, 1)]
    runs = runs_of(*configs, **{CORRECT: [0.1] * len(configs)})
    assert conditions_apart(group_over_seeds(runs)) == apart
    assert any("no front" in note for note in compare(runs).notes) == bool(apart)


def test_one_seed_has_neither_interval_nor_verdict(place: Path) -> None:
    found = compared(write_sweep(place / "sweep", {0.0: [0.5], 0.5: [0.9]}))
    assert found.estimates["weight=0"]["correct"].low is None
    assert found.verdicts == []
    assert "seed=0,1,2" in str(found.no_verdict)
    asked = compared(write_sweep(place / "again", {0.0: [0.5], 0.5: [0.9]}), on=("correct",))
    ((difference,),) = (verdict["differences"] for verdict in comparison_json(asked)["verdicts"])
    assert (difference["outcome"], difference["degrees"]) == ("impossible", 0)
    assert compared(write_sweep(place / "more", {0.0: [0.5, 0.6], 0.5: [0.9, 0.8], 1.0: [0.7]})).verdicts


def pair(*changes: dict[str, Any]) -> list[LoggedRun]:
    """Return runs that differ only in these dotted keys."""
    base = configured()
    return [
        in_memory(f"run {number}", settings={**dict(flat(base)), **one}, weights=weights_of(base))
        for number, one in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["rewards.a.weight"], ["rewards.a.weight"]),
        (["rewards.a.weight.start"], ["rewards.a.weight.start"]),
        (["primary"], ["primary"]),
        (["truncation.penalty", "aggregate", "primary"], ["aggregate", "truncation.penalty", "primary"]),
        (["rewards.a.weight", "rewards.a.clip"], ["rewards.a.weight"]),  # weights matter most
        ([f"rewards.{name}.weight" for name in "abcd"], [f"rewards.{name}.weight" for name in "abc"]),
        (["seed", "trainer.args.learning_rate", "rewards.a.args.seed"], None),
        ([], None),
    ],
)
def test_keys_that_make_totals_incomparable(keys: list[str], named: list[str] | None) -> None:
    found = why_no_total(pair(dict.fromkeys(keys, 1), dict.fromkeys(keys, 2)))
    assert re.findall(r"(?:rewards|truncation)[.\w]+|primary|aggregate", found or "") == (named or [])
    assert (found is None, "and more" in str(found)) == (named is None, len(keys) > 3)


def test_a_run_without_rewards_makes_no_total_comparable() -> None:
    one, other = pair({"aggregate": "sum"}, {"aggregate": "mine"})
    runs = [one, replace(other, weights={}, metrics=in_memory("x", reward=[1.0]).metrics)]
    plain = compare(runs)
    assert plain.no_total == why_no_total(runs) is not None
    asked = compare([replace(run, metrics=runs[1].metrics) for run in runs], ComparisonOptions(metrics=("reward",)))
    assert asked.no_total
    assert not any("no total" in text for text in (asked.no_total, *asked.notes))


def test_a_weight_that_is_not_given_is_1_and_three_names_are_few() -> None:
    given = {"a": {}, "b": {"weight": 2}, "c": {"weight": {"start": 0}}, "truncation": {}}
    weights = weights_of({"rewards": given})
    assert weights == {"a": 1.0, "b": 2.0, "c": None, "truncation": 1.0}
    assert reward_names([in_memory("x", weights=weights)]) == ["a", "b", "c"]
    assert [_few("abcde"[:number]) for number in (3, 4, 5)] == ["a, b, c", "a, b, c and 1 more", "a, b, c and 2 more"]


def test_rewards_with_other_scores_are_noted() -> None:
    def noted(*runs: LoggedRun) -> list[str]:
        return [note for note in compare(runs).notes if "not the same" in note]

    keys = ("environment", "args.at", "clip")
    one, other = pair(*({f"rewards.correct.{key}": by for key in (*keys, "gate", "weight")} for by in "xy"))
    (note,) = noted(one, other)
    assert re.findall(r"rewards[.\w]+", note) == [f"rewards.correct.{key}" for key in keys]
    assert noted(*pair({"rewards.brevity.weight": 1}, {"rewards.brevity.weight": 2})) == []
    assert noted(one, replace(other, weights={"brevity": 1.0})) == []  # the other run has no such reward


def sweep_of(weights: dict[float, list[float]], **facts: Any) -> list[LoggedRun]:
    """Return one run per number, its mean of `correct`, by the weight of `brevity`, which scores that weight."""
    cells = [(weight, seed) for weight, numbers in weights.items() for seed in range(len(numbers))]
    curves: dict[str, list[float]] = {
        CORRECT: [number for numbers in weights.values() for number in numbers],
        BREVITY: [weight for weight, _ in cells],
        "kl": [12.0 + weight + seed for weight, seed in cells],
    }
    return [replace(run, **facts) for run in runs_of(*(configured(*cell) for cell in cells), **curves)]


SIX = {0.0: [0.1, 0.2, 0.3], 0.5: [0.5, 0.62, 0.7]}
"""0.5 has 0.4, 0.42 and 0.4 more: mean 0.40667, s = 0.011547, half of 95 % of one comparison 4.30265 s / sqrt(3)."""


def test_as_json() -> None:
    problem = RunError("it is broken", where="runs/b")
    comparison = of(sweep_of(SIX), on=("correct",), baseline="0")
    found: dict[str, Any] = comparison_json(comparison, [problem])
    json.dumps(found)
    assert (found["window"], found["left_out"]) == ("last", [str(problem)])
    weight, seed = found["differs"]
    assert weight == {
        **{"key": "rewards.brevity.weight", "short": "weight", "keys": ["rewards.brevity.weight"]},
        "values": ["0", "0.5"],
    }
    assert (seed["key"], seed["values"]) == ("seed", ["0", "1", "2"])
    assert found["measures"][0] == {
        **{"label": "correct", "metric": CORRECT, "kind": "component", "direction": "more is better"}
    }
    assert [one["direction"] for one in found["measures"]] == ["more is better"] * 2 + ["less is better"]
    first, second = found["settings"]
    assert (first["name"], first["values"]) == ("weight=0", {"rewards.brevity.weight": "0"})
    assert second["seeds"] == {str(seed): f"weight=0.5,seed={seed}" for seed in range(3)}
    assert second["estimates"]["brevity"] == {"mean": 0.5, "low": None, "high": None, "count": 3}
    assert found["runs"][3] == {
        **{"name": "weight=0.5,seed=0", "place": "runs/3", "state": "finished", "step": 1, "max_steps": 1},
        **{"reason": None, "trainer": "grpo", "differs": {"rewards.brevity.weight": "0.5", "seed": "0"}},
        "values": {"correct": 0.5, "brevity": 0.5, "kl": 12.5},
    }
    (verdict,) = found["verdicts"]
    assert (verdict["measure"], verdict["direction"], verdict["by"]) == ("correct", "more is better", "weight")
    assert (verdict["baseline"], verdict["winner"], verdict["text"]) == ("0", "0.5", comparison.verdicts[0].text)
    assert verdict["values"]["0.5"]["mean"] == pytest.approx(0.60667, abs=1e-5)
    (difference,) = verdict["differences"]
    half = 4.30265 * 0.011547 / 3**0.5
    assert difference["difference"]["low"] == pytest.approx(0.406667 - half, abs=1e-5)
    assert (difference["degrees"], difference["seeds_needed"], difference["outcome"]) == (2, None, "better")
    assert json.loads(json.dumps(found["front"])) == {
        **{"by": ["correct", "brevity"], "best": ["weight=0.5"], "dominated": {"weight=0": "weight=0.5"}}
    }
    assert (found["total"], found["notes"], found["no_verdict"]) == (comparison.no_total, comparison.notes, None)


def test_missing_values_are_null() -> None:
    found: dict[str, Any] = comparison_json(of(sweep_of({0.0: [0.1]})))
    assert (found["front"], found["verdicts"], found["total"]) == (None, [], None)
    other = replace(sweep_of({0.5: [0.1]})[0], metrics=in_memory("x", other=[1.0]).metrics)
    both = of(named([*sweep_of({0.0: [0.1]}), other]))
    found = comparison_json(both)
    assert both.in_common == []
    assert found["runs"][1]["values"]["correct"] is None
    assert "weight=0.5" not in {*found["front"]["best"], *found["front"]["dominated"]}
