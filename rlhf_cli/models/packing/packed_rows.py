"""Lay padded batches or texts out in one flat row.

A batch of prompts (padded on the left) and completions (padded on the right) becomes consecutive segments: every
distinct prompt without its last token, then every row's own part. The own part begins with the prompt's last token,
because its prediction belongs to the row. It attends to its prompt's segment and, causally, to itself.

In dictionary order the answers to one prompt are adjacent, so they share it as their prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

Text = Sequence[int]
"""The tokens of a text, at least one."""


@dataclass(frozen=True)
class PackedRows:
    """B rows in N positions.

    `input_ids`, `position_ids` (1, N): a token and its position in its own row. `lengths`: tokens of each segment,
    prompts first, then the rows in order. `shared`: the prompt segment of every row, None if its prompt is a single
    token. `starts` (B,): the position of every row's first token, its prompt's last. `num_completion`: tokens of each
    row's completion.
    """

    input_ids: Tensor
    position_ids: Tensor
    lengths: list[int]
    shared: list[int | None]
    starts: list[int]
    num_completion: list[int]

    @property
    def num_prompts(self) -> int:
        """Return the number of prompt segments."""
        return len(self.lengths) - len(self.shared)

    def states(self, *, with_last: bool = False) -> Tensor:
        """Return (S,), where states predict completion tokens; `with_last`: also where each row's last token is."""
        rows = zip(self.starts, self.num_completion, strict=True)
        places = [place for start, count in rows for place in range(start, start + count + with_last)]
        return torch.tensor(places, dtype=torch.long, device=self.input_ids.device)

    def last_states(self) -> Tensor:
        """Return (B,): the position of each row's last token, if it was packed."""
        ends = list(map(sum, zip(self.starts, self.num_completion, strict=True)))
        return torch.tensor(ends, device=self.input_ids.device)


def packed_rows(ids: Tensor, mask: Tensor, num_completion: int, *, with_last: bool = False) -> PackedRows | None:
    """Pack rows of (B, P + C) token ids, whose last C columns are completions; `mask` is 1 for tokens.

    `with_last`: keep the last token of each completion, whose state predicts no token. Return None if the rows cannot
    be packed: a prompt without a token, or padding between tokens.
    """
    device = ids.device
    ids, mask = torch.stack([ids, mask.to(ids.dtype)]).cpu()  # a GPU is waited for once
    prompt_mask, completion_mask = mask[:, :-num_completion].bool(), mask[:, -num_completion:].bool()
    is_left_padded = not (prompt_mask[:, :-1] & ~prompt_mask[:, 1:]).any()
    is_right_padded = not (completion_mask[:, 1:] & ~completion_mask[:, :-1]).any()
    if not (prompt_mask.shape[1] and prompt_mask[:, -1].all() and is_left_padded and is_right_padded):
        return None
    prompt_lengths, counts = prompt_mask.sum(dim=1).tolist(), completion_mask.sum(dim=1).tolist()
    width = prompt_mask.shape[1]
    found: dict[Text, int] = {}
    shared: list[int | None] = []
    own: list[Text] = []
    for tokens, length, count in zip(ids.tolist(), prompt_lengths, counts, strict=True):
        prompt = tuple(tokens[width - length : width - 1])
        shared.append(found.setdefault(prompt, len(found)) if prompt else None)
        own.append(tokens[width - 1 : width + (count if with_last else max(count - 1, 0))])
    return _laid_out([*found], own, [length - 1 for length in prompt_lengths], shared, counts, device)


def _laid_out(
    prompts: list[Text],
    own: list[Text],
    begins: list[int],
    shared: list[int | None],
    num_completion: list[int],
    device: torch.device,
) -> PackedRows:
    """Return the rows that continue prompts with their own parts; `begins`: where these begin in their rows."""
    segments, firsts = [*prompts, *own], [0] * len(prompts) + begins
    lengths = list(map(len, segments))
    ids = [token for segment in segments for token in segment]
    positions = [first + place for first, length in zip(firsts, lengths, strict=True) for place in range(length)]
    return PackedRows(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        lengths=lengths,
        shared=shared,
        starts=[0, *accumulate(lengths)][len(prompts) : -1],
        num_completion=num_completion,
    )


def rows_by_prompt(ids: Tensor, mask: Tensor) -> Tensor:
    """Return (B,), an order of rows in which equal prompts are adjacent; ids, mask: (B, P), padded on the left."""
    first: dict[tuple[int, ...], int] = {}
    places = [first.setdefault(tuple(prompt), len(first)) for prompt in ids.where(mask.bool(), -1).tolist()]
    return torch.tensor(places, device=ids.device).argsort(stable=True)


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
    return _laid_out(prompts, own, begins, shared, [len(part) - 1 for part in own], device)


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
