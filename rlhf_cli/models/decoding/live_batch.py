"""Hold the unfinished rows of a generation and their key-value cache.

transformers' DynamicLayer concatenates cached and new entries, so that every token copies all tokens before it into
newly allocated memory.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from rlhf_cli.models.decoding.eligibility import CausalModel

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


class LiveBatch:
    """Read prompts, then one token at a time, for fewer and fewer rows: B at first, N now, L tokens each so far.

    `rows` (N,): their ascending indices among the B. `ids` (N, L): their tokens with all padding, for score processors
    and stopping criteria. `is_live` (N,) bool: has not ended; ended rows stay in the batch until `drop_ended`.
    `inputs`: the model's inputs for these rows as prepared by `generate`, including cache and masks. `longest`: the
    maximum of L.
    """

    def __init__(self, model: CausalModel, ids: Tensor, inputs: dict[str, object], *, longest: int) -> None:
        cache = inputs["past_key_values"]
        assert isinstance(cache, DynamicCache)
        let_grow(cache, longest=longest)
        self._model, self._cache, self._inputs, self.ids = model, cache, inputs, ids
        self.rows = torch.arange(len(ids), device=ids.device)
        self.is_live = torch.ones(len(ids), dtype=torch.bool, device=ids.device)

    def read_prompts(self, *, once_each: bool) -> tuple[Tensor, int]:
        """Return (B, V) float32 logits of the first token, and how many rows the model read for them.

        once_each: rows with equal prompts are read once, and the cache is then copied to each.
        """
        mask = self._inputs.get("attention_mask")
        seen = self.ids if mask is None else torch.cat([self.ids, _tensor(mask)], dim=1)
        firsts, copies = first_of_each(seen) if once_each else (self.rows, self.rows)
        alone = _rows_of(self._inputs, firsts)
        ready = self._model.prepare_inputs_for_generation(self.ids[firsts], is_first_iteration=True, **alone)
        logits = self._read(ready)
        if len(firsts) == len(self.rows):
            return logits, len(firsts)
        self._cache.batch_select_indices(copies)
        return logits[copies], len(firsts)

    def read_tokens(self) -> Tensor:
        """Return (N, V) float32 logits of the next token; the model reads only the last of `ids`."""
        return self._read(self._model.prepare_inputs_for_generation(self.ids, next_sequence_length=1, **self._inputs))

    def append(self, tokens: Tensor) -> None:
        """Append (N,) tokens to the rows."""
        self.ids = torch.cat([self.ids, tokens.unsqueeze(1)], dim=1)

    def drop_ended(self) -> Tensor:
        """Remove ended rows from batch and cache, and columns that are padding in all others.

        Return the batch indices of the remaining rows.
        """
        kept = self.is_live.nonzero().squeeze(1)
        self.rows, self.ids, self.is_live = self.rows[kept], self.ids[kept], self.is_live[kept]
        self._inputs = _rows_of(self._inputs, kept)
        self._cache.batch_select_indices(kept)
        self._crop()
        return kept

    def _crop(self) -> None:
        mask, positions = self._inputs.get("attention_mask"), self._inputs.get("position_ids")
        # Without explicit positions, a model counts them from the cache.
        if mask is None or positions is None or any(type(layer) is not GrowingLayer for layer in self._cache.layers):
            return
        padding = int(_tensor(mask).argmax(dim=1).min())
        if not padding:
            return
        for layer in self._cache.layers:
            assert isinstance(layer, GrowingLayer)
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys, layer.values = layer.keys[..., padding:, :], layer.values[..., padding:, :]
        self._inputs["attention_mask"] = _tensor(mask)[:, padding:]

    def _read(self, ready: dict[str, object]) -> Tensor:
        outputs = self._model(**ready, return_dict=True)
        self._inputs = self._model._update_model_kwargs_for_generation(outputs, self._inputs)
        logits: Tensor = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.ids.device)
        return logits


def first_of_each(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return (U,), ascending indices of the first row of each distinct value, and (B,) indices into them.

    seen: (B, L). The second result is the distinct value that each row has.
    """
    _, which = torch.unique(seen, dim=0, return_inverse=True)
    rows = torch.arange(len(seen), device=seen.device)
    firsts = torch.full_like(rows, len(seen)).scatter_reduce(0, which, rows, "amin")
    own = firsts[which]
    kept = (own == rows).nonzero().squeeze(1)
    return kept, torch.searchsorted(kept, own)


def _rows_of(inputs: dict[str, object], rows: Tensor) -> dict[str, object]:
    """Return the rows of all tensors, and other values unchanged; the cache's rows are selected in place."""
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in inputs.items()}


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
