"""Check rewards, reward-model training, truncation, the filter of groups, tools and environments across keys."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES, RESERVED_REWARD_NAMES, Gate
from rlhf_cli.config.schema.trainer_sections import environment_key
from rlhf_cli.errors import UserError
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
    trainer, rewards = experiment.trainer, experiment.rewards
    yield from _time_limit_problems(experiment, origins)
    for name in rewards:
        if name in (taken := RESERVED_REWARD_NAMES | TABLE_COLUMNS):
            expected = "a name other than " + ", ".join(sorted(taken))
            yield origins.error(f"rewards.{name}", f"a reward cannot be named {name!r}", expected=expected)
    if "rewards" in trainer.row.sections and rewards and all(reward.when == "eval" for reward in rewards.values()):
        first = f"rewards.{next(iter(rewards))}"
        got, on = "when=eval for every reward", f"{first}.when=always {first}.weight=1"
        yield origins.error(f"{first}.when", "no reward is computed in training", got, on)
    if experiment.aggregate not in AGGREGATES and ":" not in experiment.aggregate:
        close = nearest(experiment.aggregate, AGGREGATES)
        hint, expected = f"aggregate={close}" if close else None, f"{', '.join(AGGREGATES)}, or ./file.py:function"
        yield origins.error("aggregate", "wrong value for aggregate", experiment.aggregate, hint, expected=expected)
    for name, reward in rewards.items():
        if reward.fn in groups().get("reward", {}):
            what, hint = "a ready-made reward is an option of a group", f"reward@rewards.{name}={reward.fn}"
            yield origins.error(f"rewards.{name}.fn", what, reward.fn, hint)
    yield from _gate_problems(experiment, origins)
    if trainer.dense:
        for key, what, value, hint in _dense_conflicts(experiment):
            yield origins.error(key, what, value, f"{hint}, or trainer.dense=false")


def _time_limit_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each time limit of a call that the watchdog would not wait for."""
    limited = {f"rewards.{name}": reward.timeout_s for name, reward in experiment.rewards.items()}
    limited |= {f"tools.{name}": tool.timeout_s for name, tool in experiment.tools.items()}
    limited |= {environment_key(name): one.timeout_s for name, one in experiment.environments.items()}
    watched_s = experiment.launch.hang_timeout_s
    for key, own_s in limited.items():
        if isinstance(own_s, float) and isinstance(watched_s, float) and own_s >= watched_s:
            what = f"the watchdog ends the run before {key} reaches its time limit"
            got, either = f"{own_s:g}, launch.hang_timeout_s={watched_s:g}", f"launch.hang_timeout_s={2 * own_s:g}"
            yield origins.error(f"{key}.timeout_s", what, got, f"{either}, or {key}.timeout_s={watched_s / 2:g}")


def _dense_conflicts(experiment: Experiment) -> Iterator[tuple[str, str, object, str]]:
    """Yield (key, what is wrong, value, hint) of each setting that dense rewards exclude; for PPO: trainer_rules.py."""
    trainer, aggregate = experiment.trainer, experiment.aggregate
    if aggregate not in (AGGREGATES if trainer.has_critic else ("sum",)):
        yield "aggregate", "trainer.dense sums rewards per token, so it needs a sum", aggregate, "aggregate=sum"
    if trainer.has_critic:
        return
    if trainer.row.advantages != "token":
        got = "its loss is per sequence" if trainer.row.generates else f"trainer={trainer.name} has no rewards"
        yield "trainer.dense", f"trainer={trainer.name} cannot use per-token advantages", got, "trainer=grpo"
    for name in per_sequence_args(experiment):
        key, what = f"trainer.args.{name}", f"trainer.dense has no effect with {name}={trainer.args[name]}"
        yield key, what, "one number per sequence", f"'~{key}'"


def _gate_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    rewards = experiment.rewards
    gates: list[tuple[str, str | None, Gate]] = [
        (f"rewards.{name}.gate", name, gate) for name, reward in rewards.items() for gate in reward.gates
    ]
    gates += [("primary", None, experiment.primary)] if experiment.primary is not None else []
    for key, owner, gate in gates:
        if gate.by == owner:
            yield origins.error(key, f"reward {owner!r} is gated by itself", f"by: {owner}", f"'~rewards.{owner}.gate'")
        elif gate.by not in rewards:
            close = nearest(gate.by, rewards)
            in_list = owner is not None and isinstance(rewards[owner].gate, list)
            what = f"a gate reads the reward {gate.by!r}, which does not exist"
            hint, expected = close if in_list or not close else f"{key}.by={close}", "one of " + ", ".join(rewards)
            yield origins.error(f"{key}.by", what, hint=hint, expected=expected)
        elif rewards[gate.by].when == "eval" and (owner is None or rewards[owner].when != "eval"):
            what = f"a gate reads the reward {gate.by!r}, which is not computed in training"
            of_reward, watching = f"rewards.{gate.by}", f", or rewards.{owner}.when=eval" if owner else ""
            hint = f"{of_reward}.when=always {of_reward}.weight=0{watching}"
            yield origins.error(f"{key}.by", what, f"{of_reward}.when=eval", hint)
    if any(gate.by == owner or gate.by not in rewards for _, owner, gate in gates):
        return
    try:
        levels({name: [gate.by for gate in reward.gates] for name, reward in rewards.items()})
    except CycleError as error:
        names = error.args[1]
        key = f"rewards.{names[0]}.gate"
        yield origins.error(key, "rewards wait for each other", " waits for ".join(reversed(names)), f"'~{key}'")


