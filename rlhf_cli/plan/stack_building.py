"""Build the reward stack of an experiment and what its model may call; keep failed calls."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TYPE_CHECKING, cast

from rlhf_cli import tools_and_environments as calls
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES
from rlhf_cli.config.schema.trainer_sections import CallLimits, environment_key
from rlhf_cli.errors import RewardError
from rlhf_cli.plan.sources_and_components import component, timeout_of
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.component import Batch, Component, FailedCall, by_row
from rlhf_cli.rewards.stack.reward_functions import RewardFunction, import_function, resolve
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.trl_values import TRAINERS_OWN
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.redaction import redacted_tree

if TYPE_CHECKING:
    import torch

_MOST = 8  # maximum number of kept batches per rank in one training, not counting that of the failure that ends it
_NAMES = {"prompts": "prompt", "completions": "completion"}


@dataclass
class FailureRecorder:
    """Keep the batches on which rewards fail, the first of each reward and error; called from any thread."""

    run: RunFolder
    rank: int
    _kept: dict[str, str | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, call: FailedCall) -> str | None:
        """Keep the rows of a call and return the command that scores them again; None if there are too many kinds of
        errors, or if the disk is full.
        """
        from rlhf_cli.runs.reward_records import keep_batch

        is_invalid = isinstance(call.error, RewardError)
        kind = "invalid" if is_invalid else "timeout" if call.is_timeout else type(call.error).__name__
        name = re.sub(r"[^\w.-]+", "_", f"{call.component.name}-{kind}")
        name += f"-rank{self.rank}" if self.rank else ""  # ranks that fail at the same time write separate files
        ends_run = call.component.on_error == "raise"
        with self._lock:
            if name not in self._kept and (ends_run or len(self._kept) < _MOST):
                self._kept[name] = None
                with suppress(OSError):  # a full disk must not hide the failure itself
                    replay = keep_batch(self.run, name, _as_rows(call.batch, call.rows))
                    self._kept[name] = None if isinstance(call.component.score, calls.EnvironmentScore) else replay
            return self._kept.get(name)


def _as_rows(batch: Batch, rows: Sequence[int]) -> list[dict[str, object]]:
    """Return rows of a batch, with the columns that can be written as JSON."""
    kept: dict[str, list[object]] = {}
    for name in [name for name in batch if name not in TRAINERS_OWN]:
        values = [by_row(batch, name)[row] for row in rows]
        with suppress(TypeError, AttributeError):  # JSON has no name for it, and it is no array or tensor
            kept[_NAMES.get(name, name)] = json.loads(json.dumps(values, default=methodcaller("tolist")))
    return [{name: values[place] for name, values in kept.items()} for place in range(len(rows))]


def reward_stack(experiment: Experiment, *, device: str | torch.device) -> RewardStack:
    """Return the stack of all rewards, with models on `device`. Raise RewardError or ModelError if loading fails."""
    # Outside of training a call holds all rows of a file, and the user is watching: no automatic timeout.
    free = [name for name, reward in experiment.rewards.items() if reward.timeout_s == "auto"]
    made = _components(experiment, device)
    return RewardStack([replace(one, timeout_s=None) if one.name in free else one for one in made])


def training_stack(
    experiment: Experiment, *, device: str | torch.device, run: RunFolder, rank: int, heartbeat: Heartbeat
) -> RewardStack:
    """Return the same stack for a training, which ends if too many rows fail. Rows on which a reward fails, and this
    rank's first failing batches, are saved in the run folder. `heartbeat` learns which rewards are running.
    """

    def record(row: dict[str, object]) -> None:
        with run.reward_errors.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(redacted_tree(row), default=str) + "\n")

    return RewardStack(
        _components(experiment, device),
        record_error=record,
        max_error_share=experiment.guards.max_error_share,
        error_window=experiment.guards.error_window,
        running=heartbeat.running,
        keep_failure=FailureRecorder(run, rank),
    )


def _components(experiment: Experiment, device: str | torch.device) -> list[Component]:
    components = []
    for name, reward in experiment.rewards.items():
        score: RewardFunction
        if reward.model is not None:
            assert reward.with_eos != "auto", "resolve_runs asked the model"
            from rlhf_cli.models.reward_model_scorer import RewardModelScorer  # imports torch and transformers

            score = RewardModelScorer(
                reward.model,
                batch_size=reward.batch_size,
                max_length=reward.max_length,
                dtype=reward.dtype,
                device=reward.device or device,
                with_eos=reward.with_eos,
                may_pack=experiment.trainer.passes in ("auto", "packed"),
            )
        elif reward.environment is not None:
            score = calls.EnvironmentScore(reward.environment, f"rewards.{name}.environment")
        elif reward.isolate:
            from rlhf_cli.rewards.stack.isolated import Isolated

            assert reward.fn is not None
            score = Isolated(reward.fn, reward.args, timeout_s=timeout_of(reward))
        else:
            assert reward.fn is not None
            score = function_of(name, reward.fn, reward.args)
        components.append(component(name, reward, score))
    return components


def function_of(name: str, fn: str, args: Mapping[str, object]) -> RewardFunction:
    """Return the function of the reward `name`, with its arguments. Raise RewardError if there is none."""
    return resolve(fn, args, where=f"rewards.{name}.fn", args_key=f"rewards.{name}.args")


def aggregate_of(experiment: Experiment) -> Aggregate:
    """Return how the components become one total: a name that the stack knows, or the user's function."""
    named = experiment.aggregate
    return cast(Aggregate, named if named in AGGREGATES else import_function(named, where="aggregate"))


