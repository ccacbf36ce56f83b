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
    trainer, keep = experiment.trainer, experiment.sampling.keep_groups
    assert keep is not None
    if not trainer.row.generates:
        what = f"trainer={trainer.name} samples no groups"
        yield ConfigError(what, where=origins.where(KEY), hint=f"trainer=grpo, or {_OFF}")
        return
    if trainer.has_critic:
        what = "PPO's critic replaces the groups that keep_groups compares"
        yield ConfigError(what, where=origins.where(KEY), hint=f"trainer=grpo, or {_OFF}")
    if keep.by not in {TOTAL, *experiment.rewards}:
        close = nearest(keep.by, [*experiment.rewards, TOTAL])
        yield ConfigError(
            f"{KEY} reads the reward {keep.by!r}, which does not exist",
            where=origins.where(f"{KEY}.by"),
            got=keep.by,
            expected=f"one of {', '.join(experiment.rewards)}, or total",
            hint=f"{KEY}.by={close or next(iter(experiment.rewards), TOTAL)}",
        )
    scales, normalizes = (f"trainer.args.{name}" for name in ("scale_rewards", "normalize_advantages"))
    conflicts = [
        (scales, trainer.setting("scale_rewards") == "batch", "group"),
        (normalizes, trainer.setting("normalize_advantages") is True, "false"),
        ("aggregate", experiment.aggregate == "normalize_then_sum", "sum"),
    ]
    for key, applies, instead in conflicts:
        if applies:
            yield ConfigError(
                f"{key} compares all completions of a draw, of which {KEY} keeps a part",
                where=origins.where(key),
                got="one deviation for all groups",
                expected="advantages that depend on their own group alone",
                hint=f"{key}={instead}, or {_OFF}",
            )
