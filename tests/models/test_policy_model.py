"""A policy completes prompts: alike in any batch, up to an end or a stop string, and by its seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import GenerationConfig

from rlhf_cli.models.policy_model import SAMPLING_ARGUMENTS, Completion, PolicyModel, Sampling
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER

SETTINGS: dict[str, Any] = {**dict.fromkeys(SAMPLING_ARGUMENTS), "temperature": 1.0, "max_completion_length": 6}
SETTINGS |= {"generation_kwargs": {}, "chat_template_kwargs": {}}


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return PolicyModel(EMBEDDED_TOKENIZER)


def test_completions_are_those_of_one_prompt_at_a_time(policy: PolicyModel) -> None:
    """Greedy, prompts of different lengths in one batch: the same as without any padding."""
    prompts = ["1+1=", "a much longer prompt: 12+13=", "3+4="]
    batched = policy.complete(prompts, Sampling(SETTINGS, 3, seed=0, is_greedy=True))
    alone = [policy.complete([prompt], Sampling(SETTINGS, 1, seed=5, is_greedy=True))[0] for prompt in prompts]
    assert batched == alone
    sampled = [policy.complete(prompts, Sampling(SETTINGS, 2, seed)) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    chat = policy.complete([[{"role": "user", "content": "1+1="}]], Sampling(SETTINGS, 1, seed=0, is_greedy=True))
    assert chat == policy.complete(["user: 1+1=\nassistant: "], Sampling(SETTINGS, 1, seed=0, is_greedy=True))


def test_shorter_prompts_are_padded_on_the_left(policy: PolicyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[list[int]]] = {}

    def generate(_: object, *, generation_config: object, **inputs: Tensor) -> Tensor:
        given.update({name: tensor.tolist() for name, tensor in inputs.items()})
        return inputs["input_ids"]

    monkeypatch.setattr(policy._generating, "generate", generate)
    monkeypatch.setattr(policy, "tokenizer", SimpleNamespace(pad_token_id=7))
    policy._generate([[1, 2, 3], [4]], GenerationConfig(), SETTINGS)
    assert given == {"input_ids": [[1, 2, 3], [7, 7, 4]], "attention_mask": [[1, 1, 1], [0, 0, 1]]}


def test_a_template_writes_the_special_tokens_of_a_conversation_itself() -> None:
    policy, asked = PolicyModel(EMBEDDED_TOKENIZER), [{"role": "user", "content": "1+1="}]
    plain = policy._encoded(asked, [], SETTINGS)
    around = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 1)])
    policy.tokenizer.backend_tokenizer.post_processor = around
    assert policy._encoded(asked, [], SETTINGS) == plain
    assert policy._encoded("2", [], SETTINGS) == [1, *policy.tokenizer("2", add_special_tokens=False)["input_ids"]]


def test_a_completion_ends_at_its_stop_string_or_its_first_end(
    policy: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest prompts are answered first, and the answers come in the order of the prompts."""
    text_of, end = policy.tokenizer.decode, policy.tokenizer.eos_token_id
    said = {"a": ["12", end, end], "bbb": ["12", end, "3", end], "cc": ["1!2!"], "dddd": ["12"], "": ["!", end]}
    ids = {
        prompt: [one for part in parts for one in (policy.tokenizer(part)["input_ids"] if part != end else [end])]
        for prompt, parts in said.items()
    }
    batches, told = list[list[str]](), list[int]()

    def generate(rows: list[list[int]], *_: object) -> list[list[int]]:
        batches.append([text_of(row) for row in rows])
        return [ids[text] for text in batches[-1]]

    monkeypatch.setattr(policy, "_generate", generate)
    found = policy.complete(list(said), Sampling(SETTINGS, 2, seed=0, on_batch=told.append))
    assert (batches, told) == ([["dddd", "bbb"], ["cc", "a"], [""]], [2, 2, 1])
    lengths, cut = [3, 3, 4, 2, 2], [False, False, True, True, False]
    for (prompt, answer), length, is_truncated in zip(zip(said, found, strict=True), lengths, cut, strict=True):
        kept = ids[prompt][:length]
        assert answer == Completion(policy.decode(kept), kept, is_truncated)
    stopping = SETTINGS | {"generation_kwargs": {"stop_strings": ["!"]}}
    stopped = [len(answer.ids) for answer in policy.complete(list(said), Sampling(stopping, 9, seed=0))]
    assert stopped == [3, 3, 2, 2, 1]
