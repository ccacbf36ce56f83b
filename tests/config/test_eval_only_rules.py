"""`rewards.NAME.when: eval`: what cannot read a reward that training does not compute, and the section `teacher`."""

from __future__ import annotations

import pytest

from tests.support.planning import Judged, Refused

QUICK = ("exp=quickstart", "expect=null")
WATCHES = "rewards.format.when=eval"


def test_it_has_no_weight(judged: Judged) -> None:
    assert judged(*QUICK, "~rewards.format.weight", WATCHES).rewards["format"].weight == 0.0


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["rewards.format.weight=0.5"], "rewards.format"),
        (["rewards.format.weight=0", "rewards.correct.gate={by: format, at_least: 1}"], "rewards.correct.gate.by"),
        (["rewards.format.weight=0", "primary={by: format, at_least: 1}"], "primary.by"),
        (["rewards.format.weight=0", "stop.when='format > 0.5'"], "stop.when"),
        (["rewards.format.weight=0", "sampling.keep_groups.by=format"], "sampling.keep_groups.by"),
    ],
)
def test_refused(refused: Refused, words: list[str], where: str) -> None:
    assert str(refused(*QUICK, WATCHES, *words).where).startswith(where)


def test_a_gate_of_another_that_only_watches(judged: Judged) -> None:
    words = ["rewards.brevity.when=eval", "rewards.brevity.weight=0", "rewards.format.weight=0"]
    assert judged(*QUICK, WATCHES, *words, "rewards.brevity.gate={by: format, at_least: 1}")


def test_a_run_learns_from_some_reward(refused: Refused) -> None:
    every = [
        f"rewards.{name}.{word}" for name in ("correct", "format", "brevity") for word in ("when=eval", "weight=0")
    ]
    assert refused(*QUICK, *every).where == "rewards.correct.when (command line)"


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        (["trainer=distillation"], "teacher", "teacher.path=FOLDER_OR_HUB_ID"),
        (["trainer=sft", "teacher.path=here"], "teacher (command line)", "trainer=distillation, or ~teacher"),
        (["trainer.trl=A2POTrainer"], "trainer.trl (command line)", "rlhf list trainer"),
        (["trainer=online_dpo"], "command line", "rlhf list trainer"),
    ],
)
def test_a_teacher_belongs_to_a_trainer(refused: Refused, words: list[str], where: str, hint: str) -> None:
    error = refused(*words)
    assert (error.where, error.hint) == (where, hint)
