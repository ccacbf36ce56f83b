"""Read runs given as words: run folders, sweeps, folders of runs, globs, run:NAME, wandb:entity/project."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlhf_cli.comparison.logged_run import LoggedRun, named, read_runs
from rlhf_cli.comparison.metric_columns import Wanted
from rlhf_cli.comparison.wandb_runs import is_wandb, read_wandb
from rlhf_cli.errors import RlhfError, RunError
from rlhf_cli.runs.found_runs import runs_in
from rlhf_cli.runs.run_folder import RunFolder

_ROOT = Path("runs")
_BY_NAME = "run:"


def read_by_words(
    words: Sequence[str], *, wanted: Wanted | None, where: str
) -> tuple[list[LoggedRun], list[RlhfError]]:
    """Return the readable runs, each once, and the errors for all other words and folders.

    `wanted` selects the metrics to read, None for all; `where` is the command, for error messages.
    """
    folders: dict[RunFolder, None] = {}
    problems: list[RlhfError] = []
    elsewhere: list[LoggedRun] = []
    for word in words:
        try:
            if is_wandb(word):
                elsewhere += read_wandb(word, wanted=wanted or (lambda metric: True))
            else:
                folders.update(dict.fromkeys(folders_of(word, where=where)))
        except RlhfError as error:
            problems.append(error)
    runs, unreadable = read_runs(folders, wanted=wanted)
    return (named([*runs, *elsewhere]) if elsewhere else runs), [*problems, *unreadable]


def folders_of(word: str, *, where: str) -> Iterable[RunFolder]:
    """Return the runs that a word names. Raises RunError if it names none."""
    if word.startswith(_BY_NAME):
        from rlhf_cli.jobs.run_names import find_run  # imports pydantic classes of all sections

        below = _ROOT / word.removeprefix(_BY_NAME)
        return runs_in(below) if (below / "sweep.json").is_file() else [find_run(word, str(_ROOT), where=where)]
    path = Path(word).expanduser()
    if path.exists() or not glob.has_magic(word):
        return runs_in(path)
    found = [Path(place) for place in sorted(glob.glob(os.path.expanduser(word))) if Path(place).is_dir()]
    if not found:
        raise RunError("no folder fits this pattern", got=word, expected="a glob of run folders", hint="ls runs/*")
    return [folder for place in found for folder in runs_in(place)]
