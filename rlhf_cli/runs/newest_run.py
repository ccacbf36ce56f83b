"""Find the newest run, so that hints can show a command that is ready to paste."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.runs.found_runs import runs_below
from rlhf_cli.runs.run_folder import FIRST_RUN, RunFolder
from rlhf_cli.runs.run_status import FINISHED, read_status


def newest_run(root: Path = Path("runs"), *, finished: bool = False) -> RunFolder | None:
    """Return the most recently updated run below `root`, or None; `finished` requires a finished run with a model."""
    found = sorted(runs_below(root), key=_last_heard_of, reverse=True)
    return next((run for run in found if not finished or _has_finished(run)), None)


def with_newest(command: str, more: str = "", *, finished: bool = False, all_of_it: bool = False) -> str:
    """Return e.g. `rlhf why runs/quickstart/mine`: the command with the newest run, or how to make a first run.

    `all_of_it` names the experiment's folder with all its runs instead; `more` is appended.
    """
    run = newest_run(finished=finished)
    if run is None:
        return f"{FIRST_RUN} && {command} run:quickstart{more}"
    named = os.path.join(*Path(run.shown).parts[:2]) if all_of_it else run.shown
    return f"{command} {shlex.quote(named)}{more}"


def _last_heard_of(run: RunFolder) -> float:
    file = run.status if run.status.is_file() else run.config
    return file.stat().st_mtime


def _has_finished(run: RunFolder) -> bool:
    try:
        return read_status(run).state == FINISHED and run.model.is_dir()
    except RunError:
        return False
