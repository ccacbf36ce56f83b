"""Count the tokens of prompts as TRL's rollouts make them, and truncate prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase
from trl import is_conversational

_ADDED = 8
"""Upper bound of the special tokens that a tokenizer adds to a plain text."""


class PromptTokens:
    """A token counter for prompts with the policy's tokenizer. A prompt is a text or a list of messages.

    `chat_template_kwargs` is TRL's argument of that name.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, object] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template_kwargs = dict(chat_template_kwargs or {})

    def longer_than(self, limit: int, prompts: Sequence[object]) -> dict[int, int]:
        """Return index -> tokens of the prompts that have more than `limit` tokens."""
        # A token of an ASCII text has at least one character, so most prompts need no tokenisation.
        unsure = [row for row, prompt in enumerate(prompts) if not _is_surely_short(prompt, limit)]
        counted = self._count([prompts[row] for row in unsure]) if unsure else []
        return {row: tokens for row, tokens in zip(unsure, counted, strict=True) if tokens > limit}

    def last(self, text: str, limit: int) -> str:
        """Return the end of a text that has at most `limit` tokens when tokenised again."""
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        for kept in range(min(limit, len(ids)), 0, -1):
            # A token may be part of a character.
            end = str(self._tokenizer.decode(ids[-kept:])).lstrip("\ufffd")
            if len(self._tokenizer(end)["input_ids"]) <= limit:
                return end
        return ""

    def _count(self, prompts: Sequence[object]) -> list[int]:
        if not is_conversational({"prompt": prompts[0]}):
            return [len(ids) for ids in self._tokenizer(list(prompts))["input_ids"]]
        render: Callable[..., object] = self._tokenizer.apply_chat_template  # its return type depends on the arguments
        settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        rendered = cast(
            "Mapping[str, list[list[int]]]", render(list(prompts), **settings, **self._chat_template_kwargs)
        )
        return [len(ids) for ids in rendered["input_ids"]]


def _is_surely_short(prompt: object, limit: int) -> bool:
    return isinstance(prompt, str) and prompt.isascii() and len(prompt) + _ADDED <= limit
