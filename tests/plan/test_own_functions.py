"""An aggregate and a teacher that do not fit are refused before a run; what makes advantages is a file of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.errors import ModelError, RewardError
from tests.support.model_copies import model_copy, tokenizer_json
from tests.support.planning import MINE, ROWS, Refused, Write, planned

TAUGHT = ("trainer=gkd", "data=file", "data.path=rows.jsonl", "teacher.path=teacher")
SAID = {"messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}


@pytest.mark.parametrize("takes", ["rewards, weights", "rewards, weights, more", "weights, scores", "rewards, **other"])
def test_an_aggregate_takes_rewards_and_weights(write: Write, refused: Refused, takes: str) -> None:
    write("agg.py", f"def f({takes}):\n    return [0.0]\n")
    words = ("exp=quickstart", "aggregate=./agg.py:f")
    if takes in ("rewards, weights", "rewards, **other"):
        assert planned(*words).files["aggregate"] == Path("agg.py").resolve()
        return
    error = refused(*words)
    assert (type(error), error.where) == (RewardError, "aggregate")
    assert "f(rewards, weights)" in str(error.expected)


def test_a_column_that_hides_a_default_gives_a_notice(write: Write) -> None:
    """Of three optional arguments, a and b are columns of the rows; b has no default worth the name."""
    write("rows.jsonl", ROWS)
    write("mine.py", "def f(completions, a=0.5, b=None, c=1, **columns):\n    return [1.0 for _ in completions]\n")
    words = (*MINE, "rewards.f.fn=./mine.py:f")
    (text,) = [notice.text for notice in planned(*words).notices if notice.subject == "rewards"]
    assert "rewards.f.args.a=0.5" in text
    assert not [notice for notice in planned(*words, "rewards.f.args.a=2").notices if notice.subject == "rewards"]


def test_the_file_of_a_function_for_advantages_is_one_of_the_run(write: Write) -> None:
    write("mine.py", "def f(totals, groups):\n    return totals - totals.mean()\n")
    plan = planned("exp=quickstart", "advantages.fn=./mine.py:f")
    assert plan.files["advantages"] == Path("mine.py").resolve()


def test_a_teacher_of_other_tokens(place: Path, write: Write, refused: Refused) -> None:
    write("rows.jsonl", (json.dumps(SAID) + "\n") * 40)
    (model_copy(place / "teacher") / "tokenizer.json").write_text(tokenizer_json(["<unk>", "<eos>", "a"]))
    error = refused(*TAUGHT)
    assert (type(error), error.where) == (ModelError, "teacher.path (command line)")
    assert "for the teacher" in str(error.got)
    assert str(error.expected).startswith("one tokenizer")


def test_a_folder_of_a_teacher_has_no_revisions(place: Path, write: Write, refused: Refused) -> None:
    write("rows.jsonl", (json.dumps(SAID) + "\n") * 40)
    model_copy(place / "teacher")
    assert refused(*TAUGHT, "teacher.revision=v2").hint == "teacher.revision=null"


def test_a_teacher_with_another_number_of_tokens(place: Path, write: Write, refused: Refused) -> None:
    """Some rows of a model's embedding belong to no token: 320 instead of 258, with the same tokenizer."""
    write("rows.jsonl", (json.dumps(SAID) + "\n") * 40)
    model_copy(place / "teacher", config={"vocab_size": 320})
    error = refused(*TAUGHT)
    assert (type(error), error.where) == (ModelError, "teacher.path (command line)")
    assert error.got == "vocab_size 320 for the teacher, 258 for the policy"
    assert "trainer that cuts or pads" in str(error.expected)
    assert error.hint == "trainer=gold"
