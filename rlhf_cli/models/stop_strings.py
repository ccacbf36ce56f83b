"""Stop generation at texts: transformers calls them `stop_strings`, vLLM `stop`.

A row that ends with one has finished, as with an end-of-sequence token. transformers pads it up to the longest row, and
TRL would train on the padding; so rows are cut behind the text. Only the completion counts, as for vLLM: a text that
begins in the prompt stops nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

from torch import BoolTensor, FloatTensor, LongTensor
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StopStringCriteria

from rlhf_cli.tables.trl_values import STOP_STRINGS

STOP_KEYS = frozenset(STOP_STRINGS.values())


class StopStrings:
    """The texts that end a row, and the tokenizer that they are written in."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts = tokenizer, tuple(texts)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, generation_kwargs: object) -> StopStrings | None:
        """Return the stop strings of TRL's `generation_kwargs`, None without."""
        given = generation_kwargs if isinstance(generation_kwargs, Mapping) else {}
        named = next((given[key] for key in STOP_KEYS if given.get(key)), None)
        return None if named is None else cls(tokenizer, [named] if isinstance(named, str) else named)

    def length(self, ids: Sequence[int]) -> int | None:
        """Return how many tokens a completion has up to its first stop string, None without one."""

        def has_stopped(count: int) -> bool:
            text = self._text(ids[:count])
            return any(stop in text for stop in self.texts)

        return bisect_left(range(len(ids)), True, key=has_stopped) if has_stopped(len(ids)) else None

    def ends(self, ids: Sequence[int]) -> bool:
        """Return whether the last token completes a stop string; one further ahead ended an earlier turn, if any."""
        text = self._text(ids)
        before = self._text(ids[:-1]).rstrip("\ufffd")  # which stands for the first bytes of a character
        return any(stop in text and text.rfind(stop) + len(stop) > len(before) for stop in self.texts)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def cut(self, ids: list[int]) -> list[int]:
        """Return a completion without what comes after its first stop string."""
        return ids[: self.length(ids)]

    def criterion(self, prompt_tokens: int) -> StopCriterion:
        """Return what ends rows of `generate` whose prompts have `prompt_tokens` tokens, with padding."""
        return StopCriterion(self._in_transformers, prompt_tokens)

    @cached_property
    def _in_transformers(self) -> StopStringCriteria:
        return StopStringCriteria(self.tokenizer, list(self.texts))


class StopCriterion(StoppingCriteria):
    """End a row at a stop string in its completion; every row is judged alone."""

    def __init__(self, criterion: StopStringCriteria, prompt_tokens: int) -> None:
        self._criterion, self._prompt_tokens = criterion, prompt_tokens

    def __call__(self, input_ids: LongTensor, scores: FloatTensor, **others: object) -> BoolTensor:
        """Return (B,) bool, True = the row has ended."""
        return cast(BoolTensor, self._criterion(input_ids[:, self._prompt_tokens :], scores))
