"""Declare what generation reads and calls of transformers' causal language models, for type checking.

For mypy it is a class with the methods below, at run time transformers' own: `PreTrainedModel` does not declare that it
can generate, and some parts of `generate` are private. tests/decoding/test_contract.py compares every name below with
transformers.
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
        """The result of a forward pass."""

        logits: Tensor

    class CausalModel(PreTrainedModel):
        """A model that generates."""

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
