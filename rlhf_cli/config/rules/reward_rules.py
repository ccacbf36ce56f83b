"""Check rewards, reward-model training, truncation, the filter of groups, tools and environments across keys."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES, RESERVED_REWARD_NAMES, Gate
from rlhf_cli.config.schema.rollout_sections import environment_key
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.rewards.stack.component import levels
from rlhf_cli.tables.trl_trainers import SEQUENCE_LOSSES
from rlhf_cli.tables.trl_values import TABLE_COLUMNS, TAKEN_BY_REWARDS
from rlhf_cli.text.suggest import nearest
from rlhf_cli.truncation import POLICIES

TOTAL = "total"
_TURNS = "trainer.args.max_tool_calling_iterations"
_TOKEN_LEVEL_ONLY = {"loss_type": SEQUENCE_LOSSES, "importance_sampling_level": ("sequence",)}
"""TRL argument values without per-token advantages: they would collapse them to the row's mean."""


def reward_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with the rewards, in the order of the configuration."""
    trainer, where = experiment.trainer, origins.where
    takes_rewards = "rewards" in trainer.row.sections
    if takes_rewards and not experiment.rewards:
        what = f"trainer={trainer.name} needs at least one reward"
        expected = "named entries under `rewards:`, each with `fn`, `model` or `environment`"
        hint = "+exp=quickstart, or reward@rewards.short=brevity"
        yield ConfigError(what, where="rewards", expected=expected, hint=hint)
    if experiment.rewards and not takes_rewards:
        got, what = ", ".join(experiment.rewards), f"trainer={trainer.name} does not use rewards"
        yield ConfigError(what, where=where("rewards"), got=got, hint="trainer=grpo, or '~rewards'")
    if experiment.reward_model is not None and "reward_model" not in trainer.row.sections:
        what, got = f"trainer={trainer.name} trains no reward model", "a section `reward_model`"
        yield ConfigError(what, where=where("reward_model"), got=got, hint="trainer=reward, or '~reward_model'")
    limited = {f"rewards.{name}": reward.timeout_s for name, reward in experiment.rewards.items()}
    limited |= {f"tools.{name}": tool.timeout_s for name, tool in experiment.tools.items()}
    limited |= {environment_key(name): one.timeout_s for name, one in experiment.environments.items()}
    for key, own_s in limited.items():
        watched_s = experiment.launch.hang_timeout_s
        if isinstance(own_s, float) and isinstance(watched_s, float) and own_s >= watched_s:
            what = f"the watchdog ends the run before {key} reaches its time limit"
            got = f"{own_s:g}, launch.hang_timeout_s={watched_s:g}"
            hint = f"launch.hang_timeout_s={2 * own_s:g}, or {key}.timeout_s={watched_s / 2:g}"
            yield ConfigError(what, where=where(f"{key}.timeout_s"), got=got, hint=hint)
    for name in experiment.rewards:
        if name in (taken := RESERVED_REWARD_NAMES | TABLE_COLUMNS):
            expected = "a name other than " + ", ".join(sorted(taken))
            yield ConfigError(f"a reward cannot be named {name!r}", where=where(f"rewards.{name}"), expected=expected)
    if takes_rewards and experiment.rewards and all(reward.when == "eval" for reward in experiment.rewards.values()):
        name = next(iter(experiment.rewards))
        what, got = "no reward is computed in training", "when=eval for every reward"
        expected, hint = "at least one reward to learn from", f"rewards.{name}.when=always rewards.{name}.weight=1"
        yield ConfigError(what, where=where(f"rewards.{name}.when"), got=got, expected=expected, hint=hint)
    if experiment.aggregate not in AGGREGATES and ":" not in experiment.aggregate:
        close = nearest(experiment.aggregate, AGGREGATES)
        what, meant = "wrong value for aggregate", f"aggregate={close}" if close is not None else None
        expected = f"{', '.join(AGGREGATES)}, or a function of yours: ./file.py:function"
        yield ConfigError(what, where=where("aggregate"), got=experiment.aggregate, expected=expected, hint=meant)
    for name, reward in experiment.rewards.items():
        if reward.fn in groups().get("reward", {}):
            what, where_fn = "a ready-made reward is an option of a group", where(f"rewards.{name}.fn")
            yield ConfigError(what, where=where_fn, got=reward.fn, hint=f"reward@rewards.{name}={reward.fn}")
    if experiment.primary is not None or any(reward.gate is not None for reward in experiment.rewards.values()):
        yield from _gate_problems(experiment, origins)
    if trainer.dense:
        args, not_dense = trainer.args, "trainer.dense=false"
        conflicts: list[tuple[str, str, object, str]] = []  # key, what, got, hint
        # trainer_rules.py checks PPO's loss and z-scores.
        if experiment.aggregate not in (AGGREGATES if trainer.has_critic else ("sum",)):
            what = "trainer.dense sums rewards per token, so it needs a sum"
            conflicts.append(("aggregate", what, experiment.aggregate, "aggregate=sum"))
        if not trainer.has_critic:
            if trainer.row.advantages != "token":
                what = f"trainer={trainer.name} cannot use per-token advantages"
                got = "its loss is per sequence" if trainer.row.generates else f"trainer={trainer.name} has no rewards"
                conflicts.append(("trainer.dense", what, got, "trainer=grpo"))
            for name in per_sequence_args(experiment):
                key, what = f"trainer.args.{name}", f"trainer.dense has no effect with {name}={args[name]}"
                conflicts.append((key, what, "one number per sequence", f"'~{key}'"))
        for key, what, value, hint in conflicts:
            yield ConfigError(what, where=origins.where(key), got=value, hint=f"{hint}, or {not_dense}")


def _gate_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    rewards = experiment.rewards
    gates: list[tuple[str, str | None, Gate]] = [
        (f"rewards.{name}.gate", name, gate) for name, reward in rewards.items() for gate in reward.gates
    ]
    gates += [("primary", None, experiment.primary)] if experiment.primary is not None else []
    for key, owner, gate in gates:
        if gate.by == owner:
            what = f"reward {owner!r} is gated by itself"
            yield ConfigError(what, where=origins.where(key), got=f"by: {owner}", hint=f"'~rewards.{owner}.gate'")
        elif gate.by not in rewards:
            close = nearest(gate.by, rewards)
            in_list = owner is not None and isinstance(rewards[owner].gate, list)
            what = f"a gate reads the reward {gate.by!r}, which does not exist"
            expected, hint = "one of " + ", ".join(rewards), close if in_list or not close else f"{key}.by={close}"
            yield ConfigError(what, where=origins.where(f"{key}.by"), expected=expected, hint=hint)
        elif rewards[gate.by].when == "eval" and (owner is None or rewards[owner].when != "eval"):
            what = f"a gate reads the reward {gate.by!r}, which is not computed in training"
            of_reward, watching = f"rewards.{gate.by}", f", or rewards.{owner}.when=eval" if owner else ""
            hint = f"{of_reward}.when=always {of_reward}.weight=0{watching}"
            yield ConfigError(what, where=origins.where(f"{key}.by"), got=f"{of_reward}.when=eval", hint=hint)
    if any(gate.by == owner or gate.by not in rewards for _, owner, gate in gates):
        return
    try:
        levels({name: [gate.by for gate in reward.gates] for name, reward in rewards.items()})
    except CycleError as error:
        names = error.args[1]
        key = f"rewards.{names[0]}.gate"
        got = " waits for ".join(reversed(names))
        yield ConfigError("rewards wait for each other", where=origins.where(key), got=got, hint=f"'~{key}'")


def per_sequence_args(experiment: Experiment) -> list[str]:
    """Return the arguments of TRL's that are set so that the loss takes one advantage per completion."""
    args = experiment.trainer.args
    names = [name for name, values in _TOKEN_LEVEL_ONLY.items() if args.get(name) in values]
    return names + (["off_policy_mask_threshold"] if args.get("off_policy_mask_threshold") is not None else [])


