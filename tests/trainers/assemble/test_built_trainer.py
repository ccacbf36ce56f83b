"""What a trainer's rows are taken for, what its models are loaded with, and what it cannot be built with."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOTrainer

from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError, ModelError
from rlhf_cli.models import scalar_heads
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble import policy_loading
from rlhf_cli.trainers.assemble import trainer as assembling
from rlhf_cli.trainers.assemble.trainer import _check_learns, _padding_of_reward_model, are_conversations, ends_with_eos
from rlhf_cli.trainers.assemble.trl_config import callbacks_of, trainer_class_of

USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("row", "are_messages", "is_ended"),
    [
        ({"prompt": "a"}, False, False),
        ({"prompt": [USER]}, True, False),
        ({"messages": [USER]}, True, False),
        ({"chosen": "a", "rejected": "b"}, False, True),
        ({"prompt": "a", "chosen": [USER]}, True, False),
        ({"prompt": []}, False, False),
        ({"input_ids": [1, 2]}, None, False),
    ],
)
def test_whether_rows_are_conversations_and_pairs_that_trl_ends(row: Any, are_messages: Any, is_ended: bool) -> None:
    rows = Dataset.from_list([row])
    assert (are_conversations(rows), ends_with_eos(rows)) == (are_messages, is_ended)


@pytest.mark.parametrize(("pad", "other"), [("<eos>", "<unk>"), (None, "<unk>"), ("<pad>", None)])
def test_a_reward_model_is_padded_with_the_first_special_token_that_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, pad: str | None, other: str | None
) -> None:
    added = {2: "<eos>", 5: "<none>", 1: "plain", 4: "<late>", 3: "<unk>"}
    tokens = {number: SimpleNamespace(content=text, special=text[0] == "<") for number, text in added.items()}
    tokenizer = SimpleNamespace(pad_token=pad, eos_token="<eos>", chat_template="<none>", added_tokens_decoder=tokens)
    monkeypatch.setattr(assembling, "tokenizer_of", lambda *_: tokenizer)
    assert _padding_of_reward_model(None, "./policy") == other  # type: ignore[arg-type]


@pytest.mark.fault(46)
def test_a_model_without_a_trained_weight_is_refused() -> None:
    trainer: Any = SimpleNamespace(model=torch.nn.Linear(1, 1))
    trainer.model.bias.requires_grad_(False)
    _check_learns(trainer)
    trainer.model.weight.requires_grad_(False)
    with pytest.raises(ModelError) as caught:
        _check_learns(trainer)
    assert (caught.value.where, caught.value.hint) == ("trainer.class, model", "model.lora.r=16")


SOURCE = """
from transformers import TrainerCallback
from trl import GRPOTrainer

