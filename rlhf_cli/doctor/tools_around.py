"""Check for other programs used around a training: a sandbox for code, Slurm, git, a terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rlhf_cli.doctor.condition import Condition, State
from rlhf_cli.errors import RewardError
from rlhf_cli.runs.provenance import git_state
from rlhf_cli.sandbox.running import protections

_AREA = "tools"
_TIMEOUT_S = 2.0


def sandbox_condition() -> Condition:
    """Return how model-written code is isolated here; runs a program in the sandbox to find out."""
    try:
        walls = protections()
    except (RewardError, OSError) as error:
        found = f"model-written code cannot be run: {getattr(error, 'got', None) or error}"
        return Condition(_AREA, "sandbox", State.MISSING, found, "docs/sandbox.md says what a machine has to allow")
    if walls["bubblewrap"]:
        return Condition(_AREA, "sandbox", State.OK, "bubblewrap: no files, no network, limits")
    fix = "apt install bubblewrap"
    if walls["namespaces"]:
        return Condition(_AREA, "sandbox", State.OK, "namespaces of our own: no files, no network, limits")
    open_to = [] if walls.get("no_network") else ["the network"]
    found = f"limits alone: code of a model reads files{' and reaches ' + open_to[0] if open_to else ''}"
    return Condition(_AREA, "sandbox", State.WARN, found, fix)


def slurm_condition(sbatch: str | None = None) -> Condition:
    """Return whether jobs can be submitted to Slurm from here."""
    sbatch = sbatch or shutil.which("sbatch")
    if sbatch is None:
        return Condition(
            _AREA, "Slurm", State.MISSING, "no sbatch: runs are started here, launch=slurm is not for here"
        )
    sinfo = str(Path(sbatch).with_name("sinfo"))
    try:
        asked = subprocess.run(
            [sinfo, "-h", "-o", "%P"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return Condition(_AREA, "Slurm", State.WARN, "sbatch is there, and no cluster answers", "sinfo says more")
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no cluster answers"])[0]
        return Condition(_AREA, "Slurm", State.WARN, f"sbatch is there; {why}", "sinfo says more")
    partitions = " ".join(asked.stdout.split())
    return Condition(_AREA, "Slurm", State.OK, f"partitions: {partitions}")


def git_condition() -> Condition:
    """Return whether a run started in this folder will record its commit."""
    if shutil.which("git") is None:
        found = "not installed: a run's provenance has no commit"
        return Condition(_AREA, "git", State.WARN, found, "apt install git")
    state = git_state(Path.cwd())
    if state is None:
        found = "this folder is in no repository: a run's provenance has no commit"
        return Condition(_AREA, "git", State.WARN, found, "git init && git add -A && git commit -m 'The beginning'")
    commit = str(state["commit"])[:10]
    return Condition(
        _AREA, "git", State.OK, f"commit {commit}{', with changes that are in none' * bool(state['dirty'])}"
    )


def terminal_condition() -> Condition:
    """Return whether the terminal and the file system use UTF-8."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    files = sys.getfilesystemencoding().lower().replace("-", "")
    width = shutil.get_terminal_size().columns
    what = f"a terminal of {width} columns" if sys.stdout.isatty() else "no terminal: tables are wide, without colours"
    if encoding != "utf8" or files != "utf8":
        language = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "no LANG"
        found = f"{what}; {language} is not UTF-8"
        return Condition(_AREA, "terminal", State.WARN, found, "export LANG=C.UTF-8 PYTHONUTF8=1")
    return Condition(_AREA, "terminal", State.OK, f"{what}, UTF-8")
