"""Pack whole texts into flat rows, in which adjacent texts share a common prefix, and split texts into such rows.

In dictionary order the answers to one prompt are adjacent, so they share it as their prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from rlhf_cli.packing.packed_rows import PackedRows

Text = Sequence[int]
"""The tokens of a text, at least one."""

MIN_SHARED = 8
"""A shorter prefix (a template's first words) is not worth a segment of its own."""


def passes_of(texts: Sequence[Text], max_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of texts that go through a model together, in dictionary order.

    Their tokens are at most `max_tokens`, counting shared prefixes once per text; a longer text goes alone.
    """
    batch: list[int] = []
    num_tokens = 0
    for place in sorted(range(len(texts)), key=lambda place: list(texts[place])):
        if batch and num_tokens + len(texts[place]) > max_tokens:
            yield batch
            batch, num_tokens = [], 0
        batch.append(place)
        num_tokens += len(texts[place])
    if batch:
        yield batch


def packed_texts(texts: Sequence[Text], device: torch.device) -> PackedRows:
    """Pack B texts in which adjacent ones may share a prefix; each keeps its last token in its own part."""
    prompts: list[Text] = []
    shared: list[int | None] = []
    begins: list[int] = []  # where each row's own part begins in its text
    for start, end, length in _groups([_common(*both) for both in pairwise(texts)]):
        if length:
            prompts.append(texts[start][:length])
        shared += [len(prompts) - 1 if length else None] * (end - start)
        begins += [length] * (end - start)
    own = [text[begin:] for text, begin in zip(texts, begins, strict=True)]
    segments = [*prompts, *own]
    ids = [token for segment in segments for token in segment]
    positions = [place for prompt in prompts for place in range(len(prompt))]
    positions += [place for text, begin in zip(texts, begins, strict=True) for place in range(begin, len(text))]
    lengths = [len(segment) for segment in segments]
    starts, start = [], sum(lengths[: len(prompts)])
    for part in own:
        starts.append(start)
        start += len(part)
    return PackedRows(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        lengths=lengths,
        shared=shared,
        starts=starts,
        num_completion=[len(part) - 1 for part in own],
    )


def _common(one: Text, other: Text) -> int:
    """Return the length of the common prefix, without the last token of either."""
    most = min(len(one), len(other)) - 1
    return next((place for place in range(most) if one[place] != other[place]), most)


def _groups(common: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (start, end, length) of adjacent texts that share their first `length` tokens, 0 for a single text.

    common: the common prefix length of each text and the next one. The grouping saves the most tokens of all. It is
    found by dynamic programming: `best[end]` covers the texts before `end`, by the group that ends there.
    """
    best = [(0, 0, 0)]  # tokens saved, where the last group starts, its length
    for end in range(1, len(common) + 2):
        found = (best[end - 1][0], end - 1, 0)
        length = common[end - 2] if end > 1 else 0
        for start in range(end - 2, -1, -1):
            length = min(length, common[start])
            if length < MIN_SHARED:
                break
            saved = best[start][0] + (end - 1 - start) * length
            if saved > found[0]:
                found = (saved, start, length)
        best.append(found)
    groups, end = [], len(common) + 1
    while end:
        _, start, length = best[end]
        groups.append((start, end, length))
        end = start
    return groups[::-1]
