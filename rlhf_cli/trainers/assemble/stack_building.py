"""Build a reward stack of an experiment and keep its failed calls."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.errors import RewardError
from rlhf_cli.plan.reward_components import component, timeout_of
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.calling import LEAVING
from rlhf_cli.rewards.stack.component import Batch, Component, FailedCall, by_row
from rlhf_cli.rewards.stack.reward_functions import RewardFunction, import_function, resolve
from rlhf_cli.rewards.stack.reward_stack import MaxErrors, RewardStack
from rlhf_cli.runs.failure_capsules import Capsule, as_lines, replay_command, write_capsule
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.running_reward import RunningReward
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS
from rlhf_cli.text.redaction import redacted_tree

if TYPE_CHECKING:
    import torch

    from rlhf_cli.rewards.stack.truncation import TruncationPolicy

_MOST = 8
"""Maximum number of capsules per rank in one training, not counting the failure that ends it."""
_NAMES = {"prompts": "prompt", "completions": "completion"}
_NO_DATA = frozenset(row.name for row in REWARD_ARGUMENTS.values() if not row.is_text)


class FailureRecorder:
    """Save failed calls of rank `rank` in the run folder; called from any thread that runs rewards."""

    def __init__(self, run: RunFolder, experiment: Experiment, rank: int) -> None:
        self._run, self._rewards, self._rank = run, experiment.rewards, rank
        self._kept: dict[tuple[str, str], str | None] = {}
        self._lock = threading.Lock()

    def __call__(self, call: FailedCall) -> str | None:
        """Save a call if it is the first of its reward and error, or ends the run; return the command that replays it.

        Return None if no call of its kind was saved: there are too many, or the disk is full.
        """
        ends_run = call.component.on_error == "raise" or isinstance(call.error, LEAVING)
        kind = (call.component.name, _kind(call.error))
        with self._lock:
            if not ends_run and (kind in self._kept or len(self._kept) >= _MOST):
                return self._kept.get(kind)
            self._kept[kind] = None
            with suppress(OSError):  # a full disk must not hide the failure itself
                self._kept[kind] = self._write(call)
            return self._kept[kind]

    def _write(self, call: FailedCall) -> str:
        rows = [*call.rows]
        reward, state = self._rewards[call.component.name], call.batch.get("trainer_state")
        epoch = getattr(state, "epoch", None)
        columns, lines = _written(call.batch, rows)
        capsule = Capsule(
            reward=call.component.name,
            kind=_kind(call.error),
            error=_message(call),
            traceback="".join(traceback.format_exception(call.error)),
            row=rows.index(call.row) if call.row is not None else None,
            batch_row=call.row,
            rank=self._rank,
            step=getattr(state, "global_step", 0),
            max_steps=getattr(state, "max_steps", 1),
            epoch=None if epoch is None else float(epoch),
            scored_by=str(reward.fn or reward.model),
            args=dict(reward.args),
            on_error=reward.on_error,
            timeout_s=timeout_of(reward),
            left_out_columns=tuple(columns),
        )
        name = re.sub(r"[^\w.-]+", "_", f"{capsule.reward}-{capsule.kind}")
        name += f"-rank{self._rank}" if self._rank else ""  # ranks that fail at the same time write separate files
        return replay_command(self._run, write_capsule(self._run, name, capsule, lines))


def _kind(error: BaseException) -> str:
    if isinstance(error, RewardError):
        return "nonsense"
    return {"RewardTimeout": "timeout"}.get(type(error).__name__, type(error).__name__)


def _message(call: FailedCall) -> str:
    """Return the error in one line; a function that was given a single row has called it row 0."""
    error = call.error
    if not isinstance(error, RewardError):
        return call.message
    what = error.what if call.row is None else error.what.replace(f"row {error.row}", f"row {call.row}")
    return f"{what}: {error.got}"


def _written(batch: Batch, rows: Sequence[int]) -> tuple[list[str], str]:
    """Return the columns that cannot be written as JSON, and the rows as lines of JSON."""
    kept: dict[str, list[object]] = {}
    left_out = [name for name in batch if name in _NO_DATA and REWARD_ARGUMENTS[name].is_by_row]
    for name in [name for name in batch if name not in _NO_DATA]:
        values = [by_row(batch, name)[row] for row in rows]
        try:
            json.dumps(values, default=_listed)
        except TypeError:
            left_out.append(name)
        else:
            kept[_NAMES.get(name, name)] = json.loads(json.dumps(values, default=_listed))
    return left_out, as_lines([{name: values[row] for name, values in kept.items()} for row in range(len(rows))])


def _listed(value: object) -> object:
    """Return an array or tensor as a list. Raise TypeError for anything else that JSON does not have."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{type(value).__name__} is nothing that JSON knows")
    return value.tolist()


def reward_stack(experiment: Experiment, *, device: str | torch.device) -> RewardStack:
    """Return the stack of all rewards, with imported functions and with reward models loaded on `device`.

    Raise RewardError or ModelError if an import or a load fails.
    """
    components = _components(experiment, device)
    # Outside of training a call holds all rows of a file, and the user is watching: no automatic timeout.
    free = [name for name, reward in experiment.rewards.items() if reward.timeout_s == "auto"]
    return RewardStack([replace(one, timeout_s=None) if one.name in free else one for one in components])


def training_stack(
    experiment: Experiment, *, device: str | torch.device, run: RunFolder, rank: int, running: RunningReward
) -> RewardStack:
    """Return the same stack for a training, which ends if too many rows fail.

    Rows on which a reward fails, and this rank's first failing batches, are saved in the run folder. `running` tracks
    which rewards are running.
    """

    def record(row: dict[str, object]) -> None:
        with run.reward_errors.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(redacted_tree(row), default=str) + "\n")

    return RewardStack(
        _components(experiment, device),
        record_error=record,
        max_errors=MaxErrors(experiment.guards.max_error_share, experiment.guards.error_window),
        running=running,
        keep_failure=FailureRecorder(run, experiment, rank),
    )


def _components(experiment: Experiment, device: str | torch.device) -> list[Component]:
    may_pack = experiment.trainer.passes in ("auto", "packed")
    return [
        component(name, reward, _score(name, reward, device, may_pack=may_pack))
        for name, reward in experiment.rewards.items()
    ]


def truncation_policy(experiment: Experiment) -> TruncationPolicy:
    """Return the experiment's truncation policy, which is the same for all trainers."""
    from rlhf_cli.rewards.stack.truncation import TruncationPolicy  # imports torch

    section = experiment.truncation
    return TruncationPolicy(section.policy, section.penalty, section.mode == "replace", section.cache)


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
        from rlhf_cli.rewards.stack.isolated import Isolated

        return Isolated(reward.fn, reward.args, timeout_s=timeout_of(reward))
    return resolve(reward.fn, reward.args, where=f"rewards.{name}.fn")
