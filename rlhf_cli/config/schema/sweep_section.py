"""Defines `sweep`: what a search over settings is to find, and how it looks for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rlhf_cli.config.schema.section import Section


def _several(value: object) -> object:
    """Return a single objective as a list of one."""
    return [value] if isinstance(value, str) else value


def _off(value: object) -> object:
    """Return `off`, which YAML reads as false where a file has it without quotes, as the text."""
    return "off" if value is False else value


class Sweep(Section):
    """A search over settings, which `rlhf train -m` makes in the place of a grid.

    `objective` names metrics of metrics.jsonl; a `-` in front means less is better, several give a front instead of a
    best. `space` maps a key, in which `rewards.*.weight` stands for every reward's, to what it may be:
    `interval(0, 1)`, `tag(log, interval(1e-6, 1e-4))`, `range(1, 9)` or `choice(a, b)`; what is typed on the command
    line in these words is searched as well. `sampler` proposes `trials` of them: `tpe` (Optuna's default), `random`,
    or `nsga2` for fronts. `prune` stops trials that do worse than others at the same step: `median`, or `halving`,
    which lets a third of them go on at every rung; `off` lets all run to their end.
    """

    objective: Annotated[list[str], BeforeValidator(_several), Field(min_length=1)]
    space: dict[str, str] = Field(default_factory=dict)
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    trials: int = Field(default=40, gt=0)
    prune: Annotated[Literal["off", "median", "halving"], BeforeValidator(_off)] = "off"
