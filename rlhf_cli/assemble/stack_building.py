"""Build a reward stack from the sections `rewards` and `truncation`, for training and `rlhf score`, without TRL."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rlhf_cli.assemble.kept_failures import KeptFailures
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import Reward
from rlhf_cli.plan.reward_components import component, timeout_of
from rlhf_cli.redaction import redacted_tree
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.running_reward import RunningReward
from rlhf_cli.stack.aggregating import Aggregate
from rlhf_cli.stack.component import Component
from rlhf_cli.stack.isolated import Isolated
from rlhf_cli.stack.reward_functions import RewardFunction, import_function, resolve
from rlhf_cli.stack.reward_stack import RewardStack
from rlhf_cli.stack.too_many_errors import MaxErrors

if TYPE_CHECKING:
    import torch

    from rlhf_cli.stack.truncation import Truncation


def reward_stack(experiment: Experiment, *, device: str | torch.device) -> RewardStack:
    """Return the stack of all rewards, with imported functions and with reward models loaded on `device`.

    Raise RewardError or ModelError if an import or a load fails.
    """
    components = _components(experiment, device)
    # Outside of training a call holds all rows of a file, and the user is watching: no automatic timeout.
    free = [name for name, reward in experiment.rewards.items() if reward.timeout_s == "auto"]
    return RewardStack([replace(one, timeout_s=None) if one.name in free else one for one in components])


def guarded_stack(
    experiment: Experiment, *, device: str | torch.device, run: RunFolder, rank: int, running: RunningReward
) -> RewardStack:
    """Return the same stack for a training, which ends if too many rows fail.

    Rows on which a reward fails, and this rank's first failing batches, are saved in the run folder. `running` tracks
    which rewards are running.
    """
    return RewardStack(
        _components(experiment, device),
        record_error=_recorder(run.reward_errors),
        max_errors=MaxErrors(experiment.guards.max_error_share, experiment.guards.error_window),
        running=running,
        keep_failure=KeptFailures(run, experiment, rank),
    )


def _components(experiment: Experiment, device: str | torch.device) -> list[Component]:
    may_pack = experiment.trainer.passes in ("auto", "packed")
    return [
        component(name, reward, _score(name, reward, device, may_pack=may_pack))
        for name, reward in experiment.rewards.items()
    ]


def truncation_policy(experiment: Experiment) -> Truncation:
    """Return the experiment's truncation policy, which is the same for all trainers."""
    from rlhf_cli.stack.truncation import Truncation  # imports torch

    section = experiment.truncation
    return Truncation(section.policy, section.penalty, section.replaces, section.cache)


def aggregate_of(experiment: Experiment) -> Aggregate:
    """Return how the components become one total: a name that the stack knows, or the user's function."""
    words: dict[str, Aggregate] = {"sum": "sum", "normalize_then_sum": "normalize_then_sum"}
    return words.get(experiment.aggregate) or cast(Aggregate, import_function(experiment.aggregate, where="aggregate"))


def _score(name: str, reward: Reward, device: str | torch.device, *, may_pack: bool) -> RewardFunction:
    if reward.model is not None:
        assert reward.with_eos != "auto", "resolve_runs asked the model"
        from rlhf_cli.models.reward_model_scorer import RewardModelScorer  # imports torch and transformers

        return RewardModelScorer(
            reward.model,
            batch_size=reward.batch_size,
            max_length=reward.max_length,
            dtype=reward.dtype,
            device=reward.device or device,
            with_eos=reward.with_eos,
            may_pack=may_pack,
        )
    assert reward.fn is not None
    if reward.isolate:
        return Isolated(reward.fn, reward.args, timeout_s=timeout_of(reward))
    return resolve(reward.fn, reward.args, where=f"rewards.{name}.fn")


def _recorder(file: Path) -> Callable[[dict[str, object]], None]:
    def record(row: dict[str, object]) -> None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(redacted_tree(row), default=str) + "\n")

    return record