class Right(GRPOTrainer): ...
class Wrong: ...
class Watch(TrainerCallback): ...
def function(): ...
"""


def test_a_class_of_ones_own_inherits_from_the_one_that_is_named(place: Path) -> None:
    (place / "mine.py").write_text(SOURCE)

    def section(own: str, *callbacks: str) -> Trainer:
        given = {"class": f"./mine.py:{own}", "callbacks": [f"./mine.py:{name}" for name in callbacks]}
        return Trainer.model_validate({"name": "grpo", "trl": "GRPOTrainer", **given})

    assert issubclass(trainer_class_of(section("Right")), GRPOTrainer)
    assert [isinstance(made, TrainerCallback) for made in callbacks_of(section("Right", "Watch", "Watch"))] == [
        True
    ] * 2
    for own, expected in (("Wrong", "class Wrong(GRPOTrainer)"), ("function", "class function(GRPOTrainer)")):
        for call, where in ((trainer_class_of, "trainer.class"), (callbacks_of, "trainer.callbacks.1")):
            with pytest.raises(ConfigError) as caught:
                call(section(own, "Watch", own))
            assert (caught.value.where, caught.value.got) == (where, f"./mine.py:{own}")
            base = (
                expected
                if where == "trainer.class"
                else expected.replace("GRPOTrainer", "transformers.TrainerCallback")
            )
            assert caught.value.expected == base


def test_an_embedded_model_starts_from_as_many_demonstrations_as_are_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_loading, "demonstrations", lambda *given, **named: [(*given, named)])
    monkeypatch.setattr(policy_loading, "tiny_model_path", lambda shape, rows, say: say(3, 9) or rows())
    experiment, said = prepare(["+exp=quickstart", "model.build.seed=5"]).experiment, list[str]()
    shipped = prepare(["trainer=sft", "data=toy_demonstrations"]).experiment.data.args["num_rows"]
    rows = [("toy_sums", shipped, {"seed": 5, "name": "model.build.warm_start.worlds"})]
    assert policy_loading.policy_path(experiment, said.append) == str(rows)
    assert said == ["warming up the tiny model 3/9"]


MODEL = ["model=local", "model.path=team/m", "model.revision=v2", "model.trust_remote_code=true"]


@pytest.mark.parametrize("pad", ["<pad>", None])
def test_models_are_loaded_as_their_sections_say(monkeypatch: pytest.MonkeyPatch, pad: str | None) -> None:
    """The key is for errors; an adapter is merged; a teacher's collator needs a token that pads."""
    asked: list[Any] = []
    for name in ("require_model", "merged_model"):
        noting = lambda path, name=name, **given: asked.append((name, path, given)) or f"merged {path}"  # noqa: E731
        monkeypatch.setattr(policy_loading, name, noting)
    tokenizer = SimpleNamespace(pad_token=pad, eos_token="<eos>")
    monkeypatch.setattr(policy_loading, "tokenizer_of", lambda *_: tokenizer)
    taught = ["trainer=gkd", "data=toy_demonstrations", "teacher.path=team/t", "teacher.revision=v3"]
    experiment = prepare([*taught, *MODEL, "model.dtype=bfloat16", "teacher.dtype=float16"]).experiment
    assert policy_loading.policy_path(experiment, print) == "merged team/m"
    found = policy_loading.teacher_arguments(experiment, "./policy")
    assert found == {"teacher_model": "merged team/t", "processing_class": tokenizer}
    assert tokenizer.pad_token == (pad or "<eos>")
    assert asked == [
        ("require_model", "team/m", {"where": "model.path", "revision": "v2", "trust_remote_code": True}),
        ("merged_model", "team/m", {"dtype": "bfloat16", "trust_remote_code": True}),
        ("require_model", "team/t", {"where": "teacher.path", "revision": "v3", "trust_remote_code": True}),
        ("merged_model", "team/t", {"dtype": "float16", "trust_remote_code": True}),
    ]


def test_an_adapter_of_a_reward_model_has_the_head_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(scalar_heads, "head_names", lambda *given, **named: asked.append((*given, named)) or ["score"])
    for words, task, saved in (
        (["+exp=quickstart", "model.lora.modules_to_save=[norm]"], "CAUSAL_LM", ["norm"]),
        (["+exp=toy_reward", "model.lora.modules_to_save=[norm,score]"], "SEQ_CLS", ["score", "norm"]),
        (["+exp=toy_reward"], "SEQ_CLS", ["score"]),
    ):
        made = policy_loading.lora_config(prepare([*words, *MODEL, "model.lora.r=3"]).experiment, "./policy")
        assert (made.task_type, made.r, made.modules_to_save) == (task, 3, saved)
    assert asked == [("./policy", {"revision": "v2", "trust_remote_code": True})] * 2


@pytest.mark.parametrize(("own", "of_accelerate"), [("config", None), (None, "config"), (None, None)])
def test_models_beside_the_engine_are_loaded_unsharded(monkeypatch, own: Any, of_accelerate: Any) -> None:
    events: list[str] = []
    monkeypatch.setattr(policy_loading, "unset_hf_deepspeed_config", lambda: events.append("off"))
    monkeypatch.setattr(policy_loading, "set_hf_deepspeed_config", events.append)
    args: Any = SimpleNamespace(hf_deepspeed_config=own, deepspeed_plugin=SimpleNamespace(dschf=of_accelerate))
    with contextlib.suppress(KeyError), policy_loading.loading_unsharded(args):
        raise KeyError(events.append("loads"))
    assert events == (["off", "loads", "config"] if own or of_accelerate else ["loads"])
