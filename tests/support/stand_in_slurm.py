"""Slurm's commands as shell scripts that write down how they were called: what a test of seconds submits to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

_RECORD = """#!/bin/sh
echo "$(basename "$0") $*" >> {calls}
"""
_SBATCH = """
if [ "$1" = --test-only ]; then
  if [ -f {folder}/refuses ]; then cat {folder}/refuses >&2; exit 1; fi
  echo "sbatch: Job 42 to start at 2026-01-01T00:00:00" >&2; exit 0
fi
if [ -f {folder}/fails ]; then cat {folder}/fails >&2; exit 1; fi
cp "$1" {folder}/submitted.sh
echo "Submitted batch job 42"
"""
_SAYS = """
cat {folder}/{name}.out 2>/dev/null
[ ! -f {folder}/{name}.err ] || {{ cat {folder}/{name}.err >&2; exit 1; }}
"""


@dataclass(frozen=True)
class StandInSlurm:
    """A folder with the commands, which a test puts on PATH."""

    folder: Path

    @property
    def calls(self) -> list[str]:
        """Return the command lines so far, such as `scontrol requeue 7`."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.is_file() else []

    @property
    def submitted(self) -> str:
        """Return the script that sbatch was given last."""
        return (self.folder / "submitted.sh").read_text()

    def says(self, command: str, output: str = "", error: str | None = None) -> None:
        """Have a command print `output` from now on; with `error`, print that and fail."""
        (self.folder / f"{command}.out").write_text(output)
        problem = self.folder / f"{command}.err"
        problem.unlink(missing_ok=True)
        if error is not None:
            problem.write_text(error)

    def refuses(self, said: str) -> None:
        """Have `sbatch --test-only` print this and fail."""
        (self.folder / "refuses").write_text(said)


def stand_in(folder: Path, patch: pytest.MonkeyPatch) -> StandInSlurm:
    """Put the commands into `folder` and on PATH, without a real Slurm's."""
    folder.mkdir()
    for name in ("sbatch", "srun", "squeue", "scontrol", "sinfo"):
        body = _SBATCH if name == "sbatch" else _SAYS
        script = folder / name
        script.write_text((_RECORD + body).format(calls=folder / "calls", folder=folder, name=name))
        script.chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name in list(os.environ):
        if name.startswith("SLURM_"):
            patch.delenv(name)
    return StandInSlurm(folder)
