"""Check the section `sampling`: what a filter of groups reads, and what it cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.text.suggest import nearest

TOTAL, KEY = "total", "sampling.keep_groups"
_OFF = f"{KEY}=null"


def sampling_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for each setting without groups, or that compares completions of several groups."""
    trainer, keep, grouped = experiment.trainer, experiment.sampling.keep_groups, f"trainer=grpo, or {_OFF}"
    assert keep is not None
    scales, normalizes = (f"trainer.args.{name}" for name in ("scale_rewards", "normalize_advantages"))
    of_all = f"it compares all completions of a draw, of which {KEY} keeps a part"
    problems = [  # whether it applies, its key, what is wrong, what to type instead
        (not trainer.row.generates, KEY, f"trainer={trainer.name} samples no groups", grouped),
        (trainer.has_critic, KEY, "PPO's critic replaces the groups that keep_groups compares", grouped),
        (trainer.setting("scale_rewards") == "batch", scales, of_all, f"{scales}=group, or {_OFF}"),
        (trainer.setting("normalize_advantages") is True, normalizes, of_all, f"{normalizes}=false, or {_OFF}"),
        (experiment.aggregate == "normalize_then_sum", "aggregate", of_all, f"aggregate=sum, or {_OFF}"),
    ]
    for applies, key, what, hint in problems:
        if applies:
            yield ConfigError(what, where=origins.where(key), got=f"{KEY}.by={keep.by}", hint=hint)
    names = [*(name for name, reward in experiment.rewards.items() if reward.when != "eval"), TOTAL]
    if keep.by not in names and trainer.row.generates:
        what, hint = (
            f"{KEY} reads the reward {keep.by!r}, which training does not compute",
            f"{KEY}.by={nearest(keep.by, names) or names[0]}",
        )
        yield ConfigError(what, where=origins.where(f"{KEY}.by"), expected=f"one of {', '.join(names)}", hint=hint)
