"""A comparison on a screen: readable at any width, nothing cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import ComparisonOptions, compare
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.display.comparison_tables import number_texts, show_comparison
from rlhf_cli.text.json_values import section
from tests.support.logged_runs import configured, write_run, write_sweep
from tests.support.terminal import printed

LONG = {f"rewards/a_reward_of_a_long_name_{number}/mean": [0.5] for number in range(6)}


def shown(folders, width: int = 80, *, each_run: bool = False, **asked: object) -> list[str]:
    comparison = compare(read_runs(folders)[0], ComparisonOptions(**asked))  # type: ignore[arg-type]
    return printed(lambda console: show_comparison(console, comparison, each_run=each_run), width)


def test_a_sweep(place: Path) -> None:
    """t(2) is 4.3027: times 0.1, 0.09539 and, of the differences, 0.01 over sqrt(3). What is equal does not count."""
    folders = write_sweep(place / "sweep", {0.0: [0.50, 0.60, 0.70], 0.5: [0.54, 0.65, 0.73]})
    lines = shown(folders)
    assert lines[:8] == [
        "sweep: 6 runs, 2 settings",
        "rewards.brevity.weight  0, 0.5",
        "seed                    0, 1, 2",
        "",
        "   weight  seeds        correct",
        "○       0      3  0.600 ± 0.248",
        "●     0.5      3  0.640 ± 0.237",
        "equal in all runs: brevity 0.500",
    ]
    assert lines[9] == "verdict on weight"
    assert lines[10] == "- 0.5 beats 0 on correct by 0.040 [0.015, 0.065] (3 seeds)."


@pytest.mark.parametrize("width", [50, 140])
def test_at_any_width_nothing_is_cut(place: Path, width: int) -> None:
    """`printed` asserts that no line is longer; every name and number has to be there, in blocks of columns."""
    ends = {name: [0.123, 0.456] for name in LONG}
    of_runs = ((0.0, LONG), (0.5, LONG), (0.1, ends))
    folders = [write_run(place / f"{weight}", configured(weight, 0), curves) for weight, curves in of_runs]
    text = "\n".join(shown(folders, width, each_run=True))
    assert all(text.count(name.split("/")[1]) >= 2 for name in LONG)
    assert (text.count("0.456") >= 12, "…" in text) == (True, False)


def test_other_weights_under_the_same_name_are_noted(place: Path) -> None:
    """A warm start on another machine, a branch that moved on the hub: nothing in the configurations shows it."""
    runs = []
    for seed, name in enumerate("ab"):
        weights: dict[str, Any] = {"starting_model": {"weights_sha256": name * 64}}
        runs.append(write_run(place / name, configured(0.0, seed), {"reward": [0.5]}, provenance=weights))
    said = " ".join(" ".join(shown(runs)).split())
    assert "(aaaaaaaaaaaa in seed=0; bbbbbbbbbbbb in seed=1)" in said


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        *(([0.5, 0.25], ["0.500", "0.250"]), ([12.3456, 1.0], ["12.35", "1.00"])),
        *(([1234.5, float("nan")], ["1234", "-"]), ([0.00123], ["0.00123"]), ([0.0], ["0.000"])),
    ],
)
def test_as_many_decimals_as_the_column_needs(numbers: list[float], texts: list[str]) -> None:
    assert number_texts(numbers) == texts


def test_a_reward_of_one_run_is_one_line_and_unlogged_measures_have_no_column(place: Path) -> None:
    """Its keys were rows of the table of differences, and its column held dashes."""
    judge = {"fn": "./judge.py:Judge", "weight": 0.5, "args": {"model": "m"}, "clip": None, "gate": None}
    folders = []
    for name, more in {"plain": {}, "judged": {"judge": judge}}.items():
        config = configured()
        config["rewards"] = {**section(config, "rewards"), **more}
        curves = {"rewards/correct/mean": [0.25 + len(more)], "rewards/judge/mean": [None]}
        folders.append(write_run(place / name, config, curves))
    lines = shown(folders, 100, each_run=True)
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("rewards.judge")] == ["only in judge=yes"]
    assert not any("judge.py" in line for line in lines)
    heads = [line.split() for line in lines if "correct" in line.split() and "verdict" not in line]
    assert heads
    assert not any({"brevity", "length"} & set(head) for head in heads)
