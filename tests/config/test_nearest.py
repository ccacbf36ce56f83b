"""Test the suggested key or value against the one that each mistake was made from."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field

from rlhf_cli.config.suggestions import meant_value
from tests.support.planning import Judged, Refused, Write

pytestmark = pytest.mark.usefixtures("place")


class Sample(BaseModel):
    """A field of every kind that a configuration has."""

    count: int = Field(default=1, gt=0)
    share: float = Field(default=0.5, ge=0, le=1)
    wait_s: float | Literal["off"] = 1.0
    mem_gb: float | None = None
    switch: bool = False
    word: Literal["steps", "epoch"] = "steps"
    names: list[str] = Field(default_factory=list)
    on_error: float | Literal["raise", "exclude"] = "raise"


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("count", "7", "count=7"),
        ("count", -7, "count=1"),  # the default: a sign is never flipped
        ("share", -0.2, "share=0.5"),
        ("count", 0, "count=1"),
        ("switch", "yes", "switch=true"),
        ("switch", 0, "switch=false"),
        ("word", "epohc", "word=epoch"),
        ("names", "one", "names=[one]"),
        # no accepted value is near
        ("count", "many", None),
        ("word", "wombat", None),
        ("mem_gb", "64 bananas", None),
        ("share", float("nan"), None),
    ],
)
def test_the_suggested_value_is_the_one_that_was_meant(name: str, given: object, meant: str | None) -> None:
    assert meant_value(name, Sample.model_fields[name], given) == meant


MINE = "# @package _global_\n# mine\ndefaults:\n  - /reward@rewards.short: brevity\n  - _self_\n"
"""Five lines: what a test adds begins at line 6."""


def mine(write: Write, text: str) -> None:
    write("conf/exp/mine.yaml", MINE + text)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("run.name=a/b", "run.name=a-b"),
        ("trainer.args.learning_rate=fast", "trainer.args.learning_rate=1e-06"),
        ("trainer.args.max_tokens=64", "trainer.args.max_completion_length"),
        ("aggregate=normalise_then_sum", "aggregate=normalize_then_sum"),
        ("model.path=Some/Model-0.5B", "model=local model.path=Some/Model-0.5B"),
        ("data.path=mine.jsonl", "data=file data.path=mine.jsonl"),
        ("model=run:quickstart", "model=local model.path=run:quickstart"),
        ("data=some/rows.jsonl", "data=file data.path=some/rows.jsonl"),
    ],
)
def test_names_and_values_of_other_tools_get_ours(refused: Refused, typed: str, hint: str) -> None:
    assert refused("exp=quickstart", typed).hint == hint


@pytest.mark.parametrize(
    ("text", "hint", "line"),
    [
        ("trainer.args.max_steps: 3\n", "trainer: {args: {max_steps: VALUE}}", 6),
        ("trainer:\n  args.max_steps: 3\n", "args: {max_steps: VALUE}", 7),
    ],
)
def test_a_key_with_dots_in_a_file_must_be_nested(
    write: Write, refused: Refused, text: str, hint: str, line: int
) -> None:
    mine(write, text)
    error = refused("exp=mine")
    assert str(error.where).endswith(f"(conf/exp/mine.yaml:{line})")
    assert error.hint == hint


def test_null_for_a_ready_made_section_in_a_file(write: Write, refused: Refused, judged: Judged) -> None:
    mine(write, "track: null\n")
    error = refused("exp=mine")
    assert error.hint == "- override /track: none"
    write("conf/exp/mine.yaml", MINE.replace("_self_\n", f"_self_\n  {error.hint}\n"))
    assert judged("exp=mine").track.mode == "none"


def test_a_key_twice_in_a_file(write: Write, refused: Refused) -> None:
    mine(write, "seed: 1\nseed: 2\n")
    error = refused("exp=mine")
    assert (error.got, error.expected) == ("found duplicate key seed", "each key once")
