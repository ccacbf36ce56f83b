"""Trainers that learn from rows: columns, steps and kinds of models, checked without torch."""

from __future__ import annotations

import json

import pytest

from rlhf_cli.errors import DataError, ModelError
from tests.support.model_copies import EMPTY_WEIGHTS
from tests.support.planning import Refused, Write, planned


def rows(write: Write, row: dict[str, object], count: int = 20) -> str:
    write("rows.jsonl", (json.dumps(row) + "\n") * count)
    return "data.path=rows.jsonl"


@pytest.mark.parametrize(
    ("trainer", "row", "missing", "hint"),
    [
        (
            "dpo",
            {"question": "a", "better": "b", "worse": "c"},
            "'chosen' and no column 'rejected'",
            "data.rename.chosen=better data.rename.rejected=worse data.rename.prompt=question",
        ),
        ("reward", {"prompt": "a", "chosen": "b", "reject": "c"}, "'rejected'", "data.rename.rejected=reject"),
        ("kto", {"prompt": "a", "completion": "b", "liked": True}, "'label'", "data.rename.label=liked"),
        ("sft", {"question": "a", "answer": "b"}, "'prompt' and no column 'completion'", "data.rename.prompt=question"),
    ],
)
def test_a_column_that_is_missing(
    write: Write, refused: Refused, trainer: str, row: dict[str, object], missing: str, hint: str
) -> None:
    error = refused(f"trainer={trainer}", "data=file", rows(write, row))
    assert isinstance(error, DataError)
    assert error.what == f"the data has no column {missing}"
    assert error.got == "columns " + ", ".join(row)
    assert str(error.hint).startswith(hint)
    renames = [word for word in str(error.hint).split() if "EXISTING" not in word and word.startswith("data.rename")]
    if len(renames) >= missing.count("'") // 2:  # what it says to type works
        assert planned(f"trainer={trainer}", "data=file", "data.path=rows.jsonl", *(r.rstrip(",") for r in renames))


def test_prompts_that_fill_no_step(write: Write, refused: Refused) -> None:
    """Two prompts with eight answers each; TRL would end at step 0."""
    words = ("trainer=sdft", "data=file", rows(write, {"prompt": "1+1=", "privileged_context": "2"}, 2), "launch=cpu")
    error = refused(*words, "trainer.args.per_device_train_batch_size=32")
    assert error.hint == "trainer.args.per_device_train_batch_size=16"
    assert planned(*words, str(error.hint)).stage


@pytest.mark.parametrize(
    ("words", "steps", "epochs"),
    [
        ((), 9, 3),  # 3 epochs of ceil(20 / 8) batches
        (("trainer.args.num_train_epochs=1",), 3, 1),
        (("trainer.args.gradient_accumulation_steps=2",), 6, 3),
        (("trainer.args.max_steps=5",), 5, 5 / 3),
        (("trainer.args.packing=true",), None, None),
    ],
)
def test_steps(write: Write, words: tuple[str, ...], steps: int | None, epochs: float | None) -> None:
    stage = planned("trainer=sft", "data=file", rows(write, {"text": "a"}), "launch=cpu", *words).stage
    assert stage is not None
    assert (stage.steps, stage.epochs) == (steps, epochs)


@pytest.mark.parametrize(
    ("trainer", "data", "words", "at_least"),
    [
        ("kto", "toy_judgements", "per_device_train_batch_size=1", "at least 2"),
        ("sft", "toy_demonstrations", "gradient_accumulation_steps=0", "at least 1"),
    ],
)
def test_batches_too_small(refused: Refused, trainer: str, data: str, words: str, at_least: str) -> None:
    error = refused(f"trainer={trainer}", f"data={data}", f"trainer.args.{words}")
    assert str(error.where).startswith(f"trainer.args.{words.partition('=')[0]}")
    assert str(error.expected).startswith(at_least)


class TestModels:
    def folder(self, write: Write, **config: object) -> str:
        name = "adapter_config.json" if "task_type" in config else "config.json"
        write("there/tokenizer_config.json", "{}")
        write("there/model.safetensors", EMPTY_WEIGHTS)
        return f"model.path={write(f'there/{name}', json.dumps(config)).parent}"

    def test_a_reward_model_is_no_policy(self, write: Write, refused: Refused) -> None:
        path = self.folder(write, architectures=["LlamaForSequenceClassification"], num_labels=1)
        for name in ("toy_sft", "toy_dpo", "toy_kto", "quickstart"):
            error = refused(f"+exp={name}", "model=local", path)
            assert isinstance(error, ModelError)
            assert error.where == "model.path (command line)"
        assert planned("+exp=toy_reward", "model=local", path)

    def test_a_causal_checkpoint_where_a_reward_model_is_wanted(self, write: Write, refused: Refused) -> None:
        path = self.folder(write, architectures=["LlamaForCausalLM"]).partition("=")[2]
        error = refused("+exp=quickstart", f"rewards.judge={{model: '{path}'}}")
        assert "trainer=reward" in str(error.advice)
        assert path in str(error.advice)
