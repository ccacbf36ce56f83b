"""Generate rollouts without dead rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Module

from rlhf_cli.models.live_generation import Generating, GenerationMode, expected_mode
from rlhf_cli.models.scalar_heads import CRITIC_HEAD
from rlhf_cli.models.stop_strings import StopStrings
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.trainers.extensions import ExtendedTrainer


def _sent(parameters: Callable[[], Iterator[tuple[str, Tensor]]], *, copies: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield what vLLM is sent of a model: not the head of a critic that shares its body, which vLLM does not know.

    TRL merges an adapter into the weights, yields them and takes it out of them again. The sender of vLLM's server
    reads the last of them, up to a gigabyte, after that: without `copies` it sends the base model.
    """
    for name, parameter in parameters():
        if not name.startswith(f"{CRITIC_HEAD}."):
            yield name, parameter.clone() if copies else parameter


@contextlib.contextmanager
def _kept_precision(model: Module) -> Iterator[None]:
    """Give a model its weights and buffers back after this context: for continuous batching, TRL casts them for good.

    Trained in bfloat16, weights would lose small updates, and positions would be rounded.
    """
    weights = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for parameter, data in weights:
            parameter.data = data
        for module, held in buffers:
            module._buffers.update(held)


class RolloutMixin(ExtendedTrainer):
    """For a TRL trainer that generates: generate as set by `extensions.rewards.generation`."""

    _generating: Generating

    def __init__(self, *args: Any, **named: Any) -> None:
        assert self.extensions.rewards is not None
        self._generating = Generating(is_plain=self.extensions.rewards.generation == "plain")
        super().__init__(*args, **named)
        self.stops = StopStrings.of(self._tokenizer, self.args.generation_kwargs)
        if self.stops is not None and not self.use_vllm:
            self._generating.stops = self.stops
            # `generate` gets them as a criterion: of a setting, it would ask for a tokenizer that TRL does not give it
            self.generation_config.stop_strings = self.generation_kwargs["stop_strings"] = None
        if self.use_vllm:
            vllm = self.vllm_generation
            vllm._iter_named_params = partial(_sent, vllm._iter_named_params, copies=vllm.mode == "server")

    @property
    def generation_mode(self) -> GenerationMode:
        """Return how completions are generated and why: for the last ones, or the expected mode before the first."""
        if self._generating.mode is not None:
            return self._generating.mode
        if self.use_vllm:
            return GenerationMode("plain", "vLLM generates")
        if self.use_transformers_continuous_batching:
            return GenerationMode("plain", "transformers' continuous batching generates")
        model = self.accelerator.unwrap_model(self.model)
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        return expected_mode(inner, self.generation_config, is_plain=self._generating.is_plain)

    def slow_paths(self) -> dict[str, str]:
        found, mode = super().slow_paths(), self.generation_mode
        has_engine = self.use_vllm or self.use_transformers_continuous_batching
        if set(IMAGES) & set(self.train_dataset.column_names):
            found["the check of prompt lengths"] = "only the processor knows how many tokens an image has"
        return found if mode.name == "live" or has_engine else found | {"live generation": mode.why}

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        is_cast = self.use_transformers_continuous_batching
        with self._generating.of(self.model), _kept_precision(self.model) if is_cast else contextlib.nullcontext():
            generated = super()._generate_single_turn(*args, **named)
        completions = generated[0] if isinstance(generated, tuple) else generated  # RLOO returns no more
        if self._generating.stops is not None:
            completions[:] = map(self._generating.stops.cut, completions)
        return generated
