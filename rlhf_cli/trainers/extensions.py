"""The base of our mixins, and what a trainer is built with beside TRL's arguments."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_cli.algorithms.base import Algorithm
from rlhf_cli.algorithms.grpo import Grpo
from rlhf_cli.models.live_generation import arguments_alone
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.tables.passes import GenerationSetting, PassSetting
from rlhf_cli.tables.trl_trainers import Normaliser
from rlhf_cli.tools_and_environments import Interactions
from rlhf_cli.trainers.step_profile import StepProfile
from rlhf_cli.trainers.trl_protocol import EvaluationOutput, TrlTrainer
from rlhf_cli.truncation import TruncationPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from rlhf_cli.evaluation.evaluation_results import PartAnswers
    from rlhf_cli.models.live_generation import StopStrings
    from rlhf_cli.trainers.ppo.critic import PpoSetup


SumUp = Callable[
    ["dict[str, PartAnswers]", list[float], int, Mapping[str, RunningDeviation], str], dict[str, float | None]
]
"""Compute metric -> value from the answers by sampling mode, reward weights, step, running deviations by reward, and
the name of the evaluation set ('' for a single one)."""


@dataclass(frozen=True)
class KeepGroups:
    """Draw a round up to `tries` times for groups whose raw reward `by` differs; `total` means their total."""

    by: str
    tries: int


@dataclass(frozen=True)
class RewardSetup:
    """How a generating trainer scores its completions, in training and in an evaluation.

    `is_dense`: every token has its own advantage. `no_signal`: the run ends after this many consecutive rounds whose
    advantages are all 0; None for never. `sum_up` computes metrics from the answers of an evaluation; None keeps TRL's.
    `loss_divisor`: the divisor of the trainer's loss, None if it follows from `loss_type`. `keep_groups`: which groups
    a round keeps; None draws it once. `interactions`: the tools, environments and rollout function, if there are any.
    """

    stack: RewardStack
    algorithm: Algorithm = field(default_factory=Grpo)
    aggregate: Aggregate = "sum"
    is_dense: bool = False
    no_signal: int | None = None
    truncation: TruncationPolicy = field(default_factory=TruncationPolicy)
    sum_up: SumUp | None = None
    loss_divisor: Normaliser | None = None
    passes: PassSetting = "auto"
    generation: GenerationSetting = "auto"
    keep_groups: KeepGroups | None = None
    interactions: Interactions | None = None


@dataclass(frozen=True)
class Extensions:
    """Everything that our mixins read; `rewards` and `ppo` are None for a trainer that does not use them.

    - `table_log` receives TRL's printed output.
    - `measured` are a prepared row's columns: its beginning, and texts (only the longest counts); None without rows.
    - `left_out` counts rows that were rejected earlier, as name of the data -> reason -> number.
    - `ends_with_eos`: whether a reward model's texts end with the end-of-sequence token; None without such a model.
    - `conversations`: whether the rows are conversations; None if they are token ids.
    - `may_lose_state`: resume from the weights alone if optimizer, schedule or random state are missing; else refuse.
    - `heartbeat` receives the current phase, and `profile` measures times; None to disable.
    """

    table_log: Path | None = None
    measured: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ends_with_eos: bool | None = None
    conversations: bool | None = None
    may_lose_state: bool = False
    heartbeat: Heartbeat | None = None
    profile: StepProfile | None = None
    rewards: RewardSetup | None = None
    ppo: PpoSetup | None = None


_TOKENS, _TOKENS_FILE = "_total_train_tokens", "trained_tokens.json"
"""TRL's count behind the metric `num_tokens`, which its trainers of rows begin at 0."""


class ExtendedTrainer(TrlTrainer):
    """A TRL trainer with our mixins; this is the base of all of them.

    `extensions` is an attribute of the built class, so it is there before any constructor runs. CheckpointMixin calls
    `save_state` and `load_state` with a checkpoint's folder; a mixin with state of its own overrides both and calls
    super(). Only the rank with `args.should_save` writes.
    """

    extensions: Extensions
    _sizes: list[int]
    stops: StopStrings | None = None
    """The texts that end a completion; set by RolloutMixin."""

    def evaluation_loop(self, *args: Any, **named: Any) -> EvaluationOutput:
        """Evaluate, and average TRL's means of batches over rows: it counts a smaller last batch like the others."""
        self._sizes = []
        output = super().evaluation_loop(*args, **named)
        for values in getattr(self, "_metrics", {}).get("eval", {}).values():
            known = [pair for pair in zip(values, self._sizes, strict=False) if not math.isnan(pair[0])]
            if known and len(values) == len(self._sizes):
                values[:] = [sum(value * size for value, size in known) / sum(size for _, size in known)]
        return output

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        """Count every row once: GOLD's sampler and IW-OPD's loader repeat those of a window for each micro-batch."""
        counted = super()._get_num_items_in_batch(batch_samples, device)
        repeats = getattr(getattr(self, "_train_sampler", None), "repeat_count", 1)
        distinct = len({*map(id, batch_samples)}) / max(len(batch_samples), 1)
        return counted if counted is None else counted * distinct / repeats

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Evaluate a batch, for which a trainer may generate: as its arguments say."""
        self._sizes.append(len(inputs) if isinstance(inputs, list) else len(next(iter(inputs.values()))))
        with arguments_alone(self.model):
            return super().prediction_step(model, inputs, *args, **named)

    def training_step(self, *args: Any, **named: Any) -> Tensor:
        """Take TRL's step, for which a trainer may generate: as its arguments say."""
        with arguments_alone(self.model):
            return super().training_step(*args, **named)

    def slow_paths(self) -> dict[str, str]:
        """Return each speed path that is off, and why: what is expected, and after the first step what was observed."""
        return {}

    def save_state(self, folder: Path) -> None:
        """Write a mixin's own state into a checkpoint, and how many tokens a trainer of rows has counted."""
        if self.args.should_save:
            count = {_TOKENS: getattr(self, _TOKENS, 0)}
            (folder / _TOKENS_FILE).write_text(json.dumps(count), encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote; older checkpoints have no count of tokens."""
        if hasattr(self, _TOKENS) and (file := folder / _TOKENS_FILE).is_file():
            setattr(self, _TOKENS, json.loads(file.read_text(encoding="utf-8"))[_TOKENS])
