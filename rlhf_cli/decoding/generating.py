"""Let a model generate, without dead rows where that is possible, and say how it was done and why."""

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
"""Arguments of `generate` that are for a loop of somebody else's, or that a loop of ours would never see."""
_ASKED_FOR = "it was asked for"
_HAS_ITS_OWN = "the model was given a `generate` of its own"
_LEAVES = "finished rows leave the batch, and a prompt is read once for all its rows"


@dataclass(frozen=True)
class GenerationMode:
    """Say how a model generates: `live`, or `plain`, transformers' own loop; `why` in words."""

    name: Literal["live", "plain"]
    why: str


def expected_mode(model: CausalModel, config: GenerationConfig, *, is_plain: bool) -> GenerationMode:
    """Return how a model is going to generate, as far as can be said before it is asked to."""
    own = _HAS_ITS_OWN if _has_its_own(model) else None
    why = _ASKED_FOR if is_plain else own or why_not_model(model) or why_not_settings(config)
    return GenerationMode("live", _LEAVES) if why is None else GenerationMode("plain", why)


@dataclass
class Generating:
    """Hold how a model generates, and what came of it: `mode` of the last time it was asked to, None before.

    is_plain: by transformers' own loop, whatever is asked of it.
    """

    is_plain: bool = False
    live: LiveRows = field(default_factory=LiveRows)
    mode: GenerationMode | None = None

    def generate(self, stock: Callable[..., Tensor], *args: object, **named: object) -> Tensor:
        """Return what `stock`, a model's `generate`, returns for these arguments, made without dead rows if it can."""
        self.live.take_logps()
        own = sorted(name for name in _OWN if named.get(name))
        if self.is_plain:
            self.mode = GenerationMode("plain", _ASKED_FOR)
        elif own:
            self.mode = GenerationMode("plain", f"generate is given {', '.join(own)}")
        else:
            try:
                found = stock(*args, **named, custom_generate=self.live)
            except Unsuited as why:  # raised before a pass was made or a number drawn
                self.mode = GenerationMode("plain", str(why))
            else:
                self.mode = GenerationMode("live", _LEAVES)
                return found
        return stock(*args, **named)

    @contextlib.contextmanager
    def of(self, model: CausalModel) -> Iterator[None]:
        """Open a context in which `model.generate` goes through `self.generate`, whoever calls it.

        A `generate` that sits on the instance stays: it may not do what the method of the class does.
        """
        if _has_its_own(model):
            self.mode = GenerationMode("plain", _HAS_ITS_OWN)
            yield
            return
        with with_values(model, generate=functools.partial(self.generate, model.generate)):
            yield


def _has_its_own(model: CausalModel) -> bool:
    return "generate" in vars(model)
