"""A growing layer holds the same entries as transformers' own after every operation, with far fewer copies."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

from rlhf_cli.models.decoding import live_batch
from rlhf_cli.models.decoding.live_batch import ROOM_TOKENS, GrowingLayer, let_grow

ROWS, HEADS, SIZE, PROMPT, LONGEST = 5, 2, 3, 4, 1000


class Both:
    """The same tokens given to a GrowingLayer and to transformers' own layer."""

    def __init__(self) -> None:
        self.ours, self.theirs = GrowingLayer(LONGEST), DynamicLayer()
        self._draws = torch.Generator().manual_seed(0)
        self._rows = ROWS

    def read(self, num_tokens: int) -> None:
        keys, values = torch.randn(2, self._rows, HEADS, num_tokens, SIZE, generator=self._draws)
        returned = self.ours.update(keys.clone(), values.clone())
        for found, expected in zip(returned, self.theirs.update(keys, values), strict=True):
            assert torch.equal(found, expected)
        self.are_equal()

    def take(self, rows: list[int]) -> None:
        for layer in (self.ours, self.theirs):
            layer.batch_select_indices(torch.tensor(rows))
        self._rows = len(rows)
        self.are_equal()

    def cut(self, columns: int) -> None:
        for layer in (self.ours, self.theirs):
            layer.keys, layer.values = layer.keys[..., columns:, :], layer.values[..., columns:, :]
        self.are_equal()

    def are_equal(self) -> None:
        assert torch.equal(self.ours.keys, self.theirs.keys)
        assert torch.equal(self.ours.values, self.theirs.values)
        assert self.ours.get_seq_length() == self.theirs.get_seq_length()


def test_whatever_is_done_to_it() -> None:
    both = Both()
    both.read(PROMPT)
    for _ in range(ROOM_TOKENS + 3):
        both.read(1)
    both.take([0, 2, 3])
    for _ in range(3):
        both.read(1)
    both.cut(2)
    both.read(1)
    both.read(2)
    for layer in (both.ours, both.theirs):
        layer.crop(-3)  # as assisted decoding takes back what it guessed
    both.read(1)
    both.take([2, 2, 0])
    both.read(ROOM_TOKENS + 5)
    both.read(1)


def test_what_was_handed_out_stays_as_it_is() -> None:
    """The next token does not overwrite keys that a caller kept."""
    layer = GrowingLayer(LONGEST)
    layer.update(*torch.zeros(2, ROWS, HEADS, PROMPT, SIZE))
    kept = [layer.update(*torch.full((2, ROWS, HEADS, 1, SIZE), float(step)))[0] for step in range(1, 6)]
    for step, keys in enumerate(kept, start=1):
        assert keys.shape[-2] == PROMPT + step
        assert keys[..., -1, :].eq(step).all()


def places(layer: DynamicLayer, num_tokens: int) -> int:
    """Return the number of memory blocks that the keys occupied while the tokens were read."""
    layer.update(*torch.zeros(2, ROWS, HEADS, PROMPT, SIZE))
    found: list[Tensor] = []  # kept, so that no place is used again
    for _ in range(num_tokens):
        layer.update(*torch.zeros(2, ROWS, HEADS, 1, SIZE))
        found.append(layer.keys)
    return len({keys.untyped_storage().data_ptr() for keys in found})


def test_it_is_copied_once_in_so_many_tokens() -> None:
    """32 more than there is a token for: the first has room for 33, and so has every one after it."""
    assert places(GrowingLayer(LONGEST), ROOM_TOKENS + 1) == 1
    assert places(GrowingLayer(LONGEST), ROOM_TOKENS + 2) == 2
    assert places(DynamicLayer(), 10) == 10  # negative control


def test_rows_that_leave_take_their_memory_with_them() -> None:
    layer = GrowingLayer(LONGEST)
    for num_tokens in (PROMPT, 1):
        layer.update(*torch.zeros(2, ROWS, HEADS, num_tokens, SIZE))
    assert layer._whole is not None
    before = [weakref.ref(one) for one in (layer.keys, *layer._whole)]
    layer.batch_select_indices(torch.tensor([0]))
    assert [one() for one in before] == [None] * 3


def test_the_old_keys_go_before_room_is_made_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most memory is that of one tensor beside its old self, and not of two."""
    layer = GrowingLayer(LONGEST)
    layer.update(*torch.zeros(2, ROWS, HEADS, PROMPT, SIZE))
    old, lengthened, gone = weakref.ref(layer.keys), live_batch._lengthened, []

    def noted(cached: Tensor, length: int) -> Tensor:
        gone.append(old() is None)
        return lengthened(cached, length)

    monkeypatch.setattr(live_batch, "_lengthened", noted)
    layer.update(*torch.zeros(2, ROWS, HEADS, 1, SIZE))
    assert gone == [False, True]


def test_no_more_room_than_is_said() -> None:
    layer = GrowingLayer(LONGEST)
    layer.update(*torch.zeros(2, ROWS, HEADS, PROMPT, SIZE))
    layer.update(*torch.zeros(2, ROWS, HEADS, 1, SIZE))
    assert layer.keys.untyped_storage().nbytes() == ROWS * HEADS * (PROMPT + 1 + ROOM_TOKENS) * SIZE * 4


@pytest.mark.parametrize(
    ("longest", "num_places"), [(PROMPT + 7, PROMPT + 7), (PROMPT + 1, PROMPT + 1), (2, PROMPT + 1)]
)
def test_nor_more_than_a_row_may_have(longest: int, num_places: int) -> None:
    """If `longest` was too small, there is still room for every token."""
    layer = GrowingLayer(longest)
    layer.update(*torch.zeros(2, ROWS, HEADS, PROMPT, SIZE))
    layer.update(*torch.zeros(2, ROWS, HEADS, 1, SIZE))
    assert layer.keys.shape[-2] == PROMPT + 1
    assert layer.keys.untyped_storage().nbytes() == ROWS * HEADS * num_places * SIZE * 4


def test_only_empty_layers_of_full_attention_grow() -> None:
    cache = DynamicCache(config=LlamaConfig(num_hidden_layers=2))
    let_grow(cache, longest=LONGEST)
    assert [type(layer) for layer in cache.layers] == [GrowingLayer, GrowingLayer]
    read = DynamicCache()
    read.update(*torch.zeros(2, ROWS, HEADS, PROMPT, SIZE), 0)
    let_grow(read, longest=LONGEST)
    assert type(read.layers[0]) is DynamicLayer  # what it holds is not to be lost
    windows = LlamaConfig(num_hidden_layers=2, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    mixed = DynamicCache(config=windows)
    let_grow(mixed, longest=LONGEST)
    assert [type(layer) is GrowingLayer for layer in mixed.layers] == [False, True]
