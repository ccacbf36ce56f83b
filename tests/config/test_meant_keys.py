"""What people call a setting, or how they write it, leads to the key that it has: what each word means is by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.jobs.prepare import prepare

pytestmark = pytest.mark.usefixtures("place")
Write = Callable[[str, str], Path]
Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]

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
        ("wandb.project=mine", "track.project"),
        ("tensorboard.notes=mine", "track.notes"),
        ("rewards.brevity.gate={by: correct, min: 1}", "rewards.brevity.gate.at_least"),
        ("rewards.brevity.gate={by: correct, max: 1}", "rewards.brevity.gate.at_most"),
        ("aggregate=normalise_then_sum", "aggregate=normalize_then_sum"),
        ("rewards.brevity.fn=exact_mach", "reward@rewards.brevity=exact_match"),
        ("model.path=Some/Model-0.5B", "model=local model.path=Some/Model-0.5B"),
        ("model=Some/Model-0.5B", "model=local model.path=Some/Model-0.5B"),
        ("model=run:quickstart", "model=local model.path=run:quickstart"),
        ("model=zzzzzzzz", "rlhf list model"),
        ("data=some/rows.jsonl", "data=file data.path=some/rows.jsonl"),
    ],
)
def test_what_people_call_it(refused: Refused, typed: str, hint: str) -> None:
    assert refused("exp=quickstart", typed).hint == hint


def test_a_schedule_in_other_words_is_told_once_a_key() -> None:
    with pytest.raises(Problems) as caught:
        prepare(["exp=quickstart", "rewards.brevity.weight={from: 0, to: 1, steps: 10}"], keep_run_names=True)
    assert [(str(one.where).partition(" ")[0], one.hint) for one in caught.value.problems] == [
        ("rewards.brevity.weight.from", "rewards.brevity.weight.start"),
        ("rewards.brevity.weight.to", "rewards.brevity.weight.end"),
    ]


@pytest.mark.parametrize(
    ("text", "hint", "line"),
    [
        ("trainer.args.max_steps: 3\n", "trainer: {args: {max_steps: 3}}", 6),
        ("trainer:\n  args.max_steps: 3\n", "args: {max_steps: 3}", 7),
        ("rewards:\n  short: {gate.by: x}\n", "gate: {by: x}", 7),
        ("run.name: a\n", "run: {name: a}", 6),
    ],
)
def test_a_key_with_dots_in_a_file_is_to_be_nested(
    write: Write, refused: Refused, judged: Judged, text: str, hint: str, line: int
) -> None:
    mine(write, text)
    error = refused("exp=mine")
    assert "one key with dots in it" in error.what
    assert str(error.where).endswith(f"(conf/exp/mine.yaml:{line})")
    assert error.hint == hint
    if line == 6:
        mine(write, f"{hint}\n")
        judged("exp=mine")


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
