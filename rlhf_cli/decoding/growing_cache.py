"""Keep keys and values where there is room for the tokens to come, in the place of a new tensor at every token.

transformers' DynamicLayer puts what is cached and what is new together in another tensor, so that every token copies
all tokens before it, into memory that the system may have to hand out anew.
"""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

ROOM_TOKENS = 32
"""For so many tokens more than there are memory is taken."""


class GrowingLayer(DynamicLayer):
    """A DynamicLayer whose keys and values (B, heads, L, size) are the beginnings of larger ones, of `longest` at most.

    Whoever puts others in their place (rows that are taken, columns that are cut) need not know: there is no room
    behind those, and the next token makes some.
    """

    def __init__(self, longest: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._longest = longest
        self._whole: tuple[Tensor, Tensor] | None = None
        self._used: Tensor | None = None
        """The view of `_whole` that `keys` was set to: it is another one as soon as anybody else has set them."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens behind those that are there; returns all of them."""
        length, num_new = self.get_seq_length(), key_states.shape[-2]
        if not length:  # a prompt: what is read of it is all that there is
            return super().update(key_states, value_states, *args, **kwargs)
        if not self._has_room(length + num_new):
            self._make_room(max(length + num_new, min(length + num_new + ROOM_TOKENS, self._longest)))
        assert self._whole is not None
        for whole, new in zip(self._whole, (key_states, value_states), strict=True):
            whole[..., length : length + num_new, :] = new
        self.keys, self.values = (whole[..., : length + num_new, :] for whole in self._whole)
        self._used = self.keys
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, and at once nothing of the others."""
        super().batch_select_indices(indices)
        self._whole = self._used = None

    def _make_room(self, length: int) -> None:
        """Move to larger tensors, the keys first: before the values do, what the keys were is gone."""
        assert self.keys is not None
        assert self.values is not None
        self._whole = self._used = None
        self.keys = keys = _lengthened(self.keys, length)
        self._whole = (keys, _lengthened(self.values, length))

    def _has_room(self, length: int) -> bool:
        return self._whole is not None and self.keys is self._used and length <= self._whole[0].shape[-2]


def let_grow(cache: DynamicCache, *, longest: int) -> None:
    """Have the layers of full attention that are still empty become GrowingLayers for rows of `longest` tokens."""
    cache.layers = [
        GrowingLayer(longest) if type(layer) is DynamicLayer and not layer.is_initialized else layer
        for layer in cache.layers
    ]


def _lengthened(cached: Tensor, length: int) -> Tensor:
    """Return (B, heads, length, size) that begins with what is cached; the rest is what lay in memory."""
    *rows, num_cached, size = cached.shape
    whole = cached.new_empty((*rows, length, size))
    whole[..., :num_cached, :] = cached
    return whole
