"""Tokens of prompts, against what TRL's own rollouts are given; a token of this tokenizer is a byte."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from rlhf_cli.models.loading import PromptTokens
from rlhf_cli.models.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    return PromptTokens(byte_tokenizer(512))


def test_texts_are_counted_in_tokens_and_not_in_characters(tokens: PromptTokens) -> None:
    """ö has two bytes: six of them are twelve tokens."""
    assert tokens.longer_than(8, ["öööööö", "a" * 9, "a" * 8, "ab"]) == {0: 12, 1: 9}


def test_a_short_text_of_other_letters_is_counted_all_the_same(tokens: PromptTokens) -> None:
    assert tokens.longer_than(20, ["ö" * 11, "o" * 11]) == {0: 22}


def test_conversations_are_counted_with_their_template(tokens: PromptTokens) -> None:
    prompts = [[{"role": "user", "content": text}] for text in ("a", "a" * 40)]
    (alone,) = tokens.longer_than(0, prompts[:1]).values()
    assert alone > 1
    assert tokens.longer_than(alone + 1, prompts) == {1: alone + 39}


def test_the_end_of_a_text(tokens: PromptTokens) -> None:
    assert tokens.last("what is 2+2?", 4) == "2+2?"
    assert tokens.last("short", 10) == "short"


def test_the_end_begins_with_a_whole_character(tokens: PromptTokens) -> None:
    """The last three bytes of äöü are half an ö and an ü."""
    assert tokens.last("äöü", 3) == "ü"


def test_half_a_character_is_left_out_where_its_mark_would_fit() -> None:
    """A tokenizer whose tokens are letters, and which reads the mark of half a character as one."""

    class Letters:
        def __call__(self, text: str, **_: object) -> dict[str, list[str]]:
            return {"input_ids": list(text)}

        def decode(self, ids: list[str]) -> str:
            return "".join(ids).replace("h", "\ufffd")

    tokenizer: Any = Letters()
    assert PromptTokens(tokenizer).last("abhc", 2) == "c"


@pytest.mark.parametrize("around", [1, 2])
def test_tokens_around_a_text_count(around: int) -> None:
    """Llama's tokenizer begins every text with a token, others end it with one as well."""
    tokenizer = byte_tokenizer(512)
    mark, special = tokenizer.eos_token, (tokenizer.eos_token, tokenizer.eos_token_id)
    single = f"{mark} $A" if around == 1 else f"{mark} $A {mark}"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=[special])
    assert PromptTokens(tokenizer).longer_than(20, ["a" * 20, "a" * (20 - around)]) == {0: 20 + around}
