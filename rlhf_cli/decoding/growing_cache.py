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
    """A DynamicLayer whose keys and values (B, heads, L, size) are the beginnings of larger tensors.

    Whoever puts others in their place (rows that are taken, columns that are cut) need not know: there is no room
    behind those, and the next token makes some.
    """

    _whole: tuple[Tensor, Tensor] | None = None
    _used: Tensor | None = None
    """The view of `_whole` that `keys` was set to: it is another one as soon as anybody else has set them."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens behind those that are there; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length, num_new = self.get_seq_length(), key_states.shape[-2]
        if not length:  # a prompt: what is read of it is all that there is
            return super().update(key_states, value_states, *args, **kwargs)
        if not self._has_room(length + num_new):
            assert self.keys is not None
            assert self.values is not None
            self._whole = (_with_room(self.keys, num_new), _with_room(self.values, num_new))
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

    def _has_room(self, length: int) -> bool:
        return self._whole is not None and self.keys is self._used and length <= self._whole[0].shape[-2]


def let_grow(cache: DynamicCache) -> None:
    """Have the layers of full attention that are still empty become GrowingLayers."""
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer and not layer.is_initialized else layer  # type: ignore[no-untyped-call]
        for layer in cache.layers
    ]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer


def _with_room(cached: Tensor, num_new: int) -> Tensor:
    """Return a tensor that begins with (B, heads, L, size) and has room for `num_new` tokens and more."""
    *rows, length, size = cached.shape
    whole = cached.new_empty((*rows, length + num_new + ROOM_TOKENS, size))
    whole[..., :length, :] = cached
    return whole