def interactions_of(experiment: Experiment) -> calls.Interactions | None:
    """Return what TRL gets for `tools`, `environment` and `rollout`, if any. Raise RewardError if an import fails."""
    if not experiment.interacts:
        return None
    counts, names = calls.Counts(), set(experiment.tools)
    tools = dict[str, calls.Function]()
    for name, tool in experiment.tools.items():
        function = import_function(tool.fn, where=f"tools.{name}.fn")
        tools[name] = calls.limited(function, name, f"tools.{name}", _limits(tool), counts)
    scored_by = frozenset(reward.environment for reward in experiment.rewards.values() if reward.environment)
    factories = dict[str | None, Callable[[], object]]()
    for environment, section in experiment.environments.items():
        key = environment_key(environment)
        original = environment_of(section.own_class, f"{key}.class")
        wrapped = calls.environment_class(original, key, _limits(section), counts, scored_by=scored_by)
        factories[environment] = calls.environment_factory(original, section.args, key, wrapped)
        names |= set(calls.tools_of(wrapped))
    generate = None
    if (rollout := experiment.rollout) is not None:
        function = import_function(rollout.fn, where="rollout.fn")
        generate = calls.checked_rollout(function, rollout.columns, "rollout.fn")
    return calls.Interactions(counts, tools, factories, frozenset(names), generate)


def told_tools(experiment: Experiment) -> Callable[[object], list[JsonTree]]:
    """Return a function: the name in a row's column `environment` -> what the chat template is told of its tools.

    What cannot be imported or described counts as none: `check` reports it.
    """
    own, told = dict[str, calls.Function](), dict[str | None, list[JsonTree]]()
    with suppress(Exception):
        for name, tool in experiment.tools.items():
            own[name] = import_function(tool.fn, where="")
        told[None] = calls.schemas_of(own)
        for environment, section in experiment.environments.items():
            methods = called_methods(experiment, environment_of(section.own_class, ""))
            told[environment] = calls.schemas_of(own | methods)
    has_names = isinstance(experiment.environment, dict)
    return lambda environment: told.get(str(environment) if has_names else None, [])


def called_methods(experiment: Experiment, environment: type) -> dict[str, calls.Function]:
    """Return the methods of an environment that the model may call: those that no reward names."""
    named = {reward.environment for reward in experiment.rewards.values()}
    return {name: method for name, method in calls.tools_of(environment).items() if name not in named}


def environment_of(named: str, where: str) -> type:
    """Return the class that `environment.class` names. Raise RewardError if it is none, or has no `reset`."""
    found: calls.Function = import_function(named, where=where)
    if not inspect.isclass(found) or not inspect.isfunction(getattr(found, "reset", None)):
        what = "an environment is a class with a method `reset`"
        expected = "class Name, with def reset(self, **row): it begins a rollout, and returns a text or None"
        raise RewardError(what, where=where, got=named, expected=expected)
    return found


def _limits(section: CallLimits) -> calls.Limits:
    return calls.Limits(section.seconds, section.max_characters, section.on_error)
