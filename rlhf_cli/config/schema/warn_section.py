"""Defines `warn`: what a running training says of itself, a switch a kind of finding."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from rlhf_cli.config.schema.section import Section
from rlhf_cli.tables.finding_kinds import FINDING_KINDS

_WORDS = {"on": True, "off": False}


def _switch(value: object) -> object:
    """Return true or false; YAML makes these of a bare `on` and `off`, a command line leaves the words."""
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if not isinstance(value, bool):
        raise ValueError("on or off")
    return value


Switch = Annotated[bool, BeforeValidator(_switch)]


def all_switches(value: object) -> object:
    """Return the switches that are meant by one word for all of them; a section as it is."""
    if isinstance(value, bool) or (isinstance(value, str) and value in _WORDS):
        return dict.fromkeys(FINDING_KINDS, _switch(value))
    if not isinstance(value, dict | Warn):
        raise ValueError("a switch a kind, such as {redundant: off}; or off, for all of them")
    return value


class Warn(Section):
    """The warnings of a running training, each of which it says once: a switch a kind of what `rlhf why` finds.

    `on` says it, `off` is silent; `warn: off` is silent about all of them. What ends a run is `guards` and `stop`.
    """

    non_finite: Switch = True
    reward_errors: Switch = True
    dead_reward: Switch = True
    gate: Switch = True
    no_deviation: Switch = True
    overoptimised: Switch = True
    learning: Switch = True
    kl: Switch = True
    truncation: Switch = True
    length: Switch = True
    entropy: Switch = True
    redundant: Switch = True
    one_reward: Switch = True
    clipping: Switch = True
    explained_variance: Switch = True
    value_loss: Switch = True
    time: Switch = True

    @property
    def kinds(self) -> list[str]:
        """Return the kinds that are said."""
        return [kind for kind in FINDING_KINDS if getattr(self, kind)]
