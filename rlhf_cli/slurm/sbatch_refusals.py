"""Translate Slurm's reason for refusing a job into an error about the configuration key to change."""

from __future__ import annotations

import subprocess

from rlhf_cli.config.schema.launch_section import Slurm
from rlhf_cli.errors import ConfigError, Prose
from rlhf_cli.suggest import nearest

_SINFO_TIMEOUT_S = 20.0
_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Could not establish a configuration source",
    "Connection refused",
    "did not answer",
)
_ABOUT = {
    "invalid partition": "partition",
    "account": "account",
    "qos": "qos",
    "time limit": "time",
    "time specification": "time",
    "generic resource": "gpus_per_node",
    "gres": "gpus_per_node",
    "memory": "mem_gb",
    "cpu count": "cpus_per_task",
    "node configuration": "",
}
"""Maps text in sbatch's message -> the key of launch.slurm it concerns, '' for the requested size."""
_SIZES = ("gpus_per_node", "cpus_per_task", "mem_gb")


def refusal(said: str, slurm: Slurm) -> ConfigError:
    """Return the error for sbatch's output when it refused a job of `slurm`."""
    said = said.strip().removeprefix("sbatch: ").removeprefix("error: ").removeprefix("allocation failure: ")
    said = "\n".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines())
    if any(text.lower() in said.lower() for text in _UNREACHABLE):
        return ConfigError(
            "Slurm does not answer on this machine",
            where="launch.slurm",
            got=said,
            expected="a login node of a cluster that is up: `sinfo` lists its partitions",
            hint="launch=auto",
        )
    about = next((key for text, key in _ABOUT.items() if text in said.lower()), None)
    if about == "partition":
        return _no_such_partition(said, slurm.partition)
    if about == "":
        asked = [f"{name}={value}" for name in _SIZES if (value := getattr(slurm, name)) is not None]
        return ConfigError(
            "no node of Slurm is large enough for the job",
            where="launch.slurm",
            got=f"{said}\n{', '.join(asked)}" if asked else said,
            expected="no more than `sinfo -o '%P %c %m %G'` lists: partition, CPUs, MB of memory, GPUs of a node",
            hint=f"launch.slurm.{asked[0].partition('=')[0]}=LESS" if asked else "launch.slurm.partition=ANOTHER",
        )
    key = f"launch.slurm.{about}" if about else "launch.slurm"
    value = getattr(slurm, about) if about else None
    return ConfigError(
        "Slurm does not take the job",
        where=key,
        got=said if value is None else f"{value}\n{said}",
        hint=f"{key}=..."
        if about
        else Prose("sbatch's own words are above; launch.slurm.extra holds options of sbatch"),
    )


def _no_such_partition(said: str, partition: str | None) -> ConfigError:
    there = _partitions()
    close = nearest(partition or "", there) or next(iter(there), "NAME")
    return ConfigError(
        "Slurm has no such partition",
        where="launch.slurm.partition",
        got=partition or said,
        expected=f"one of {', '.join(there)}" if there else None,
        hint=f"launch.slurm.partition={close}",
    )


def _partitions() -> list[str]:
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%R"],
            capture_output=True,
            text=True,
            timeout=_SINFO_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted(set(done.stdout.split()))
