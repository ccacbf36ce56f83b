"""Checks the keys of `launch` about machines and deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.errors import ConfigError, UserError

_USUAL_PORT = 29500
"""torch's default port, as in its documentation."""
_HIGHEST_PORT = 65535


def launch_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield what prevents machines from meeting, and an invalid deadline."""
    yield from _several_machines(experiment.launch, origins)
    if (deadline := experiment.launch.must_save_by) is not None and (wrong := _no_deadline(deadline)):
        yield ConfigError(
            "launch.must_save_by is no time to come",
            where=origins.where("launch.must_save_by"),
            got=f"{deadline} ({wrong})",
            expected="an ISO time, this machine's where it names no zone",
            hint=f"launch.must_save_by={datetime.now().replace(hour=23, minute=0):%Y-%m-%dT%H:%M}",
        )


def _several_machines(launch: Launch, origins: Origins) -> Iterator[UserError]:
    """Yield what prevents the machines of a run from meeting; under Slurm they find one another."""
    if launch.rdzv is not None and launch.slurm is not None:
        yield ConfigError(
            "in a job of Slurm the machines find one another",
            where=origins.where("launch.rdzv"),
            got=launch.rdzv,
            expected="no launch.rdzv beside launch.slurm",
            hint="launch.rdzv=null",
        )
    elif launch.rdzv is not None and launch.nodes == 1:
        yield ConfigError(
            "launch.rdzv is where several machines meet",
            where=origins.where("launch.rdzv"),
            got=f"{launch.rdzv} with launch.nodes=1",
            expected="launch.nodes=2 or more",
            hint="launch.nodes=2, or launch.rdzv=null",
        )
    elif launch.rdzv is not None and not 0 < int(launch.rdzv.rpartition(":")[2]) <= _HIGHEST_PORT:
        yield ConfigError(
            "launch.rdzv names no port",
            where=origins.where("launch.rdzv"),
            got=launch.rdzv,
            expected=f"a port of 1 to {_HIGHEST_PORT}",
            hint=f"launch.rdzv={launch.rdzv.rpartition(':')[0]}:{_USUAL_PORT}",
        )
    elif launch.rdzv is None and launch.nodes > 1 and launch.slurm is None:
        yield ConfigError(
            f"{launch.nodes} machines have nowhere to meet",
            where=origins.where("launch.nodes"),
            got=f"launch.nodes={launch.nodes} without launch.rdzv",
            expected="this machine's name or address as the others reach it, with a free port; or a job of Slurm",
            hint=f"launch.rdzv=HOST:{_USUAL_PORT}, or launch=slurm",
        )


def _no_deadline(text: str) -> str | None:
    """Return what is wrong with a deadline, or None if it is valid."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        return str(error)
    return "it has passed" if time.astimezone() <= datetime.now().astimezone() else None
