"""Checks the options for Slurm before sbatch is called."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+)(?::(?P<day_seconds>\d+))?)?"
    r"|(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)"
    r"|(?P<only_minutes>\d+))"
)
"""The forms of sbatch's --time: D-H, D-H:M, D-H:M:S, H:M:S, M:S and M."""

_HAS_A_KEY = {
    "partition": "launch.slurm.partition",
    "account": "launch.slurm.account",
    "qos": "launch.slurm.qos",
    "time": "launch.slurm.time",
    "gpus-per-node": "launch.slurm.gpus_per_node",
    "cpus-per-task": "launch.slurm.cpus_per_task",
    "mem": "launch.slurm.mem_gb",
    "nodes": "launch.nodes",
    "signal": "launch.grace_s",
}
_OURS = (
    *("array", "comment", "error", "export", "job-name", "no-requeue", "ntasks", "ntasks-per-node", "open-mode"),
    *("output", "parsable", "requeue", "test-only", "wait", "wrap"),
)


def slurm_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `launch.slurm`."""
    launch = experiment.launch
    if launch.slurm is None:
        return
    if launch.slurm.time is not None:
        yield from _time_problems(launch.slurm.time, launch.grace_s, origins)
    for name in launch.slurm.extra:
        option = name.lstrip("-").replace("_", "-")
        where = origins.where(f"launch.slurm.extra.{name}")
        if option in _HAS_A_KEY:
            key = _HAS_A_KEY[option]
            yield ConfigError(f"sbatch's --{option} has a key of its own", where=where, expected=key, hint=f"{key}=...")
        elif option in _OURS:
            yield ConfigError(
                f"sbatch's --{option} is what a run is submitted with",
                where=where,
                expected="an option that says where or as whom a job runs, such as constraint, reservation, nodelist",
                hint=f"~launch.slurm.extra.{name}",
            )


def _time_problems(time: str, grace_s: float, origins: Origins) -> Iterator[UserError]:
    where = origins.where("launch.slurm.time")
    allowed_s = seconds(time)
    if allowed_s is None:
        yield ConfigError(
            "that is no time as sbatch reads it",
            where=where,
            got=time,
            expected="hours:minutes:seconds, days-hours:minutes:seconds, or minutes",
            hint="launch.slurm.time=4:00:00",
        )
    elif allowed_s <= grace_s:
        yield ConfigError(
            "a job would be told to save before it has begun",
            where=where,
            got=f"{time} is {allowed_s:g} s, and launch.grace_s={grace_s:g} of them are for saving",
            expected="a time that is much longer than launch.grace_s",
            hint="launch.slurm.time=4:00:00",
        )


def seconds(time: str) -> int | None:
    """Return the seconds that sbatch's --time means, or None if the text has another form."""
    match = _TIME.fullmatch(time.strip())
    if match is None:
        return None
    part = {name: int(value) for name, value in match.groupdict().items() if value is not None}
    days, hours = part.get("days", 0), part.get("day_hours", part.get("hours", 0))
    minutes = part.get("day_minutes", part.get("minutes", part.get("only_minutes", 0)))
    return ((days * 24 + hours) * 60 + minutes) * 60 + part.get("day_seconds", part.get("seconds", 0))
