"""Rules about truncation that need more than one key: what a policy reads, and which trainer can honour it."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema import Experiment
from rlhf_cli.errors import ConfigError, UserError

_READERS = {
    "penalty": ("eos_penalty", "soft_overlong"),
    "mode": ("eos_penalty", "bootstrap"),
    "cache": ("soft_overlong",),
}
"""Key of the section -> the policies that read it."""

_MODES = {"eos_penalty": ("subtract", "replace"), "bootstrap": ("add", "replace")}

_WITHOUT_CRITIC = ("none", "eos_penalty", "exclude", "soft_overlong")


def truncation_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Every problem with what is to happen to completions that were cut off."""
    truncation, trainer = experiment.truncation, experiment.trainer
    where = origins.where("truncation.policy")
    described = trl_args.trainer(trainer.trl)
    for key, readers in _READERS.items():
        if key in truncation.model_fields_set and truncation.policy not in readers:
            yield ConfigError(
                f"truncation.{key} means nothing to policy {truncation.policy}",
                where=origins.where(f"truncation.{key}"),
                got=f"truncation.policy={truncation.policy}",
                expected=f"{' or '.join(readers)}, which read{'s' if len(readers) == 1 else ''} it",
                hint=f"truncation={truncation.policy} for the policy alone, or truncation={readers[0]}",
            )
    modes = _MODES.get(truncation.policy, ())
    if modes and truncation.mode is not None and truncation.mode not in modes:
        yield ConfigError(
            f"{truncation.policy} has no mode {truncation.mode}",
            where=origins.where("truncation.mode"),
            got=truncation.mode,
            expected=" or ".join(modes),
            hint=f"truncation.mode={modes[0]}",
        )
    if truncation.policy != "none" and "reward_funcs" not in described.parameters:
        yield ConfigError(
            f"trainer={trainer.name} generates nothing that could be cut off",
            where=where,
            got=truncation.policy,
            expected="truncation.policy=none",
            hint="truncation=none",
        )
        return
    if truncation.policy == "bootstrap" and trainer.baseline != "critic":
        yield ConfigError(
            f"trainer={trainer.name} cannot bootstrap: it has no critic to value what would have followed",
            where=where,
            got=truncation.policy,
            expected="one of " + ", ".join(_WITHOUT_CRITIC),
            hint="trainer=ppo, or truncation=eos_penalty",
        )
    limit = trl_args.setting(described, trainer.args, "max_completion_length")
    if truncation.policy == "soft_overlong" and not isinstance(limit, int):
        yield ConfigError(
            "soft_overlong wants a limit to come near to",
            where=origins.where("trainer.args.max_completion_length"),
            got=limit,
            expected="a number of tokens",
            hint="trainer.args.max_completion_length=512",
        )
    elif truncation.cache is not None and truncation.policy == "soft_overlong" and truncation.cache >= limit:
        yield ConfigError(
            "the ramp is as long as a completion may be",
            where=origins.where("truncation.cache"),
            got=f"truncation.cache={truncation.cache} with trainer.args.max_completion_length={limit}",
            expected=f"below {limit}",
            hint="truncation.cache=null for a fifth of it",
        )
