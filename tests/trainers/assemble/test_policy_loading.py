"""What an adapter, a teacher, a tokenizer and a warm start are made with, where loaders note their arguments.

Rows that the model cannot read are refused before its weights load.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from datasets import Dataset

from rlhf_cli.errors import ConfigError, DataError, ModelError, UserError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble import policy_loading
from rlhf_cli.trainers.assemble.policy_loading import (
    lora_config,
    policy_path,
    readable_rows,
    teacher_arguments,
    tokenizer_of,
    warm_start_rows,
)
from tests.support.model_copies import model_copy

OF_THE_HUB = ("model.build=null", "model.path=team/m", "model.revision=v2", "model.trust_remote_code=true")


@pytest.mark.parametrize(
    ("exp", "saved", "expected"),
    [
        ("toy_reward", "[embed_tokens, score]", ("SEQ_CLS", ["score", "embed_tokens"])),
        ("toy_reward", "null", ("SEQ_CLS", ["score"])),
        ("toy_sft", "[embed_tokens]", ("CAUSAL_LM", ["embed_tokens"])),
    ],
)
def test_an_adapter_of_a_reward_model_has_its_head(
    place: Path, monkeypatch: pytest.MonkeyPatch, exp: str, saved: str, expected: Any
) -> None:
    heads = Mock(return_value=["score"])
    monkeypatch.setattr("rlhf_cli.models.scalar_heads.head_names", heads)
    words = [f"+exp={exp}", *OF_THE_HUB, "model.lora.r=2", f"model.lora.modules_to_save={saved}"]
    made = lora_config(prepare(words).experiment, "./policy")
    assert (made.task_type, made.modules_to_save, made.r, made.revision) == (*expected, 2, "v2")
    given = {"revision": "v2", "trust_remote_code": True}
    assert heads.mock_calls == ([call("./policy", **given)] if exp == "toy_reward" else [])


@pytest.mark.parametrize(("pad", "padding"), [(None, "<eos>"), ("<pad>", "<pad>")])
def test_a_teacher_and_a_policy_of_the_hub_are_asked_for_merged_and_in_their_types(
    place: Path, monkeypatch: pytest.MonkeyPatch, pad: str | None, padding: str
) -> None:
    asked: list[Any] = []

    def note(path: str, **given: object) -> str:
        asked.append((path, given))
        return f"merged {path}"

    tokenizer = SimpleNamespace(pad_token=pad, eos_token="<eos>")
    monkeypatch.setattr(policy_loading, "require_model", note)
    monkeypatch.setattr(policy_loading, "merged_model", note)
    monkeypatch.setattr(policy_loading, "tokenizer_of", lambda _, policy: tokenizer if policy == "./policy" else None)
    words = ["trainer=gkd", "data=toy_demonstrations", "model.dtype=float16", *OF_THE_HUB]
    teacher = ["teacher.path=big", "teacher.dtype=bfloat16", "teacher.revision=v3"]
    experiment = prepare([*words, *teacher]).experiment
    assert teacher_arguments(experiment, "./policy") == {"teacher_model": "merged big", "processing_class": tokenizer}
    assert tokenizer.pad_token == padding
    assert policy_path(experiment, asked.append) == "merged team/m"
    trusts = {"trust_remote_code": True}
    assert asked == [
        ("big", {"where": "teacher.path", "revision": "v3", **trusts}),
        ("big", {"dtype": "bfloat16", **trusts}),
        ("team/m", {"where": "model.path", "revision": "v2", **trusts}),
        ("team/m", {"dtype": "float16", **trusts}),
    ]


@pytest.mark.parametrize(
    ("own", "name", "revision", "where"),
    [("", "./policy", "v2", "model.path"), ("./other", "./other", None, "model.tokenizer")],
)
def test_a_tokenizer_of_ones_own_has_no_revision_of_the_model_s(
    place: Path, own: str, name: str, revision: str | None, where: str
) -> None:
    asked: list[Any] = []
    words = ["+exp=quickstart", *OF_THE_HUB, *([f"model.tokenizer={own}"] if own else [])]
    experiment = prepare(words).experiment
    tokenizer_of(experiment, "./policy", lambda path, **given: asked.append((path, given)) or SimpleNamespace())  # type: ignore[arg-type,return-value]
    assert asked == [(name, {"revision": revision, "padding_side": "left", "trust_remote_code": True})]
    with pytest.raises(UserError) as caught:
        tokenizer_of(experiment, "./policy", lambda path, **given: 1 / 0)  # type: ignore[arg-type,return-value]
    assert caught.value.where == where


def test_a_warm_start_is_drawn_by_the_seed_of_the_model_from_worlds_that_there_are(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(seed: int, *worlds: str) -> list[dict[str, str]]:
        build: Any = SimpleNamespace(seed=seed, warm_start=SimpleNamespace(worlds=worlds) if worlds else None)
        return warm_start_rows(build)

    assert rows(1, "toy_sums") == rows(1, "toy_sums") != rows(2, "toy_sums")
    with pytest.raises(UserError) as caught:
        rows(1, "nowhere")
    assert caught.value.where == "model.build.warm_start.worlds"
    assert rows(1) == []
    said: list[str] = []
    monkeypatch.setattr(policy_loading, "tiny_model_path", lambda spec, rows, tell: tell(2, 5) or Path("made"))
    assert policy_path(prepare(["+exp=quickstart"]).experiment, said.append) == "made"
    assert ["2/5" in text for text in said] == [True]


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
