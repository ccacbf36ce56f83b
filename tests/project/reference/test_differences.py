"""Where two configurations differ, and what in one of them is not default."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_cli.config.origins import Origin, Origins
from rlhf_cli.project.reference.differences import Side, differences, only_sections, unlike_default
from rlhf_cli.text.json_values import JsonTree

HERE: JsonTree = {"seed": 0, "run": {"name": None}, "rewards": {"a": {"fn": "./r.py:f", "weight": 1.0}}, "critic": None}


def side(tree: JsonTree, *, is_run: bool = False, **lines: int) -> Side:
    origins = Origins({key.replace("__", "."): Origin(Path("x.yaml"), line) for key, line in lines.items()})
    return Side("a side", tree, origins, is_run)


def found(there: JsonTree, *, is_run: bool = False, **lines: int) -> dict[str, tuple[object, object]]:
    other = side(there, is_run=is_run, **lines)
    return {one.key: (one.here.value, one.there.value) for one in differences(side(HERE), other)}


def test_a_value_and_where_it_comes_from() -> None:
    there: JsonTree = {**HERE, "seed": 3}
    (one,) = differences(side(HERE), side(there, seed=7))
    assert (one.key, one.here.value, one.here.origin, one.there.value, one.there.origin) == (
        "seed",
        0,
        "",
        3,
        "x.yaml:7",
    )


def test_a_section_that_one_side_has_is_one_difference_without_what_is_default_in_it() -> None:
    there: JsonTree = {**HERE, "critic": {"init": "policy", "learning_rate": 0.5}, "rewards": {}}
    assert found(there) == {
        "rewards.a": ({"fn": "./r.py:f"}, None),
        "critic": (None, {"learning_rate": 0.5}),
    }


def test_a_path_that_freezing_made_absolute_is_the_same_and_another_is_not() -> None:
    def with_fn(fn: str) -> JsonTree:
        return {**HERE, "rewards": {"a": {"fn": fn, "weight": 1.0}}}

    assert found(with_fn(os.path.abspath("r.py") + ":f")) == {}
    assert list(found(with_fn(os.path.abspath("r.py") + ":g"))) == ["rewards.a.fn"]
    assert list(found(with_fn("/elsewhere/r.py:f"))) == ["rewards.a.fn"]


def test_the_name_of_a_run_is_no_difference_and_that_of_an_experiment_is() -> None:
    there: JsonTree = {**HERE, "run": {"name": "one"}}
    assert found(there, is_run=True) == {}
    assert list(found(there)) == ["run.name"]


def test_only_sections() -> None:
    assert only_sections(HERE, ["rewards.a.weight", "seed"]) == {"seed": 0, "rewards": {"a": {"weight": 1.0}}}
    assert only_sections(HERE, []) == HERE


def test_what_is_default_goes_and_what_is_not_stays() -> None:
    """conf/train.yaml says seed 0, guards.no_signal 5; the schema says weight 1.0, critic.value_clip 0.2."""
    tree: JsonTree = {
        "seed": 1,
        "guards": {"no_signal": 5, "error_window": 7},
        "rewards": {"a": {"fn": "m:f", "weight": 1.0, "clip": [0, 1], "gate": None}},
        "critic": {"value_clip": 0.2, "dropout": 0.1},
        "track": {"mode": "offline"},
    }
    assert unlike_default(tree) == {
        "seed": 1,
        "guards": {"error_window": 7},
        "rewards": {"a": {"fn": "m:f", "clip": [0, 1]}},
        "critic": {"dropout": 0.1},
    }
