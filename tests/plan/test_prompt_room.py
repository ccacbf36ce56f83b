"""Prompts that leave no room for an answer: how many tokens they have, and what happens to them."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset
from tokenizers.processors import TemplateProcessing

from rlhf_cli.data.model_limits import OverlongPrompts
from rlhf_cli.errors import DataError
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.plan.prompt_room import PromptRoom

ROWS = Dataset.from_dict({"prompt": ["a", "b b b b", "c c", "d d d"], "answer": [1, 2, 3, 4]})
CHAT = Dataset.from_dict({"prompt": [[{"role": "user", "content": "e e e e"}]]})


class Words:
    """A tokenizer for which a word is a token."""

    chat_template = "{{ messages }}"

    def __call__(self, text: str | list[str], **_: object) -> dict[str, Any]:
        return {"input_ids": text.split() if isinstance(text, str) else [one.split() for one in text]}

    def decode(self, ids: list[str]) -> str:
        return " ".join(ids)

    def apply_chat_template(self, prompts: list[Any], **_: object) -> dict[str, Any]:
        return self([prompt[0]["content"] for prompt in prompts])


def fitted(policy: OverlongPrompts, rows: Dataset = ROWS, name: str = "data.eval") -> tuple[Dataset, list[str]]:
    tokenizer: Any = Words()
    return PromptRoom(2, policy, tokenizer).fitting(rows, name)


def room(limit: int, tokenizer: Any, **settings: object) -> PromptRoom:
    return PromptRoom(limit, "error", tokenizer, settings)


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("policy", "rows", "where", "counts", "hint"),
    [
        ("error", ROWS, "data.eval, rows 2, 4 (the first row is 1)", "2 of 4", None),
        ("drop", ROWS.select([1, 3]), "data.eval", "2 of 2", None),
        ("truncate", CHAT, "data.eval, row 1 (the first row is 1)", "1 of 1", "data.overlong_prompts=drop"),
    ],
)
def test_prompts_that_a_policy_cannot_handle_are_refused(policy, rows, where, counts, hint) -> None:
    with pytest.raises(DataError) as caught:
        fitted(policy, rows)
    error, got = caught.value, f"{counts} prompts are longer, the longest has 4 tokens"
    assert (error.where, error.got, error.hint) == (where, got, hint)
    assert ("at most 2," in str(error.expected), bool(error.advice)) == (True, policy == "error")


@pytest.mark.fault(43)
def test_they_are_dropped_or_truncated() -> None:
    rows = Dataset.from_dict({"prompt": ["a"] * 1999 + ["b b b"] + ["a"] * 5})
    (kept, notes), two = fitted("drop", rows), "2 of 4 prompts have more than 2 tokens (the longest 4) and"
    assert kept["prompt"][:] == ["a"] * 2004, "one beyond the first batch"
    assert notes == ["data.eval: 1 of 2005 prompts have more than 2 tokens (the longest 3) and are left out"]
    (dropped, said), (cut, lost) = fitted("drop"), fitted("truncate")
    assert dropped[:] == {"prompt": ["a", "c c"], "answer": [1, 3]}
    assert cut[:] == {"prompt": ["a", "b b", "c c", "d d"], "answer": [1, 2, 3, 4]}
    assert [*said, *lost] == [f"data.eval: {two} are left out", f"data.eval: {two} lose their beginnings"]
    fits = Dataset.from_dict({"prompt": ["a b"]})
    assert fitted("error", fits) == (fits, [])


def test_conversations_are_counted_with_their_template() -> None:
    tokenizer = byte_tokenizer(512)
    prompts = [[{"role": "user", "content": text}] for text in ("a", "a" * 40)]
    (alone,) = room(0, tokenizer).longer(prompts[:1]).values()
    written = tokenizer.apply_chat_template(prompts[0], add_generation_prompt=True, tokenize=False)
    assert alone == len(tokenizer(written)["input_ids"])
    assert room(alone + 1, tokenizer).longer(prompts) == {1: alone + 39}
    tokenizer.chat_template = "{{ mood }}"
    assert room(0, tokenizer, mood="gay").longer(prompts) == {0: 3, 1: 3}


@pytest.mark.parametrize("around", [1, 2])
def test_tokens_around_a_text_count(around: int) -> None:
    """Llama's tokenizer begins every text with a token, others end it with one as well; ö has two tokens here."""
    tokenizer = byte_tokenizer(512)
    mark, special = tokenizer.eos_token, (tokenizer.eos_token, tokenizer.eos_token_id)
    single = f"{mark} $A" if around == 1 else f"{mark} $A {mark}"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=[special])
    assert room(20, tokenizer).longer(["ö" * 10, "a" * (20 - around)]) == {0: 20 + around}
    assert room(4, tokenizer).last("abcdef") == "abcdef"[around - 4 :]
    assert [room(limit, tokenizer).last("ab") for limit in (20, 1 + around, around)] == ["ab", "b", ""]
