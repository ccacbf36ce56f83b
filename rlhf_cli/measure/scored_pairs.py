"""Pairs with the scores that a reward model gives both answers during training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_IDS = ("chosen_ids", "rejected_ids")


@dataclass(frozen=True)
class ScoredPair:
    """A scored pair. `margin` is None if not configured; the verdict ignores it."""

    step: int
    row: int
    prompt: str
    chosen: str
    rejected: str
    score_chosen: float
    score_rejected: float
    margin: float | None

    @property
    def verdict(self) -> str:
        """Return `right` if the chosen answer scores higher, `tie` if both are equal, else `wrong` (also for NaN)."""
        if self.score_chosen == self.score_rejected:
            return "tie"
        return "right" if self.score_chosen > self.score_rejected else "wrong"


def texts_of(row: Mapping[str, object], decode: Callable[..., object]) -> tuple[str, str, str]:
    """Return `(prompt, chosen, rejected)` of a row. Without a prompt column, split where the two answers diverge.

    For conversations, return the last messages. Otherwise decode the token ids even if texts exist, because the ids are
    what is scored.
    """
    asked, chosen, rejected = (_messages(row.get(column)) for column in ("prompt", "chosen", "rejected"))
    if chosen and rejected:
        before = [*asked, *chosen[:-1]]
        return (_content(before[-1]) if before else "", _content(chosen[-1]), _content(rejected[-1]))
    texts = [str(decode(row[ids], skip_special_tokens=True)) for ids in _IDS]
    prompt = row.get("prompt")
    if not (isinstance(prompt, str) and all(text.startswith(prompt) for text in texts)):
        prompt = os.path.commonprefix(texts)  # noqa: RUF071
    chosen_text, rejected_text = (text.removeprefix(prompt) for text in texts)
    return prompt, chosen_text, rejected_text


def _messages(value: object) -> list[Mapping[str, object]]:
    return value if isinstance(value, list) and value and isinstance(value[0], Mapping) else []


def _content(message: Mapping[str, object]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
