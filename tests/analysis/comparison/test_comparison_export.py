"""The JSON output of a comparison, field by field, against the logged values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare, comparison_json
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, named
from rlhf_cli.errors import RunError
from tests.support.logged_runs import configured, in_memory, runs_of

CORRECT, BREVITY = "rewards/correct/mean", "rewards/brevity/mean"


def sweep_of(weights: dict[float, list[float]], **facts: Any) -> list[LoggedRun]:
    """Return one run per number, its mean of `correct`, by the weight of `brevity`, which scores that weight."""
    cells = [(weight, seed) for weight, numbers in weights.items() for seed in range(len(numbers))]
    curves: dict[str, list[float]] = {
        CORRECT: [number for numbers in weights.values() for number in numbers],
        BREVITY: [weight for weight, _ in cells],
        "kl": [12.0 + weight + seed for weight, seed in cells],
    }
    return [replace(run, **facts) for run in runs_of(*(configured(*cell) for cell in cells), **curves)]


FOUR = {0.0: [0.1, 0.2, 0.3], 0.5: [0.5, 0.62, 0.7]}
"""0.5 has 0.4, 0.42 and 0.4 more: mean 0.40667, s = 0.011547, half of 95 % of one comparison 4.30265 s / sqrt(3)."""


def of(runs: list[LoggedRun] | None = None, **asked: Any) -> Comparison:
    return compare(runs or sweep_of(FOUR), ComparisonOptions(**asked))


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
    assert (difference["low"] if "low" in difference else difference["difference"]["low"]) == pytest.approx(
        0.406667 - half, abs=1e-5
    )
    assert (difference["degrees"], difference["seeds_needed"], difference["outcome"]) == (2, None, "better")
    assert json.loads(json.dumps(found["front"])) == {
        **{"by": ["correct", "brevity"], "best": ["weight=0.5"], "dominated": {"weight=0": "weight=0.5"}}
    }
    assert found["total"] == comparison.no_total
    assert (found["notes"], found["no_verdict"]) == (comparison.notes, None)


def test_missing_values_are_null() -> None:
    found: dict[str, Any] = comparison_json(of(sweep_of({0.0: [0.1]})))
    assert (found["front"], found["verdicts"], found["total"]) == (None, [], None)
    other = replace(sweep_of({0.5: [0.1]})[0], metrics=in_memory("x", other=[1.0]).metrics)
    found = comparison_json(of(named([*sweep_of({0.0: [0.1]}), other])))
    assert found["runs"][1]["values"]["correct"] is None
    assert "weight=0.5" not in {*found["front"]["best"], *found["front"]["dominated"]}
