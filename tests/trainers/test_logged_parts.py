"""What a run writes: each part's reward and advantage in the table, its log.txt, and nothing on the screen."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from rlhf_cli.analysis.whatif_request import read_rounds
from rlhf_cli.cli import main
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers import reward_mixin
from rlhf_cli.trainers.checkpoint_mixin import _is_plain
from rlhf_cli.trainers.reward_mixin import make_columns_storable, parts_as_json, rewards_with_parts
from tests.analysis.whatif.whatif_runs import BASE, ROWS, begin, table
from tests.support.small_runs import SMALL
from tests.support.tolerances import ARITHMETIC
from tests.trainers.test_turns import rounds

pytestmark = pytest.mark.whole

HALVES = """
def halves(completions, **kwargs):
    scores = []
    for place, text in enumerate(completions):
        middle = len(text) // 2
        spans = [(0, middle, -1.0), (middle, len(text), 1.0 + place)] if middle else 0.5
        scores.append(spans)
    return scores
"""


@pytest.mark.parametrize("trainer", [["trainer.dense=true"], ["trainer=ppo", "trainer.args.num_generations=1"]])
def test_spans_with_text_reward_and_advantage(train, workplace: Any, says, before_training, trainer: list[str]) -> None:
    """A part's advantage is the mean of those of its tokens, which are captured where the trainer makes them.

    The tokens of the byte-level model are bytes, so the tokens of a span of ASCII text are its characters.
    """
    tokenizer = byte_tokenizer(64)
    says(*([*tokenizer.encode(text), tokenizer.eos_token_id] for text in ("12", "abc", "x", "hello", "a b")))
    (workplace / "mine.py").write_text(HALVES)
    found = rounds(before_training)
    words = ["rewards.halves.fn=./mine.py:halves", "trainer.args.max_steps=1", "trainer.args.max_completion_length=6"]
    code, folder = train(*trainer, *words)
    assert code == 0
    (file,) = folder.path.glob("completions/*.parquet")
    rows, seen = pyarrow.parquet.read_table(file).to_pylist(), 0
    for place, (row, of_tokens) in enumerate(zip(rows, found[0]["advantages"], strict=True)):
        text, parts = row["completion"], json.loads(row["halves.parts"] or "[]")
        middle = len(text) // 2
        spans = [(0, middle, -1.0), (middle, len(text), 1.0 + place)] if middle else []
        for part, (start, end, reward) in zip(parts, spans, strict=True):
            assert (part["text"], part["start"], part["end"], part["reward"]) == (text[start:end], start, end, reward)
            assert part["advantage"] == pytest.approx(of_tokens[start:end].mean().item(), **ARITHMETIC)
            seen += 1
        assert not parts or row["halves"] == pytest.approx(place, **ARITHMETIC)
    assert seen >= 8


def test_a_rank_without_parts_has_the_columns_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are gathered one by one: a rank that has one less gathers another column instead, or waits for ever.

    Here `b` gives every row of this rank a plain score, and the other rank names parts for it.
    """
    monkeypatch.setattr(reward_mixin, "gather_object", lambda own: [*own, "b"])
    stack = RewardStack([Component("a", lambda **_: [[1.0, 2.0], 0.5]), Component("b", lambda **_: [0.5, 0.5])])
    stack.evaluate(prompts=["p", "p"], completions=["ßy", "z"])
    assert rewards_with_parts(stack, ()) == ["a", "b"]
    assert parts_as_json(stack, "b", torch.zeros(2)) == [None, None]
    assert "ß" in str(parts_as_json(stack, "a", torch.zeros(2))[0])


LONG = ("trainer.args.steps_per_generation=2", "trainer.args.num_iterations=2", "trainer.args.max_steps=6")
EVALUATED = ("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2", "data.eval.fraction=0.25")


def test_scores_are_those_that_the_functions_returned(train, says, workplace: Path) -> None:
    """0.1 is not a float32: a gate at 0.1 that was open must be open when it is recomputed."""
    begin(workplace)
    says(*ROWS)
    code, run = train(*BASE, "trainer.args.max_steps=1")
    assert code == 0
    rows = table(run, 1)
    assert rows["a"] == [0.1, 0.7, 0.3, 0.3, 0.9, 0.2, 0.9, 0.4]
    assert rows["c"] == [2.5, None, -0.6, 0.2, 1.3, 0.0, None, 5.0]
    assert rows["a.effective"] != rows["a"]  # TRL's matrix, in float32