def per_sequence_args(experiment: Experiment) -> list[str]:
    """Return the arguments of TRL's that are set so that the loss takes one advantage per completion."""
    args = experiment.trainer.args
    names = [name for name, values in _TOKEN_LEVEL_ONLY.items() if args.get(name) in values]
    return names + (["off_policy_mask_threshold"] if args.get("off_policy_mask_threshold") is not None else [])


def truncation_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with the policy for truncated completions."""
    truncation, trainer = experiment.truncation, experiment.trainer
    policy, rule, modes = truncation.policy, truncation.rule, truncation.rule.modes
    for key in ("penalty", "mode", "cache", "also"):
        # A frozen configuration holds every key, so only values other than the default count.
        if key not in rule.keys and getattr(truncation, key) != getattr(type(truncation)(), key):
            readers = [name for name, other in POLICIES.items() if key in other.keys]
            what = f"policy {policy} does not read truncation.{key}"
            expected = f"{' or '.join(readers)}, which read{'s' if len(readers) == 1 else ''} it"
            got, hint = f"truncation.policy={policy}", f"truncation={policy}, or truncation={readers[0]}"
            yield origins.error(f"truncation.{key}", what, got, hint, expected=expected)
    if modes and truncation.mode is not None and truncation.mode not in modes:
        key, what, hint = "truncation.mode", f"{policy} has no such mode", f"truncation.mode={modes[0]}"
        yield origins.error(key, what, truncation.mode, hint, expected=" or ".join(modes))
    if "truncation" not in trainer.row.sections:
        return
    if rule.needs_critic and not trainer.has_critic:
        able = [name for name, other in POLICIES.items() if not other.needs_critic]
        what = f"trainer={trainer.name} has no critic, and truncation={policy} needs one"
        hint, expected = "trainer=ppo, or truncation=eos_penalty", "one of " + ", ".join(able)
        yield origins.error("truncation.policy", what, policy, hint, expected=expected)
    limit = trainer.setting("max_completion_length")
    if trainer.row.generates and not isinstance(limit, int):
        key, what = "trainer.args.max_completion_length", "without a limit, transformers ends an answer after 20 tokens"
        yield origins.error(key, what, "null", f"{key}=512", expected="a number of tokens")
    elif rule.reads_lengths and isinstance(limit, int) and (truncation.cache or 0) >= limit:
        key, what = "truncation.cache", "the penalty would grow over the whole completion"
        got = f"{truncation.cache}, with trainer.args.max_completion_length={limit}"
        yield origins.error(key, what, got, "truncation.cache=null", expected=f"below {limit}")


def sampling_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for each setting without groups, or that compares completions of several groups."""
    trainer, keep, section = experiment.trainer, experiment.sampling.keep_groups, "sampling.keep_groups"
    if keep is None or not trainer.row.generates:
        return
    scales, normalizes = "trainer.args.scale_rewards", "trainer.args.normalize_advantages"
    of_all = f"it compares all completions of a draw, of which {section} keeps a part"
    problems = [  # whether it applies, its key, what is wrong, what to type instead
        (trainer.has_critic, section, "PPO's critic replaces the groups that keep_groups compares", "trainer=grpo"),
        (trainer.setting("scale_rewards") == "batch", scales, of_all, f"{scales}=group"),
        (trainer.setting("normalize_advantages") is True, normalizes, of_all, f"{normalizes}=false"),
        (experiment.aggregate == "normalize_then_sum", "aggregate", of_all, "aggregate=sum"),
    ]
    for applies, key, what, hint in problems:
        if applies:
            yield origins.error(key, what, f"{section}.by={keep.by}", f"{hint}, or {section}=null")
    names = [*(name for name, reward in experiment.rewards.items() if reward.when != "eval"), TOTAL]
    if keep.by not in names:
        key, what = f"{section}.by", f"{section} reads the reward {keep.by!r}, which training does not compute"
        hint = f"{key}={nearest(keep.by, names) or names[0]}"
        yield origins.error(key, what, hint=hint, expected=f"one of {', '.join(names)}")


def tool_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for settings of tools, environments and rollouts that nothing reads."""
    trainer = experiment.trainer
    columns = experiment.rollout.columns if experiment.rollout is not None else []
    if taken := [name for name in columns if name in TAKEN_BY_REWARDS]:
        hint = f"rollout.columns=[{','.join(name for name in columns if name not in taken)}]"
        what = "rewards get these from the trainer, so a rollout function cannot return columns of these names"
        yield origins.error("rollout.columns", what, ", ".join(taken), hint)
    calls = [name for name in ("tools", "environment") if getattr(experiment, name)]
    if experiment.rollout is not None and calls:
        what = f"a rollout function generates by itself, so nothing calls the {calls[0]}"
        yield origins.error("rollout", what, ", ".join([*calls, "rollout"]), f"'~rollout', or '~{calls[0]}'")
    if calls and (rounds := trainer.whole("max_tool_calling_iterations")) is not None and rounds < 1:
        yield origins.error(_TURNS, "no call would be made", rounds, f"{_TURNS}=2", expected="1 or more")
    if not calls and (limit := trainer.args.get("max_tool_calling_iterations")) is not None:
        what = "a limit on calls, and nothing that the model can call"
        hint = f"tools.NAME.fn=./tools.py:NAME, or '~{_TURNS}'"
        yield origins.error(_TURNS, what, limit, hint, expected="`tools` or `environment`")
    for name, reward in experiment.rewards.items():
        if reward.environment is not None and experiment.environment is None:
            key, what = f"rewards.{name}.environment", f"the reward {name!r} asks an environment, and there is none"
            yield origins.error(key, what, reward.environment, "environment.class=./env.py:NAME")
