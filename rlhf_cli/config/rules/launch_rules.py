"""Checks what is asked of machines and processes."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.errors import ConfigError, UserError

_NOT_YET = (
    "nodes",
    "rdzv",
    "strategy",
    "offload",
    "accelerate_config",
    "rollout",
    "rollout_gpus",
    "must_save_by",
)


def launch_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every key of `launch` that this version reads and does not act on."""
    for name in _NOT_YET:
        value, default = getattr(experiment.launch, name), Launch.model_fields[name].default
        if value != default:
            key = f"launch.{name}"
            yield ConfigError(
                f"{key} is not there yet", where=origins.where(key), got=repr(value), hint=f"{key}={default}"
            )
