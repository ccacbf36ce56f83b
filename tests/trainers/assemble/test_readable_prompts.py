"""Prompts as the model sees them; rows that it cannot read are refused before its weights load."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from transformers import tokenization_utils_base

from rlhf_cli.errors import ConfigError, DataError, ModelError, UserError
from rlhf_cli.evaluation.audit.trial import after_truncation
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.trainers.assemble import tried_rows
from rlhf_cli.trainers.assemble.policy_loading import readable_rows
from rlhf_cli.trainers.assemble.tried_rows import LearnedText, Span, prompts_seen
from tests.support.model_copies import model_copy

TEMPLATE = (
    "{% for message in messages %}<eos>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<eos>assistant:{% if brief %} (brief){% endif %}{% endif %}"
)
CHAT = [{"role": "user", "content": "Grüße"}]
WORDS = ["trainer=grpo", "data=toy_sums", "reward@rewards.right=sums_correct"]


def read(rows: list[dict[str, Any]], *words: str, rank: int = 0, **args: Any) -> list[list[Any]]:
    """The prompts that are left of these rows, of a set `easy` with a short one, and of a set `hard` with them all."""
    trainer = [] if "trainer=sft" in words else [*WORDS, "trainer.args.max_completion_length=4"]
    experiment = prepare([*trainer, "model=local", "model.path=./model", *words]).experiment
    given: Any = SimpleNamespace(process_index=rank, **args)
    short, long = Dataset.from_list([{"prompt": "short"}]), Dataset.from_list(rows)
    train, held_out = readable_rows(experiment, given, "./model", long, {"easy": short, "hard": long})
    return [table["prompt"][:] for table in (train, held_out["easy"], held_out["hard"])]


SFT = ("trainer=sft", "data=toy_demonstrations")
CHAT_ROWS = [{"prompt": [{"role": "user", "content": "hello"}]}]
LONG = [{"prompt": "a" * length} for length in (508, 508, 509)]


@pytest.mark.parametrize(
    ("rows", "changed", "words", "error", "where"),
    [
        pytest.param(LONG[:1], {"eos_token": None}, [], ModelError, "model.path", marks=pytest.mark.fault(44)),
        (LONG[:1], {"eos_token": None}, ["model.tokenizer=./model"], ModelError, "model.tokenizer"),
        pytest.param(CHAT_ROWS, {"chat_template": None}, [], ModelError, "model.path", marks=pytest.mark.fault(44)),
        pytest.param(LONG, {}, [], DataError, "data, row 3 ", marks=pytest.mark.fault(43)),
        (LONG, {}, ["trainer.args.max_completion_length=512"], ConfigError, "trainer.args.max_completion_length"),
        ([{"prompt": "a", "images": ["b"]}], {}, [], DataError, "data"),
    ],
)
def test_what_the_model_cannot_read_is_refused_with_its_place(
    place: Path, rows: Any, changed: dict[str, Any], words: list[str], error: type[UserError], where: str
) -> None:
    """512 tokens are read and 4 written: 508 are a prompt's."""
    gone = ("chat_template.jinja",) if "chat_template" in changed else ()
    model_copy(place / "model", without=gone, tokenizer_config=changed)
    with pytest.raises(error) as caught:
        read(rows, *words)
    assert str(caught.value.where).startswith(where)
    if where.startswith("data, row"):
        assert str(caught.value.got).startswith("1 of 3 prompts are longer, the longest has 509 ")
    if rows is CHAT_ROWS:  # TRL is given a template of its own
        assert read(rows, *SFT, chat_template_path="mine.jinja")[0] == [rows[0]["prompt"]]


@pytest.mark.parametrize(("policy", "left"), [("drop", [508, 508]), ("truncate", [508, 508, 508])])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.fault(43)
def test_long_prompts_are_left_out_or_cut_and_the_first_rank_says_so(
    place: Path, caplog, capsys, policy: str, left: list[int], rank: int
) -> None:
    model_copy(place / "model")
    rows = [*LONG[:2], {"prompt": "b" + "a" * 508}]
    train, easy, hard = read(rows, f"data.overlong_prompts={policy}", rank=rank)
    assert train == hard == ["a" * length for length in left]
    assert easy == ["short"]
    said = [] if rank else [f"{name}: 1 of 3 prompts have more than 508 tokens" for name in ("data", "data.eval.hard")]
    assert [record.message.partition(" (")[0] for record in caplog.records] == said
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"warning: {text}" for text in said
    ]
    assert read(LONG, *SFT)[0] == [row["prompt"] for row in LONG]  # whose prompts are not generated from


@pytest.fixture
def folder(place: Path) -> Path:
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place / "policy")
    return place / "policy"


def test_a_conversation_is_rendered_and_its_special_tokens_are_known(folder: Path) -> None:
    """Grüße is seven bytes. The template's two <eos> are one token each, and no text."""
    experiment = prepare([*WORDS, f"model.path={folder}", "model.build=null"]).experiment
    (seen,) = prompts_seen(experiment, [CHAT, CHAT], shown=1).prompts
    assert seen.text == "<eos>user: Grüße\n<eos>assistant:"
    assert seen.tokens == 2 + len("user: \nassistant:") + 7


