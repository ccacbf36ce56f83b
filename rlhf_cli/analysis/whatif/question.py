"""Hold what is asked of a run, its alternatives, and how its trainer makes advantages."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.text.json_values import JsonValue

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KeyChange:
    """A key with its old and new value; None means no value."""

    key: str
    old: JsonValue
    new: JsonValue


@dataclass(frozen=True)
class WhatIfQuestion:
    """The old and the new experiment; `words` are those typed."""

    words: tuple[str, ...]
    old: Experiment
    new: Experiment
    changes: tuple[KeyChange, ...]


def gate_in_words(gate: Mapping[str, object]) -> str:
    """Return `correct >= 1 else zero` for a configured gate."""
    signs = {"at_least": ">=", "at_most": "<=", "equals": "=", "between": "in"}
    bounds = [f"{sign} {_plain(gate[key])}" for key, sign in signs.items() if gate.get(key) is not None]
    return f"{gate['by']} {' and '.join(bounds)} else {_plain(gate['otherwise'])}"


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def alternatives(words: list[str]) -> list[list[str]]:
    """Return every combination of the words' values, with the syntax of `rlhf train -m`.

    Return one list if no word has several values. Raise ConfigError for more than 50 combinations.
    """
    combinations = [list(one) for one in itertools.product(*map(_values, words))]
    if len(combinations) > 50:
        raise ConfigError(
            "so many what-ifs fill no table",
            where="command line",
            got=f"{len(combinations)} combinations",
            expected="at most 50",
            advice="fewer values a word",
        )
    return combinations


def _values(word: str) -> list[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:
        return [word]  # composing the configuration reports the error
    if not override.is_sweep_override():
        return [word]
    return [f"{word.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]


Scale = Literal["group", "batch", "none"]
_SCALES: dict[object, Scale] = {True: "group", False: "none", "group": "group", "batch": "batch", "none": "none"}
"""TRL also accepts a bool."""


@dataclass(frozen=True)
class AdvantageRecipe:
    """The computation of advantages. `baseline` is `group` (GRPO and its variants), `others` (RLOO) or `critic` (PPO).

    `scale` is for GRPO; `is_normalized`, `clip_range` and `kl_coef`, the coefficient of the KL in the reward, are for
    RLOO. `why_none` is the reason why the advantages cannot be computed from the rollouts, or None.
    """

    baseline: Literal["group", "others", "critic"]
    num_generations: int
    scale: Scale = "none"
    is_normalized: bool = False
    clip_range: tuple[float, float] | None = None
    kl_coef: float = 0.0
    why_none: str | None = None

    def advantages(self, totals: Tensor) -> Tensor:
        """Return the trainer's (N,) advantages of (N,) totals."""
        from rlhf_cli.numerics.group_advantages import grpo_advantages, rloo_advantages

        if self.baseline == "others":
            return rloo_advantages(totals, self.num_generations, is_normalized=self.is_normalized)
        return grpo_advantages(totals, self.num_generations, self.scale)


def recipe_of(experiment: Experiment) -> AdvantageRecipe:
    """Return how this experiment's trainer computes advantages from totals."""
    trainer = experiment.trainer
    setting = trainer.setting
    each = int(cast(int, setting("num_generations")))
    if trainer.baseline == "critic":
        return AdvantageRecipe(
            "critic", each, why_none="PPO's advantages are made of its critic's values, which are not stored"
        )
    dense = "trainer.dense gives every token an advantage of its own; the table holds their rewards' sums"
    if trainer.trl == "RLOOTrainer":
        clip = setting("reward_clip_range")
        return AdvantageRecipe(
            "others",
            each,
            is_normalized=bool(setting("normalize_advantages")),
            clip_range=(float(clip[0]), float(clip[1])) if isinstance(clip, list | tuple) else None,
            kl_coef=float(cast(float, setting("beta"))),
        )
    # normalize_then_sum: the stack z-scores within the group, then TRL divides by the batch's deviation.
    whole_batch = experiment.aggregate == "normalize_then_sum"
    scale = "batch" if whole_batch else _SCALES[setting("scale_rewards")]
    return AdvantageRecipe("group", each, scale=scale, why_none=dense if trainer.dense else None)