@pytest.mark.parametrize("trainer", [(), pytest.param(("trainer=rloo",), marks=pytest.mark.slow)], ids=["grpo", "rloo"])
def test_an_evaluation_leaves_the_rounds_alone(train, says, workplace: Path, trainer: tuple[str, ...]) -> None:
    """TRL writes the table of a step anew after an evaluation; its newest rows would be the evaluation's."""
    begin(workplace)
    says(*ROWS)
    code, run = train(*BASE, *LONG, *EVALUATED, "trainer.args.eval_on_start=true", *trainer)
    assert code == 0
    assert table(run, 0)["rollout.round"] == [None] * len(table(run, 0)["step"])
    assert table(run, 2)["rollout.round"] == [0] * 16  # an evaluation at this step, after it was logged
    found = read_rounds(run)
    assert [one.number for one in found.rounds] == [0, 1]
    # What is logged after an evaluation, of the same round, holds the evaluation's answers as well.
    assert [text.partition(".parquet")[0] for text in found.left_out][:2] == ["completions_00000", "completions_00003"]


def test_shared_prompts_and_trls_tables_are_in_the_log(
    place: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    eval_words = ["data.eval.world=toy_sums", "data.eval.args.num_rows=4", "data.args.max_value=1"]
    printed = ["trainer.args.log_completions=true", "trainer.args.num_completions_to_print=1"]
    words = [*SMALL, "run.name=one", "data.eval.args.max_value=1", "trainer.args.max_steps=1", *eval_words, *printed]
    assert main(["train", *words]) == 0
    log = RunFolder(place / "runs/quickstart/one").log.read_text()
    assert caplog.text.count("data.eval: all 4") == 1
    table = "┴──┴"  # its columns are too narrow for their names
    assert table in log
    assert table not in capsys.readouterr().out


def test_a_column_of_no_single_type_is_stored_as_texts() -> None:
    """As of a rollout function or `log_extra`; the table of such a run was a traceback of pyarrow's."""
    odd: dict[str, list[Any]] = {"types": [1, "a", None], "text": ["\udc80"], "objects": [{1}], "lists": [[1], ["a"]]}
    odd |= {"empty": [{}, {}], "schema": [[{"properties": {}}]]}  # Parquet cannot hold them; Arrow can
    messages = [[{"role": "user"}], [{"role": "user", "content": "a"}]]
    plain: dict[str, list[Any]] = {"numbers": [1, 2.5, None], "messages": messages, "gaps": ["a", math.nan]}
    columns = {name: deque(values) for name, values in (odd | plain).items()}
    for _ in range(2):  # later rounds find texts and new values
        make_columns_storable(columns)
        for values in columns.values():
            table = pyarrow.table({"column": pyarrow.array(list(values), from_pandas=True)})
            pyarrow.parquet.write_table(table, pyarrow.BufferOutputStream())
        assert list(columns["types"]) == ["1", "a", None]
        assert list(columns["lists"]) == ["[1]", "['a']"]
        assert all(list(columns[name]) == values for name, values in plain.items())
    with pytest.raises((pyarrow.ArrowException, UnicodeError)):
        pyarrow.array(odd["text"])


def test_a_call_without_arguments_and_an_empty_object_are_stored(train, workplace: Path) -> None:
    """Parquet has no objects without keys, so the first table ended the run."""
    call = {"type": "function", "function": {"name": "clock", "arguments": {}}}
    asked = [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    row = {"prompt": [*asked, {"role": "tool", "content": "3"}], "extra_info": {}, "tools": [call]}
    (workplace / "rows.jsonl").write_text(8 * (json.dumps(row) + "\n"))
    (workplace / "mine.py").write_text(HALVES)
    words = [
        "data=file",
        "data.path=rows.jsonl",
        "~data.args",
        "rewards.halves.fn=./mine.py:halves",
        "rewards.halves.trial=false",
    ]
    code, run = train(*words, "~rewards.correct", "trainer.args.max_steps=1")
    assert code == 0
    rows = table(run, 1)
    assert rows["extra_info"] == ["{}"] * 8
    assert rows["prompt"][0][1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_only_plain_values_are_saved_with_a_checkpoint() -> None:
    """Others could be read back only by unpickling, which can run code."""
    assert _is_plain({"a": [1, "x", None, {"b": (True, 0.5)}]})
    for value in ({1: "x"}, {"a": object()}, {"a": {"b": [object()]}}, [object()]):
        assert not _is_plain(value), value