def test_lengths(place: Path) -> None:
    """Of 1, 2, 3, 4 and 5 bytes: the median 3, a quarter below 2."""
    experiment = prepare([*WORDS, "model=tiny"]).experiment
    seen = prompts_seen(experiment, ["x" * n for n in (1, 2, 3, 4, 5)], shown=0, answers=["12", "3456"])
    prompts, answers = seen.lengths
    assert (prompts.count, *(prompts.quantiles[share] for share in ("0.5", "0.25", "1"))) == (5, 3, 2, 5)
    assert (answers.of, answers.quantiles["0.5"]) == ("right answers", 3)
    assert seen.prompts == []
    assert [prompt.tokens for prompt in prompts_seen(experiment, ["xx"], shown=1).prompts] == [2]


def test_a_long_text_is_counted_without_a_warning_of_the_tokenizer(folder: Path, monkeypatch) -> None:
    """Its answer may be as long as it likes, and a long prompt is refused in words of our own."""
    warnings: list[str] = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", warnings.append)
    experiment = prepare([*WORDS, f"model.path={folder}", "model.build=null"]).experiment
    (seen,) = prompts_seen(experiment, ["x" * 65], shown=1, answers=["1" * 65]).prompts
    assert (seen.tokens, warnings) == (65, [])


def test_texts_that_are_learned_are_counted_by_column_and_rows_left_out_are_named(monkeypatch) -> None:
    """Lengths are of more rows than are shown, and of no more than there are."""

    def text(column: str, end: str, tokens: int) -> LearnedText:
        return LearnedText(column, [Span("1+1=", False), Span(end, True)], tokens, 1)

    asked: list[int] = []
    learned = [[text("chosen", "2<eos>", 3), text("rejected", "3<eos>", 9)], [], [text("chosen", "4<eos>", 5)]]
    rows = Dataset.from_list([{"row": 0}] * 1200), {}, {}
    monkeypatch.setattr("rlhf_cli.trainers.assemble.trainer.training_rows", lambda _: rows)
    monkeypatch.setattr(tried_rows, "learned_texts", lambda _, rows, tokenizer: asked.append(len(rows)) or learned)
    monkeypatch.setattr(tried_rows, "policy_tokenizer", lambda *_, **__: SimpleNamespace(eos_token="<eos>"))
    experiment: Any = SimpleNamespace(trainer=SimpleNamespace(row=SimpleNamespace(learns_from=True)))
    found, *_ = (tried_rows.try_rows(experiment, count) for count in (2, 1100, 5000))
    assert asked == [1000, 1100, 1200]
    assert found.seen is not None
    assert [(one.of, one.count, one.quantiles["1"]) for one in found.seen.lengths] == [
        ("chosen", 2, 5),
        ("rejected", 1, 9),
    ]
    assert (found.seen.ends_with, found.learned) == ("<eos>", learned[:2])
    assert "1 of 3 " in found.notes[0]
    assert found.notes[0].endswith(" 1")
    learned[:] = [learned[0], [text("chosen", "cut off", 5)]]
    cut = tried_rows.try_rows(experiment, 2)
    assert cut.seen is not None
    assert (cut.seen.ends_with, cut.notes) == ("", ())

    def refuse(*_: Any, **__: Any) -> None:
        raise ModelError("no tokenizer", where="model.path")

    monkeypatch.setattr(tried_rows, "policy_tokenizer", refuse)
    none = tried_rows.try_rows(experiment, 2)
    assert (none.seen, "no tokenizer" in str(none.why_not_seen)) == (None, True)


class TestCutOff:
    def totals(self, *words: str, is_cut: bool = True) -> float | None:
        experiment = prepare([*WORDS, "model=tiny", *words]).experiment
        reward = ScoredReward(raw=2.0, effective=2.0, weighted=2.0, open=True, error=None)
        (row,) = after_truncation(experiment, [ScoredRow(2.0, {"right": reward})], ["x" * 14], [is_cut], 16)
        return row.total

    def test_every_policy_by_hand(self, place: Path) -> None:
        """Of 2: less a penalty of 0.5; replaced by -0.5; no total; nothing taken. The ramp's last 8 of 16 tokens: 14
        are 6 of 8 on their way to -1, and an answer that was cut has all 16.
        """
        penalty = ("truncation=eos_penalty", "truncation.penalty=0.5")
        assert self.totals(*penalty) == 1.5
        assert self.totals(*penalty, is_cut=False) == 2.0
        assert self.totals(*penalty, "truncation.mode=replace") == -0.5
        assert self.totals("truncation=exclude") is None
        assert self.totals("truncation=none") == 2.0
        ramp = ("truncation=soft_overlong", "truncation.penalty=1.0", "truncation.cache=8")
        ramp = (*ramp, "trainer.args.max_completion_length=16")
        assert self.totals(*ramp, is_cut=False) == pytest.approx(2.0 - 6 / 8)
        assert self.totals("truncation=eos_penalty", "truncation.penalty=0.1") == pytest.approx(1.9, rel=1e-12)
        assert self.totals(*ramp) == pytest.approx(1.0)
