"""From the reward section of an experiment to a reward stack, for training and for `rlhf score` alike. No TRL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_cli.config.schema import Experiment, Reward
from rlhf_cli.plan.components import component
from rlhf_cli.rewards.isolate import Isolated
from rlhf_cli.rewards.resolve import resolve
from rlhf_cli.rewards.stack import RewardStack


def reward_stack(experiment: Experiment, *, device: Any, error_log: Path | None = None) -> RewardStack:
    """The stack of all rewards, its functions imported and its reward models loaded on `device`.

    `error_log` is a JSONL file for the rows a reward fails on. Raises RewardError or ModelError for what cannot be
    found or loaded.
    """
    components = [component(name, reward, _score(name, reward, device)) for name, reward in experiment.rewards.items()]
    return RewardStack(components, record_error=_recorder(error_log) if error_log is not None else None)


def _score(name: str, reward: Reward, device: Any) -> Callable[..., Any]:
    if reward.model is not None:
        from rlhf_cli.models.reward_model import RewardModelScorer  # torch and transformers come with it

        return RewardModelScorer(
            reward.model,
            batch_size=reward.batch_size,
            max_length=reward.max_length,
            dtype=reward.dtype,
            device=reward.device or device,
            with_eos=reward.with_eos,
        )
    assert reward.fn is not None
    if reward.isolate:
        return Isolated(reward.fn, reward.args, timeout_s=reward.timeout_s)
    return resolve(reward.fn, reward.args, where=f"rewards.{name}.fn")


def _recorder(file: Path) -> Callable[[dict[str, Any]], None]:
    def record(row: dict[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, default=str) + "\n")

    return record
