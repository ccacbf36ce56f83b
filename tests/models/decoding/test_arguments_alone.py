"""The trainer's arguments alone choose tokens, not the model's generation_config.json, alike in every evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rlhf_cli.models.policy_model import PolicyModel
from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin
from rlhf_cli.trainers.extensions import ExtendedTrainer
from tests.support.tiny_decoders import ENDS, PAD, model_of, prompts, settings

OF_TRL: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def sampled(model: Any, **given: Any) -> list[list[int]]:
    torch.manual_seed(0)
    found: list[list[int]] = model.generate(**prompts(), generation_config=settings(**OF_TRL | given)).tolist()
    return found


@pytest.mark.whole
@pytest.mark.parametrize(
    "own",
    [{"min_p": 0.3}, {"typical_p": 0.2}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 9}, {"num_beams": 2}],
    ids=str,
)
@pytest.mark.parametrize("has_adapter", [False, True])
def test_a_models_own_settings_choose_no_token(own: dict[str, Any], has_adapter: bool) -> None:
    """Every trainer generates in `training_step` and `prediction_step`: also one that distils, and has no rewards."""

    class Trl:
        def training_step(self) -> list[list[int]]:
            return sampled(self.model)  # type: ignore[attr-defined]

        def prediction_step(self, model: Any, inputs: Any) -> list[list[int]]:
            return sampled(self.model)  # type: ignore[attr-defined]

    model = model_of("llama")
    policy = get_peft_model(model, LoraConfig(target_modules=["q_proj"])) if has_adapter else model
    expected = sampled(policy)
    vars(model.generation_config).update(own)
    trainer: Any = type("Trainer", (ExtendedTrainer, Trl), {"model": policy, "_sizes": []})()
    assert trainer.training_step() == trainer.prediction_step(None, []) == expected
    assert policy.generation_config is model.generation_config
    assert vars(model.generation_config).items() >= own.items()
    assert sampled(policy) != expected  # transformers alone reads them


def test_greedy_answers_are_alike_in_training_and_in_rlhf_eval() -> None:
    typed = {"no_repeat_ngram_size": 2, "min_p": 0.9, "num_beams": 3, "suppress_tokens": [7, 8]}
    given = OF_TRL | {"repetition_penalty": 1.5}
    names = {"max_new_tokens": 8, "do_sample": True, "pad_token_id": PAD, "eos_token_id": ENDS}
    trainer: Any = SimpleNamespace(use_vllm=False, _metrics={}, _logs={}, generation_kwargs=names | given | typed)
    policy: Any = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=PAD), _eos=ENDS, _suppressed={})
    asked = given | {"generation_kwargs": typed, "max_completion_length": 8}
    with EvaluationMixin._greedily(trainer):
        configs = [trainer.generation_config, PolicyModel._generation(policy, asked, greedy=True)]
    model = model_of("llama")
    theirs = model.generate(
        **prompts(),
        **names
        | {"do_sample": False, "repetition_penalty": 1.5}
        | {name: typed[name] for name in ("no_repeat_ngram_size", "suppress_tokens")},
    )
    found = [model.generate(**prompts(), generation_config=config).tolist() for config in configs]
    assert found == [theirs.tolist()] * 2
    assert found[0] != model.generate(**prompts(), **names | {"do_sample": False}).tolist()
