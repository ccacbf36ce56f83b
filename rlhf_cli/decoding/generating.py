"""Generate without computing finished rows if possible, and record the mode and its reason."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor
from transformers import GenerationConfig

from rlhf_cli.decoding.causal_model import CausalModel
from rlhf_cli.decoding.live_rows import LiveRows, Unsuited
from rlhf_cli.decoding.suited import why_not_model, why_not_settings
from rlhf_cli.for_a_while import with_values

_OWN = ("assistant_model", "custom_generate", "streamer", "synced_gpus")
"""Arguments of `generate` that belong to another loop, or that our loop would never see."""
_ASKED_FOR = "it was asked for"
_HAS_ITS_OWN = "the model was given a `generate` of its own"
_LEAVES = "finished rows leave the batch, and a prompt is read once for all its rows"


@dataclass(frozen=True)
class GenerationMode:
    """How a model generates: `live`, or `plain` (transformers' own loop); `why` is the reason in words."""

    name: Literal["live", "plain"]
    why: str


def expected_mode(model: CausalModel, config: GenerationConfig, *, is_plain: bool) -> GenerationMode:
    """Return how a model will generate, as far as that is known in advance."""
    own = _HAS_ITS_OWN if _has_its_own(model) else None
    why = _ASKED_FOR if is_plain else own or why_not_model(model) or why_not_settings(config)
    return GenerationMode("live", _LEAVES) if why is None else GenerationMode("plain", why)


@dataclass
class Generating:
    """Generate with a model; `mode` is that of the last call, None before the first.

    is_plain: always use transformers' own loop.
    """

    is_plain: bool = False
    live: LiveRows = field(default_factory=LiveRows)
    mode: GenerationMode | None = None

    def generate(self, stock: Callable[..., Tensor], *args: object, **named: object) -> Tensor:
        """Return what `stock`, a model's `generate`, returns for these arguments, without finished rows if possible."""
        self.live.take_logps()
        own = sorted(name for name in _OWN if named.get(name))
        if self.is_plain:
            self.mode = GenerationMode("plain", _ASKED_FOR)
        elif own:
            self.mode = GenerationMode("plain", f"generate is given {', '.join(own)}")
        else:
            try:
                found = stock(*args, **named, custom_generate=self.live)
            except Unsuited as why:  # raised before the first forward pass or random draw
                self.mode = GenerationMode("plain", str(why))
            else:
                self.mode = GenerationMode("live", _LEAVES)
                return found
        return stock(*args, **named)

    @contextlib.contextmanager
    def of(self, model: CausalModel) -> Iterator[None]:
        """Redirect all calls of `model.generate` to `self.generate` in this context.

        A `generate` set on the instance is not redirected: it may differ from the class's method.
        """
        if _has_its_own(model):
            self.mode = GenerationMode("plain", _HAS_ITS_OWN)
            yield
            return
        with with_values(model, generate=functools.partial(self.generate, model.generate)):
            yield


def _has_its_own(model: CausalModel) -> bool:
    return "generate" in vars(model)
