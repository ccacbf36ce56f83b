"""List the parts of a completion that a dense reward scored, for display. Does not import torch.

A part is a span that the reward returned or, for one value per token, a run of tokens with equal values. The parts'
rewards sum to the row's score, which hides them: -1 and +1 make 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rlhf_cli.rewards.dense import Span
from rlhf_cli.stack.token_values import Offset, TokenValues


@dataclass(frozen=True)
class Part:
    """A scored stretch of a completion: its characters [start, end), text, reward and tokens."""

    start: int
    end: int
    text: str
    reward: float
    tokens: tuple[int, ...]


def parts_of(text: str, values: TokenValues, offsets: Sequence[Offset], spans: Sequence[Span] | None) -> list[Part]:
    """Return the parts of one row in order.

    text: the completion. values: the reward's values, one per token. offsets: the characters of each token. spans: the
    spans that the reward returned, None if it returned one value per token.
    """
    if spans is None:
        return _runs(text, values, offsets)
    return [
        Part(start, end, text[start:end], value, tuple(_overlapping(offsets, start, end)))
        for start, end, value in sorted(spans)
    ]


def _runs(text: str, values: TokenValues, offsets: Sequence[Offset]) -> list[Part]:
    """Return runs of adjacent tokens with equal values; tokens without a value are in no part."""
    parts = []
    for value, run in groupby(range(len(values)), key=values.__getitem__):
        if value is None:
            continue
        tokens = tuple(run)
        start, end = offsets[tokens[0]][0], max(offsets[token][1] for token in tokens)
        parts.append(Part(start, end, text[start:end], value * len(tokens), tokens))
    return parts


def _overlapping(offsets: Sequence[Offset], start: int, end: int) -> list[int]:
    return [token for token, (first, last) in enumerate(offsets) if max(first, start) < min(last, end)]
