"""No number of a configuration is NaN, infinite or written in another base than ten.

Every field of the schema and of TRL's is tried: the tests walk the annotations of the sections and of TRL's
dataclasses (which test_trl_args_contract.py holds against those that Python imports). YAML 1.1 reads 12:30:45 in base
60 and 017 in base 8.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from rlhf_cli.config.compose import Composed, compose
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.validate import _wrong_leaves, validate
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.returned_scores import LARGEST
from tests.support.planning import Write

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
    for name in reversed(path):
        value = [value] if name == "0" else {name: value}
    return value


def complaints(tree: dict[str, Any]) -> list[str]:
    return [str(problem.where) for problem in _wrong_leaves(Composed(tree, {}, Origins(), ()))]


@pytest.mark.fault(33)
def test_every_number_of_the_schema() -> None:
    """Arguments of TRL's are tried below: here the tree names no trainer."""
    fields = sorted(set(numeric_fields(Experiment)))
    assert len(fields) >= 60
    some = {("rewards", "NAME", "weight", "end"), ("kl", "coef"), ("rewards", "NAME", "gate", "0", "at_least")}
    assert some < {*fields}
    tried = [(path, value) for path in fields for value in BAD]
    assert [one for one in tried if complaints(tree_of(*one)) != [".".join(one[0])]] == []
    assert [path for path in fields for fine in (0.0, -1.5, 3, LARGEST) if complaints(tree_of(path, fine))] == []


def test_in_a_file_all_at_once(write: Write) -> None:
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


def problems_of(write: Write, lines: str, *typed: str) -> list[ConfigError]:
    write("conf/exp/odd.yaml", "# @package _global_\n# odd\n" + lines)
    try:
        validate(compose(["+exp=odd", *typed]))
    except (Problems, ConfigError) as error:
        found = error.problems if isinstance(error, Problems) else [error]
        return [error for error in found if "YAML reads" in str(error.got)]
    return []


@pytest.mark.parametrize(
    ("lines", "key", "line", "hint"),
    [
        ("seed: 12:30:45", "seed", 3, "seed=123045"),
        ("run:\n  name: 007", "run.name", 4, "'run.name=\"007\"'"),
        ("trainer:\n  args:\n    max_steps: 1:30", "trainer.args.max_steps", 5, "trainer.args.max_steps=130"),
        ("data:\n  args: {num_rows: 010}", "data.args.num_rows", 4, "data.args.num_rows=10"),
        ("rewards:\n  brevity:\n    clip: [0, 1:30]", "rewards.brevity.clip", 5, None),
    ],
)
def test_a_number_in_another_base_is_refused(write: Write, lines: str, key: str, line: int, hint: str | None) -> None:
    (error,) = problems_of(write, lines)
    assert (error.where, error.hint) == (f"{key} (conf/exp/odd.yaml:{line})", hint)
    if key == "seed":
        assert problems_of(write, lines, "seed=3") == []


@pytest.mark.parametrize("written", ["12", "0", "0x1F", "1_000", "-3", "'12:30:45'"])
def test_negative_control_other_numbers(write: Write, written: str) -> None:
    assert problems_of(write, f"seed: {written}") == []
