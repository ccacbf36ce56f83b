"""Name the parts of a completion that a dense reward gave values of their own, so that a person can see them. No torch.

A part is a span that the reward named or, where it gave a value a token, a run of neighbours with the same value. The
rewards of a row's parts add up to the row's score, which alone says nothing of them: -1 and +1 are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rlhf_cli.rewards.dense import Span
from rlhf_cli.stack.token_values import Offset, TokenValues


@dataclass(frozen=True)
class Part:
    """Hold a stretch of a completion: its characters [start, end), their text, its reward as given, its tokens."""

    start: int
    end: int
    text: str
    reward: float
    tokens: tuple[int, ...]


def parts_of(text: str, values: TokenValues, offsets: Sequence[Offset], spans: Sequence[Span] | None) -> list[Part]:
    """Return the parts of one row in their order.

    text: the completion. values: what the reward gave, one a token. offsets: the characters of each token. spans: what
    the reward named, None where it named none and gave a value a token.
    """
    if spans is None:
        return _runs(text, values, offsets)
    return [
        Part(start, end, text[start:end], value, tuple(_overlapping(offsets, start, end)))
        for start, end, value in sorted(spans)
    ]


def _runs(text: str, values: TokenValues, offsets: Sequence[Offset]) -> list[Part]:
    """Return the runs of neighbouring tokens that have the same value; tokens without one are in no part."""
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
