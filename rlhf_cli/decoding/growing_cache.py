"""Preallocate room for keys and values instead of creating a new tensor for every token.

transformers' DynamicLayer concatenates cached and new entries, so that every token copies all tokens before it into
newly allocated memory.
"""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

ROOM_TOKENS = 32
"""Number of tokens to preallocate."""


class GrowingLayer(DynamicLayer):
    """A DynamicLayer whose keys and values (B, heads, L, size) are views into larger tensors.

    They have room for at most `longest` tokens. Code that replaces them (selected rows, cropped columns) needs no
    changes: the replacements have no room, and the next token allocates some.
    """

    def __init__(self, longest: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._longest = longest
        self._whole: tuple[Tensor, Tensor] | None = None
        self._used: Tensor | None = None
        """The view of `_whole` that `keys` was set to; any other `keys` were set elsewhere."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens; return all of them."""
        length, num_new = self.get_seq_length(), key_states.shape[-2]
        if not length:  # a prompt: there are no other entries to keep
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
        """Keep these rows, and free the others immediately."""
        super().batch_select_indices(indices)
        self._whole = self._used = None

    def _make_room(self, length: int) -> None:
        """Move to larger tensors, keys first: the old keys are freed before the values move."""
        assert self.keys is not None
        assert self.values is not None
        self._whole = self._used = None
        self.keys = keys = _lengthened(self.keys, length)
        self._whole = (keys, _lengthened(self.values, length))

    def _has_room(self, length: int) -> bool:
        return self._whole is not None and self.keys is self._used and length <= self._whole[0].shape[-2]


def let_grow(cache: DynamicCache, *, longest: int) -> None:
    """Replace the empty full-attention layers by GrowingLayers for rows of `longest` tokens."""
    cache.layers = [
        GrowingLayer(longest) if type(layer) is DynamicLayer and not layer.is_initialized else layer
        for layer in cache.layers
    ]


def _lengthened(cached: Tensor, length: int) -> Tensor:
    """Return (B, heads, length, size) that begins with the cached entries; the rest is uninitialised."""
    *rows, num_cached, size = cached.shape
    whole = cached.new_empty((*rows, length, size))
    whole[..., :num_cached, :] = cached
    return whole