def truncation_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with the policy for truncated completions."""
    truncation, trainer, where = experiment.truncation, experiment.trainer, origins.where("truncation.policy")
    rule, modes = truncation.rule, truncation.rule.modes
    for key in ("penalty", "mode", "cache", "also"):
        # A frozen configuration holds every key, so only values other than the default count.
        if key not in rule.keys and getattr(truncation, key) != getattr(type(truncation)(), key):
            readers = [name for name, policy in POLICIES.items() if key in policy.keys]
            what = f"policy {truncation.policy} does not read truncation.{key}"
            got = f"truncation.policy={truncation.policy}"
            expected = f"{' or '.join(readers)}, which read{'s' if len(readers) == 1 else ''} it"
            hint = f"truncation={truncation.policy}, or truncation={readers[0]}"
            yield ConfigError(what, where=origins.where(f"truncation.{key}"), got=got, expected=expected, hint=hint)
    if modes and truncation.mode is not None and truncation.mode not in modes:
        key, what, expected = "truncation.mode", f"{truncation.policy} has no such mode", " or ".join(modes)
        hint = f"{key}={modes[0]}"
        yield ConfigError(what, where=origins.where(key), got=truncation.mode, expected=expected, hint=hint)
    if truncation.policy != "none" and "truncation" not in trainer.row.sections:
        what = f"trainer={trainer.name} does not generate, so no completion is cut off"
        yield ConfigError(what, where=where, got=truncation.policy, hint="truncation=none")
        return
    if rule.needs_critic and not trainer.has_critic:
        able = [name for name, policy in POLICIES.items() if not policy.needs_critic]
        what = f"trainer={trainer.name} has no critic, and truncation={truncation.policy} needs one"
        hint = "trainer=ppo, or truncation=eos_penalty"
        yield ConfigError(what, where=where, got=truncation.policy, expected="one of " + ", ".join(able), hint=hint)
    limit = trainer.setting("max_completion_length")
    if trainer.row.generates and not isinstance(limit, int):
        key, what = "trainer.args.max_completion_length", "without a limit, transformers ends an answer after 20 tokens"
        yield ConfigError(what, where=origins.where(key), got="null", expected="a number of tokens", hint=f"{key}=512")
    elif rule.reads_lengths and isinstance(limit, int) and (truncation.cache or 0) >= limit:
        what, hint = "the penalty would grow over the whole completion", "truncation.cache=null"
        got = f"truncation.cache={truncation.cache} with trainer.args.max_completion_length={limit}"
        yield ConfigError(what, where=origins.where("truncation.cache"), got=got, expected=f"below {limit}", hint=hint)


def sampling_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for each setting without groups, or that compares completions of several groups."""
    trainer, keep, section = experiment.trainer, experiment.sampling.keep_groups, "sampling.keep_groups"
    if keep is None:
        return
    off, scales, normalizes = f"{section}=null", "trainer.args.scale_rewards", "trainer.args.normalize_advantages"
    of_all = f"it compares all completions of a draw, of which {section} keeps a part"
    no_critic = "PPO's critic replaces the groups that keep_groups compares"
    problems = [  # whether it applies, its key, what is wrong, what to type instead
        (not trainer.row.generates, section, f"trainer={trainer.name} samples no groups", "trainer=grpo"),
        (trainer.has_critic, section, no_critic, "trainer=grpo"),
        (trainer.setting("scale_rewards") == "batch", scales, of_all, f"{scales}=group"),
        (trainer.setting("normalize_advantages") is True, normalizes, of_all, f"{normalizes}=false"),
        (experiment.aggregate == "normalize_then_sum", "aggregate", of_all, "aggregate=sum"),
    ]
    for applies, key, what, hint in problems:
        if applies:
            got = f"{section}.by={keep.by}"
            yield ConfigError(what, where=origins.where(key), got=got, hint=f"{hint}, or {off}")
    names = [*(name for name, reward in experiment.rewards.items() if reward.when != "eval"), TOTAL]
    if keep.by not in names and trainer.row.generates:
        key, what = f"{section}.by", f"{section} reads the reward {keep.by!r}, which training does not compute"
        hint = f"{key}={nearest(keep.by, names) or names[0]}"
        yield ConfigError(what, where=origins.where(key), expected=f"one of {', '.join(names)}", hint=hint)


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
