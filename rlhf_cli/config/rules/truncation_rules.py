"""Checks truncation across several keys: what a policy reads, and which trainer supports it."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables.truncation_policies import TRUNCATION_POLICIES


def truncation_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with the policy for truncated completions."""
    truncation, trainer = experiment.truncation, experiment.trainer
    where = origins.where("truncation.policy")
    described = trl_args.trainer(trainer.trl)
    row = truncation.row
    for key in ("penalty", "mode", "cache"):
        # A frozen configuration holds every key, so only values other than the default count.
        if key not in row.reads and getattr(truncation, key) != type(truncation).model_fields[key].default:
            readers = [other.name for other in TRUNCATION_POLICIES.values() if key in other.reads]
            yield ConfigError(
                f"truncation.{key} means nothing to policy {truncation.policy}",
                where=origins.where(f"truncation.{key}"),
                got=f"truncation.policy={truncation.policy}",
                expected=f"{' or '.join(readers)}, which read{'s' if len(readers) == 1 else ''} it",
                hint=f"truncation={truncation.policy}, or truncation={readers[0]}",
            )
    modes = row.modes
    if modes and truncation.mode is not None and truncation.mode not in modes:
        yield ConfigError(
            f"{truncation.policy} has no mode {truncation.mode}",
            where=origins.where("truncation.mode"),
            got=truncation.mode,
            expected=" or ".join(modes),
            hint=f"truncation.mode={modes[0]}",
        )
    if truncation.policy != "none" and "truncation" not in trainer.row.sections:
        yield ConfigError(
            f"trainer={trainer.name} generates nothing that could be cut off",
            where=where,
            got=truncation.policy,
            expected="truncation.policy=none",
            hint="truncation=none",
        )
        return
    if row.needs_critic and trainer.baseline != "critic":
        able = [other.name for other in TRUNCATION_POLICIES.values() if not other.needs_critic]
        yield ConfigError(
            f"trainer={trainer.name} cannot {row.name}: it has no critic to value what would have followed",
            where=where,
            got=truncation.policy,
            expected="one of " + ", ".join(able),
            hint="trainer=ppo, or truncation=eos_penalty",
        )
    limit = trl_args.setting(described, trainer.args, "max_completion_length")
    if row.needs_limit and not isinstance(limit, int):
        yield ConfigError(
            f"{row.name} wants a limit to come near to",
            where=origins.where("trainer.args.max_completion_length"),
            got=limit,
            expected="a number of tokens",
            hint="trainer.args.max_completion_length=512",
        )
    elif isinstance(limit, int) and truncation.cache is not None and row.needs_limit and truncation.cache >= limit:
        yield ConfigError(
            "the ramp is as long as a completion may be",
            where=origins.where("truncation.cache"),
            got=f"truncation.cache={truncation.cache} with trainer.args.max_completion_length={limit}",
            expected=f"below {limit}",
            hint="truncation.cache=null",
        )
