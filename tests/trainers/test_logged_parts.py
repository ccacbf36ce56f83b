"""Dense rewards in training: spans need the tokenizer, and the table shows each part's reward and advantage."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
import torch

from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.trainers import completions_table
from rlhf_cli.trainers.completions_table import PartColumns
from rlhf_cli.trainers.reward_mixin import RewardMixin
from tests.support.tolerances import ARITHMETIC

# The completions table of a run with dense rewards: what each part of a completion got, and what it was worth.


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
    taken: list[torch.Tensor] = []

    def watch(trainer: Any) -> None:
        generate = trainer._generate_and_score_completions

        def watched(inputs: Any) -> Any:
            output = generate(inputs)
            taken.append(output["advantages"].clone())
            return output

        trainer._generate_and_score_completions = watched

    before_training(watch)
    words = ["rewards.halves.fn=./mine.py:halves", "trainer.args.max_steps=1", "trainer.args.max_completion_length=6"]
    code, folder = train(*trainer, *words)
    assert code == 0
    (file,) = folder.path.glob("completions/*.parquet")
    rows = pyarrow.parquet.read_table(file).to_pylist()
    (advantages,) = taken
    assert len(rows) == len(advantages)
    seen = 0
    for place, (row, of_tokens) in enumerate(zip(rows, advantages, strict=True)):
        text = row["completion"]
        if row["halves.parts"] is None:
            assert len(text) < 2
            continue
        parts = json.loads(row["halves.parts"])
        assert [part["text"] for part in parts] == [text[: len(text) // 2], text[len(text) // 2 :]]
        assert [part["reward"] for part in parts] == [-1.0, 1.0 + place]
        assert row["halves"] == pytest.approx(sum(part["reward"] for part in parts), **ARITHMETIC)
        for part in parts:
            mean = of_tokens[part["start"] : part["end"]].mean().item()
            assert part["advantage"] == pytest.approx(mean, **ARITHMETIC)
        seen += 1
    assert seen >= 4


def test_a_rank_without_parts_has_the_columns_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are gathered one by one: a rank that has one less gathers something else in its place, or waits for ever.

    Here `b` gives every row of this rank a plain score, and the other rank names parts for it.
    """
    monkeypatch.setattr(completions_table, "gather_object", lambda own: [*own, "b"])
    stack = RewardStack([Component("a", lambda **_: [[1.0, 2.0], 0.5]), Component("b", lambda **_: [0.5, 0.5])])
    stack.evaluate(prompts=["p", "p"], completions=["xy", "z"])
    columns = PartColumns()
    assert columns.empty(stack, 2) == {"a.parts": [None, None], "b.parts": [None, None]}
    filled = columns.filled(stack, torch.zeros(2))
    assert list(filled) == ["a.parts", "b.parts"]
    assert filled["b.parts"] == [None, None]
    assert filled["a.parts"][0] is not None


# Spans need the trainer's tokenizer: the stack is given it, and reads completions as TRL shows them to rewards.


REWARD = """
def halves(completions, **kwargs):
    return [[(0, 1, 0.5), (len(text) - 1, len(text), 0.25)] if text else [] for text in completions]
"""


def test_a_reward_of_spans(train, workplace: Path) -> None:
    """Every row with a text is worth 3/4, one without nothing."""
    (workplace / "spans.py").write_text(REWARD)
    drop = ["~rewards.correct", "~rewards.format", "~rewards.brevity"]
    code, folder = train("trainer=rloo", *drop, "++rewards.halves={fn: './spans.py:halves'}")
    assert code == 0
    _, means = series(read_metrics(folder.metrics), "rewards/halves/mean")
    assert len(means) == 3
    assert all(0.0 < mean <= 0.75 + ARITHMETIC["abs"] for mean in means)


def test_the_tokenizer_leaves_out_what_is_no_text() -> None:
    """As in the completions that rewards are shown: a special token is no character of theirs."""

    class Alone(RewardMixin):
        def __init__(self) -> None:
            self.processing_class: Any = SimpleNamespace(decode=self.decoded)

        def decoded(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
            assert isinstance(ids, list)
            return "".join("</s>" if one == 0 else chr(one) for one in ids if one or not skip_special_tokens)

    assert Alone()._decode((97, 98, 0)) == "ab"
