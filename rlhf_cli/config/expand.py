"""Expand shorthand: `primary` into gates, a truncation policy into its mode.

Bootstrapping adds the critic's value of the missing continuation to a truncated row's reward (`add`, for rewards given
step by step), or replaces it (`replace`, for a score of the whole answer): docs/how-to/ppo.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES, Gate, Reward
from rlhf_cli.rewards.stack.aggregating import counting
from rlhf_cli.text.regular_files import parse_python
from rlhf_cli.truncation import Bootstrap
from rlhf_cli.user_files import class_file

_LISTS = ("list", "List", "Sequence", "tuple")


def expanded(experiment: Experiment) -> Experiment:
    """Turn `primary` into gates of all rewards but it and those that it waits for, and fill in `truncation.mode`."""
    gate, rewards, truncation = experiment.primary, experiment.rewards, experiment.truncation
    changes: dict[str, object] = {}
    if gate is not None and gate.by in rewards:
        before = waits_for(rewards, [gate.by]) | {gate.by}
        changes["primary"] = None
        changes["rewards"] = {
            name: reward if name in before else reward.model_copy(update={"gate": [*reward.gates, gate]})
            for name, reward in rewards.items()
        }
    if truncation.rule.modes and truncation.mode is None:
        mode = truncation.rule.default_mode(is_dense=_has_dense_rewards_alone(experiment))
        changes["truncation"] = truncation.model_copy(update={"mode": mode})
    return experiment.model_copy(update=changes) if changes else experiment


def waits_for(rewards: dict[str, Reward], names: Sequence[str]) -> set[str]:
    """Return every reward whose score must be known before those of `names`."""
    earlier: set[str] = set()
    waiting = list(names)
    while waiting:
        gates: list[Gate] = rewards[waiting.pop()].gates
        new = {gate.by for gate in gates if gate.by in rewards} - earlier
        earlier |= new
        waiting += new
    return earlier


def primary_of(rewards: dict[str, Reward]) -> str | None:
    """Return the last reward that is a gate of all that come after it, as `primary` becomes; None if there is none."""
    primary = None
    for name in rewards:
        later = rewards.keys() - waits_for(rewards, [name]) - {name}
        if later and all(name in [gate.by for gate in rewards[after].gates] for after in later):
            primary = name
    return primary


def truncation_warnings(experiment: Experiment) -> Iterator[str]:
    """Yield a warning if the mode of a policy that asks the critic does not fit the rewards, with its effect."""
    truncation = experiment.truncation
    if not truncation.rule.needs_critic:
        return
    plain = [name for name in counting(experiment.rewards) if not is_dense(experiment.rewards[name])]
    if truncation.mode == "add" and not _has_dense_rewards_alone(experiment):
        yield Bootstrap.ADDS_TO_PLAIN.format(", ".join(plain) or "the aggregate")
    if truncation.mode == "replace" and _has_dense_rewards_alone(experiment):
        yield Bootstrap.REPLACES_DENSE


def _has_dense_rewards_alone(experiment: Experiment) -> bool:
    counted = [experiment.rewards[name] for name in counting(experiment.rewards)]
    return experiment.aggregate in AGGREGATES and bool(counted) and all(map(is_dense, counted))


def is_dense(reward: Reward) -> bool:
    """Return whether a reward is declared step by step: by `per`, `spread: even` or the function's return type."""
    if reward.fn is None:
        return False
    return reward.per is not None or reward.spread == "even" or _returns_lists(reward.fn)


def _returns_lists(fn: str) -> bool:
    """Return whether a function's source, which is not imported, annotates its result as a list of lists."""
    file, name = class_file(fn), fn.rpartition(":")[2]
    if file is None or not file.is_file():
        return False
    try:
        body = parse_python(file.read_bytes()).body
        functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        returned = next((function.returns for function in reversed(functions) if function.name == name), None)
        if isinstance(returned, ast.Constant) and isinstance(returned.value, str):
            returned = ast.parse(returned.value, mode="eval").body
    except (SyntaxError, ValueError):
        return False  # not Python, which preflight reports, or prose in quotes, which Python allows there
    nodes = ast.walk(returned) if returned is not None else ()
    lists = [node for node in nodes if isinstance(node, ast.Subscript) and ast.unparse(node.value) in _LISTS]
    return any(inner in lists for outer in lists for inner in ast.walk(outer) if inner is not outer)
