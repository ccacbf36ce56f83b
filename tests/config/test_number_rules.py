"""No number of a configuration is NaN or infinite.

Every field of the schema and of TRL's is tried: the tests walk the annotations of the sections and of TRL's
dataclasses (which test_trl_args_contract.py holds against those that Python imports).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.validate import _wrong_leaves
from rlhf_cli.errors import Problems
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.returned_scores import LARGEST

pytestmark = pytest.mark.usefixtures("place")

BAD = (float("nan"), float("inf"), float("-inf"), 1e39, 10**400)


def numeric_fields(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every path of the schema at which some number may stand: fields, entries of dicts, of lists and of tuples."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from numeric_fields(field.annotation, (*path, field.alias or name))
        return
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        for arm in inside:
            yield from numeric_fields(arm, path)
    elif origin is dict:
        yield from numeric_fields(inside[1], (*path, "NAME"))
    elif origin in (list, tuple):
        yield from numeric_fields(inside[0], (*path, "0"))
    elif kind in (int, float, Any):
        yield path


def tree_of(path: tuple[str, ...], value: object) -> Any:
    """The smallest tree with `value` at `path`."""
    for name in reversed(path):
        value = [value] if name == "0" else {name: value}
    return value


def complaints(tree: dict[str, Any]) -> list[str]:
    return [str(problem.where) for problem in _wrong_leaves(Composed(tree, {}, Origins(), ()))]


@pytest.mark.fault(33)
def test_every_number_of_the_schema() -> None:
    fields = sorted(set(numeric_fields(Experiment)))
    assert len(fields) >= 60
    assert {("rewards", "NAME", "weight", "end"), ("kl", "coef"), ("rewards", "NAME", "gate", "0", "at_least")} < {
        *fields
    }
    let_through = [
        (path, value)
        for path in fields
        for value in BAD
        if complaints(tree_of(path, value)) != [".".join(path)]
        # Arguments of TRL's are tried below: here the tree names no trainer.
    ]
    assert let_through == []
    assert [path for path in fields for fine in (0.0, -1.5, 3, LARGEST) if complaints(tree_of(path, fine))] == []


def test_in_a_file_all_at_once(write: Callable[[str, str], Path]) -> None:
    lines = ("critic: {learning_rate: .nan, value_clip: .inf}", "kl: {coef: 1.0e+400}", "truncation: {penalty: -.inf}")
    write("conf/exp/mine.yaml", "\n".join(["# @package _global_", "defaults: [toy_ppo, _self_]", *lines]) + "\n")
    with pytest.raises(Problems) as caught:
        prepare(["exp=mine", "trainer.args.gamma=nan"], keep_run_names=True)
    assert {problem.where for problem in caught.value.problems} == {
        "trainer.args.gamma (command line)",
        "critic.learning_rate (conf/exp/mine.yaml:3)",
        "critic.value_clip (conf/exp/mine.yaml:3)",
        "kl.coef (conf/exp/mine.yaml:4)",
        "truncation.penalty (conf/exp/mine.yaml:5)",
    }
