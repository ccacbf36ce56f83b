"""Checks what is asked of machines and processes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.errors import ConfigError, UserError

_NOT_YET = ("nodes", "rdzv")


def launch_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every key of `launch` that this version reads and does not act on, and a deadline that is none."""
    for name in _NOT_YET:
        value, default = getattr(experiment.launch, name), Launch.model_fields[name].default
        if value != default:
            key = f"launch.{name}"
            yield ConfigError(
                f"{key} is not there yet", where=origins.where(key), got=repr(value), hint=f"{key}={default}"
            )
    if (deadline := experiment.launch.must_save_by) is not None and (wrong := _no_deadline(deadline)):
        yield ConfigError(
            "launch.must_save_by is no time to come",
            where=origins.where("launch.must_save_by"),
            got=f"{deadline} ({wrong})",
            expected="an ISO time, this machine's where it names no zone",
            hint=f"launch.must_save_by={datetime.now().replace(hour=23, minute=0):%Y-%m-%dT%H:%M}",
        )


def _no_deadline(text: str) -> str | None:
    """Return what is wrong with a deadline, None where nothing is."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        return str(error)
    return "it has passed" if time.astimezone() <= datetime.now().astimezone() else None
