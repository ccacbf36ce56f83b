"""Declare what generation reads and calls of a causal language model of transformers.

For mypy a class with the methods below, at run time transformers' own: `PreTrainedModel` does not say that it can
generate, and some of what `generate` is made of has a name of its own for insiders. tests/decoding/test_contract.py
holds every name below against transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import PreTrainedModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Protocol

    from torch import Tensor

    class Outputs(Protocol):
        """Declare what a pass returns."""

        logits: Tensor

    class CausalModel(PreTrainedModel):
        """Declare a model that generates."""

        generate: Callable[..., Tensor]

        def __call__(self, **inputs: object) -> Outputs: ...
        def prepare_inputs_for_generation(self, input_ids: Tensor, **inputs: object) -> dict[str, object]: ...
        def _optimize_model_for_decode(self) -> AbstractContextManager[None]: ...
        def _supports_default_dynamic_cache(self) -> bool: ...
        def _update_model_kwargs_for_generation(
            self, outputs: Outputs, model_kwargs: dict[str, object]
        ) -> dict[str, object]: ...

else:
    CausalModel = PreTrainedModel
