"""The unfinished rows of a generation batch, and the model's inputs for them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from rlhf_cli.decoding.causal_model import CausalModel
from rlhf_cli.decoding.growing_cache import GrowingLayer, let_grow


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
