"""The JSON output of a comparison, field by field, against the logged values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare, comparison_json
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, flat, named, weights_of
from rlhf_cli.analysis.comparison.verdicts import in_words
from rlhf_cli.errors import RunError
from tests.support.logged_runs import configured, in_memory

CORRECT, BREVITY = "rewards/correct/mean", "rewards/brevity/mean"


def runs_of(weights: dict[float, list[float]], **named_values: Any) -> list[LoggedRun]:
    """A run a number, the mean of `correct`, by the weight of `brevity`; that has 0.5 at the weight 0.5, else 0."""
    found = []
    for weight, numbers in weights.items():
        for seed, number in enumerate(numbers):
            config = configured(weight, seed)
            curves = {CORRECT: [number], BREVITY: [0.5 if weight == 0.5 else 0.0], "kl": [12.0 + weight + seed]}
            run = in_memory("x", settings=dict(flat(config)), weights=weights_of(config), **curves)
            found.append(replace(run, place=f"runs/{weight}-{seed}", **named_values))
    return named(found)


FOUR = {0.0: [0.1, 0.2, 0.3], 0.5: [0.5, 0.62, 0.7]}
"""0.5 has 0.4, 0.42 and 0.4 more: mean 0.40667, s = 0.011547, half of 95 % of one comparison 4.30265 s / sqrt(3)."""


def of(runs: list[LoggedRun] | None = None, **asked: Any) -> Comparison:
    return compare(runs or runs_of(FOUR), ComparisonOptions(**asked))


def test_as_json() -> None:
    problem = RunError("it is broken", where="runs/b")
    comparison = of(on=("correct",), baseline="0")
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
        **{"name": "weight=0.5,seed=0", "place": "runs/0.5-0", "state": "finished", "step": 1, "max_steps": 1},
        **{"reason": None, "trainer": "grpo", "differs": {"rewards.brevity.weight": "0.5", "seed": "0"}},
        "values": {"correct": 0.5, "brevity": 0.5, "kl": 12.5},
    }
    (verdict,) = found["verdicts"]
    assert (verdict["measure"], verdict["direction"], verdict["by"]) == ("correct", "more is better", "weight")
    assert (verdict["baseline"], verdict["winner"], verdict["text"]) == ("0", "0.5", comparison.verdicts[0].text)
    assert verdict["values"]["0.5"]["mean"] == pytest.approx(0.60667, abs=1e-5)
    (difference,) = verdict["differences"]
    half = 4.30265 * 0.011547 / 3**0.5
    assert (difference["low"] if "low" in difference else difference["difference"]["low"]) == pytest.approx(
        0.406667 - half, abs=1e-5
    )
    assert (difference["degrees"], difference["seeds_needed"], difference["outcome"]) == (2, None, "better")
    assert json.loads(json.dumps(found["front"])) == {
        **{"by": ["correct", "brevity"], "best": ["weight=0.5"], "dominated": {"weight=0": "weight=0.5"}}
    }
    assert str(found["total"]).startswith("no total: rewards.brevity.weight differs")
    assert (found["notes"], found["no_verdict"]) == (comparison.notes, None)


def test_what_is_not_there_is_null() -> None:
    found: dict[str, Any] = comparison_json(of(runs_of({0.0: [0.1]})))
    assert (found["front"], found["verdicts"], found["total"]) == (None, [], None)
    other = replace(runs_of({0.5: [0.1]})[0], metrics=in_memory("x", other=[1.0]).metrics)
    found = comparison_json(of(named([*runs_of({0.0: [0.1]}), other])))
    assert found["runs"][1]["values"]["correct"] is None
    assert "weight=0.5" not in {*found["front"]["best"], *found["front"]["dominated"]}


EQUALS = "all else equal, and it takes two or more."
SAID = {
    # Of four seeds t is 3.18245, and the deviations of the three differences are 0.00816, 0.01 and 0.00577.
    "one, two": (
        {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.5, 0.61, 0.7, 0.79], "c": [0.9, 1.02, 1.1, 1.2]},
        "b beats a on m by 0.400 [0.387, 0.413] (4 seeds). "
        "c beats a on m by 0.805 [0.789, 0.821] and b by 0.4050 [0.3958, 0.4142] (4 seeds).",
    ),
    "less": ({"a": [0.1, 0.2, 0.3], "b": [0.5, 0.61, 0.7]}, "a beats b on m (less is better) by 0.40"),
    "none": ({"a": [0.1, 0.2, 0.3], "b": [0.2, 0.1, 0.31]}, "No clear difference in m between a and b (3 seeds)."),
    "none of three": (
        {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.1, 0.31], "c": [0.3, 0.12, 0.2]},
        "No clear difference in m between a, b and c (3 seeds).",
    ),
    "two pairs of three": (
        {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.1, 0.31], "c": [0.2, 0.301, 0.4]},
        "] (3 seeds). No clear difference in m between a and b nor between b and c (3 seeds). About",
    ),
    "nearly": (
        {"a": [0.1, 0.2, 0.3], "b": [0.11, 0.22, 0.31]},
        "No clear difference in m between a and b (3 seeds). "
        "About 1 more seed would separate a from b (b - a: +0.013 [-0.001, +0.028]); rough estimate.",
    ),
    "hopeless": (
        {"a": [0.1] * 4, "b": [0.0, 0.2, 0.0, 0.20001]},
        "No clear difference in m between a and b (4 seeds). "
        "Even 1000 seeds would not separate a from b (b - a: +0.00 [-0.18, +0.18]).",
    ),
    "equal": ({"a": [0.1, 0.2], "b": [0.1, 0.2]}, "b and a are equal on m in every seed."),
    "shifted": ({"a": [0.25, 0.5], "b": [0.5, 0.75]}, "No interval for a and b: they differ on m by the same in every"),
    "one seed": ({"a": [0.25], "b": [0.5]}, f"No verdict on m for a and b: they have one seed in common, {EQUALS}"),
    "no seed": ({"a": [], "b": [0.5]}, f"No verdict on m for a and b: they have no seed in common, {EQUALS}"),
    "three": (
        {"a": [0.1], "b": [0.2], "c": [0.3]},
        "No verdict on m for a and b, a and c, b and c: they have one seed",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_verdict_in_words(name: str) -> None:
    from rlhf_cli.analysis.comparison.measures import RunMeasure
    from rlhf_cli.analysis.comparison.verdicts import paired_difference, pairs_of

    arms, said = SAID[name]
    values = {one: {str(seed): number for seed, number in enumerate(numbers)} for one, numbers in arms.items()}
    sign = -1 if name == "less" else 1
    pairs = [paired_difference(values, *pair, sign=sign, comparisons=1) for pair in pairs_of(list(arms), None)]
    text = in_words(RunMeasure("m", "m", "component", sign), pairs)
    assert said in text if said.startswith("]") else text.startswith(said)
