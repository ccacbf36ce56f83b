"""How rows are laid out flat, by hand: prompts once, rows in their order, places as in the rows themselves."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from rlhf_cli.models.packing import packed_rows as module
from rlhf_cli.models.packing.packed_rows import packed_rows, packed_texts, passes_of, rows_by_prompt
from rlhf_cli.models.packing.row_attention import Segments, joined_keys

_ = 0
IDS = torch.tensor(
    [[_, 11, 12, 13, 21, 22, _], [_, 11, 12, 14, 31, _, _], [_, _, _, 13, 41, 42, 43], [_, 11, 12, 13, _, _, _]]
)
MASK = (_ != IDS).long()
"""Rows 0, 1 and 3 share 11 12 but for their last token; row 2 has a prompt of one token; row 3 was left out."""


def test_layout() -> None:
    rows, whole = (packed_rows(IDS, MASK, 3, with_last=with_last) for with_last in (False, True))
    assert rows is not None
    assert rows.input_ids.tolist() == [[11, 12, 13, 21, 14, 13, 41, 42, 13]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 2, 0, 1, 2, 2]]
    assert (rows.lengths, rows.shared, rows.num_prompts) == ([2, 2, 1, 3, 1], [0, 0, None, 0], 1)
    # 21 22 are predicted from 13 21, 31 from 14, 41 42 43 from 13 41 42.
    assert rows.input_ids[0, rows.states()].tolist() == [13, 21, 14, 13, 41, 42]
    assert whole is not None
    assert whole.input_ids.tolist() == [[11, 12, 13, 21, 22, 14, 31, 13, 41, 42, 43, 13]]
    assert whole.position_ids.tolist() == [[0, 1, 2, 3, 4, 2, 3, 0, 1, 2, 3, 2]]
    assert whole.input_ids[0, whole.states(with_last=True)].tolist() == [13, 21, 22, 14, 31, 13, 41, 42, 43, 13]


def test_prompts_that_are_alike_for_long_are_told_apart() -> None:
    """Twelve tokens before and twelve behind the one that differs, or a length; what is laid out is what was given."""
    same = list(range(10, 22))
    prompts = [[*same, 5, *same], [*same, 6, *same], [*same, *same], [5, *same, *same], [*same, 5, *same]]
    width = max(map(len, prompts))
    ids = torch.tensor([[_] * (width - len(prompt)) + [*prompt, 30 + row] for row, prompt in enumerate(prompts)])
    rows = packed_rows(ids, (ids != _).long(), 1, with_last=True)
    assert rows is not None
    segments = [one.tolist() for one in rows.input_ids[0].split(rows.lengths)]
    places = [one.tolist() for one in rows.position_ids[0].split(rows.lengths)]
    assert rows.num_prompts == 4  # the first is the last
    for row, (prompt, shared) in enumerate(zip(prompts, rows.shared, strict=True)):
        assert shared is not None
        assert [*segments[shared], *segments[rows.num_prompts + row]] == [*prompt, 30 + row]
        assert [*places[shared], *places[rows.num_prompts + row]] == list(range(len(prompt) + 1))


@pytest.mark.parametrize(
    ("mask", "what"),
    [
        ([[1, 1, 0, 1, 1]], "a hole in the prompt"),
        ([[0, 1, 1, 0, 1]], "a hole in the completion"),
        ([[1, 1, 0, 1, 0]], "a prompt padded on the right"),
        ([[0, 0, 0, 1, 0]], "no prompt"),
    ],
)
def test_what_cannot_be_laid_out(mask: list[list[int]], what: str) -> None:
    assert packed_rows(torch.ones((1, 5), dtype=torch.long), torch.tensor(mask), 2) is None, what


def test_rows_by_prompt() -> None:
    """Padding is no token: the same ids behind other masks are other prompts."""
    ids = torch.tensor([[1, 2], [3, 4], [1, 2], [0, 4], [3, 4], [1, 2]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 1], [1, 1], [0, 1]])
    assert rows_by_prompt(ids, mask).tolist() == [0, 2, 1, 4, 3, 5]
    alike = torch.ones((40, 2), dtype=torch.long)  # torch sorts more than 16 numbers in another way
    assert rows_by_prompt(alike, alike).tolist() == list(range(40))


CPU = torch.device("cpu")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens are enough to be shared."""
    monkeypatch.setattr(module, "MIN_SHARED", 2)


def test_layout_of_texts(short: None) -> None:
    """The first two share 1 2 3, though the last of the second is equal, too: it is that row's own. The third is alone
    with its one token, and so is the fourth: 5 is too little to share.
    """
    rows = packed_texts([[1, 2, 3, 4], [1, 2, 3, 4, 9], [5, 6], [5, 7]], CPU)
    assert rows.input_ids.tolist() == [[1, 2, 3, 4, 4, 9, 5, 6, 5, 7]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 3, 4, 0, 1, 0, 1]]
    assert (rows.lengths, rows.shared) == ([3, 1, 2, 2, 2], [0, 0, None, None])
    assert rows.last_states().tolist() == [3, 5, 7, 9]


def test_a_short_beginning_is_not_shared() -> None:
    for length, shared in ((7, None), (8, 0)):
        assert packed_texts([[*range(length), 8], [*range(length), 9]], CPU).shared == [shared] * 2


@pytest.mark.usefixtures("short")
def test_no_other_groups_of_neighbours_save_more() -> None:
    """Compare with every way to cut six texts into runs of neighbours that share their common beginning."""
    for seed in range(30):
        draw = random.Random(seed)
        first = [1] * draw.randrange(8)  # now and then most of what all have
        texts = sorted([*first, *(draw.randrange(2) for _ in range(draw.randrange(1, 9)))] for _ in range(6))
        least = min(
            sum(map(len, texts)) - sum(_saved(texts[start:end]) for start, end in itertools.pairwise((0, *cuts, 6)))
            for count in range(6)
            for cuts in itertools.combinations(range(1, 6), count)
        )
        assert packed_texts(texts, CPU).input_ids.numel() == least


def _saved(texts: list[list[int]]) -> int:
    length = min(len(text) for text in texts) - 1
    while len({tuple(text[:length]) for text in texts}) > 1:
        length -= 1
    return (len(texts) - 1) * length if length >= 2 else 0


def test_passes_hold_every_text_once_and_no_more_tokens_than_asked() -> None:
    texts = [[5] * 4, [3] * 9, [1] * 2, [1] * 3, [2] * 4]
    assert list(passes_of(texts, 9)) == [[2, 3, 4], [1], [0]]
    assert list(passes_of(texts, 6)) == [[2, 3], [4], [1], [0]]  # the one of nine goes alone
    assert list(passes_of([], 6)) == []
    assert list(passes_of([[1] * 3, [2] * 3, [3] * 3, [4] * 3], 6)) == [[0, 1], [2, 3]]


def test_what_is_laid_out_is_on_the_device_that_was_asked_for() -> None:
    rows = packed_texts([[*range(8), 8], [*range(8), 9]], torch.device("meta"))
    segments, joined = Segments(rows), joined_keys(rows.lengths, rows.shared, torch.device("meta"))
    made = [rows.input_ids, rows.position_ids, rows.last_states(), rows.states(), segments.given]
    made += [joined.places, joined.cu_queries, joined.cu_keys, segments.mask(2, 3, torch.device("meta"))]
    assert {tensor.device.type for tensor in made} == {"meta"}
