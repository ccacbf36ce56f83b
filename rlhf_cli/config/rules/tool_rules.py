"""Check the sections `tools`, `environment` and `rollout` against the others."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables.trl_values import TAKEN_BY_REWARDS

_TURNS = "trainer.args.max_tool_calling_iterations"


def tool_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for a trainer without tools, and for settings that nothing reads."""
    trainer, where = experiment.trainer, origins.where
    used = [name for name in ("tools", "environment", "rollout") if getattr(experiment, name)]
    if not trainer.row.has_tools:
        for name in used:
            what, able = f"trainer={trainer.name} does not use the section `{name}`", "trainer=grpo, ppo or gmpo"
            yield ConfigError(what, where=where(name), expected=able, hint=f"trainer=grpo, or '~{name}'")
    columns = experiment.rollout.columns if experiment.rollout is not None else []
    if taken := [name for name in columns if name in TAKEN_BY_REWARDS]:
        hint = f"rollout.columns=[{','.join(name for name in columns if name not in taken)}]"
        what = "rewards get these from the trainer, so a rollout function cannot return columns of these names"
        yield ConfigError(what, where=where("rollout.columns"), got=", ".join(taken), hint=hint)
    calls = [name for name in used if name != "rollout"]
    if "rollout" in used and calls:
        what = f"a rollout function generates by itself, so nothing calls the {calls[0]}"
        yield ConfigError(what, where=where("rollout"), got=", ".join(used), hint=f"'~rollout', or '~{calls[0]}'")
    if calls and (rounds := trainer.whole("max_tool_calling_iterations")) is not None and rounds < 1:
        what = "no call would be made"
        yield ConfigError(what, where=where(_TURNS), got=rounds, expected="1 or more", hint=f"{_TURNS}=2")
    if not calls and trainer.args.get("max_tool_calling_iterations") is not None:
        what, got = "a limit on calls, and nothing that the model can call", trainer.args["max_tool_calling_iterations"]
        hint = f"tools.NAME.fn=./tools.py:NAME, or '~{_TURNS}'"
        yield ConfigError(what, where=where(_TURNS), got=got, expected="`tools` or `environment`", hint=hint)
    for name, reward in experiment.rewards.items():
        if reward.environment is not None and experiment.environment is None:
            key, what = f"rewards.{name}.environment", f"the reward {name!r} asks an environment, and there is none"
            expected, hint = "a section `environment`", "environment.class=./env.py:NAME"
            yield ConfigError(what, where=where(key), got=reward.environment, expected=expected, hint=hint)
