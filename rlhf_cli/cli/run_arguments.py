"""Read the runs and experiments that words of a command line mean."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlhf_cli.analysis.comparison.frames import is_wandb, read_wandb
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, named, read_runs
from rlhf_cli.errors import RunError, UserError
from rlhf_cli.plan.prepare import find_run, is_run_name
from rlhf_cli.runs.metric_arrays import Wanted
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, names_a_run, open_run, runs_in
from rlhf_cli.runs.run_status import with_newest

_ROOT = "runs"


def read_by_words(
    words: Sequence[str], *, wanted: Wanted | None, where: str
) -> tuple[list[LoggedRun], list[UserError]]:
    """Return the readable runs, each once, and the errors for the others; `wanted` selects the metrics to read."""
    folders: dict[RunFolder, None] = {}
    problems: list[UserError] = []
    elsewhere: dict[str, LoggedRun] = {}
    for word in words:
        try:
            if is_wandb(word):
                read = read_wandb(word, wanted=wanted or (lambda metric: True))
                elsewhere |= {run.place: run for run in read}
            else:
                folders.update(dict.fromkeys(folders_of(word, where=where)))
        except UserError as error:
            problems.append(error)
    runs, unreadable = read_runs(folders, wanted=wanted)
    return (named([*runs, *elsewhere.values()]) if elsewhere else runs), [*problems, *unreadable]


def folders_of(word: str, *, where: str) -> Iterable[RunFolder]:
    """Return the runs that a word names. Raise RunError if it names none."""
    path = place_of(word, where=where)
    if path.exists() or not glob.has_magic(word):
        return runs_in(path)
    found = [Path(place) for place in sorted(glob.glob(os.path.expanduser(word))) if Path(place).is_dir()]
    if not found:
        raise RunError("no folder fits this pattern", got=word, expected="a glob of run folders", hint="ls runs/*")
    return [folder for place in found for folder in runs_in(place)]


def place_of(word: str, *, where: str) -> Path:
    """Return the folder that a word names, a sweep of `run:NAME` too. Raise RunError if no run of it has finished."""
    if not is_run_name(word):
        return Path(word).expanduser()
    below = Path(_ROOT, word.partition(":")[2])
    return below if (below / SWEEP).is_file() else find_run(word, _ROOT, where=where).path


def one_named(words: list[str], verb: str, expected: str, *, more: str = "", finished: bool | None = None) -> str:
    """Remove the one word that names a run from `words` and return it. Raise RunError if there is not one."""
    named = [word for word in words if names_a_run(word)]
    if len(named) != 1:
        raise none_named(verb, expected, got=" ".join(named), hint=with_newest(verb, more, finished=finished))
    words.remove(named[0])
    return named[0]


def none_named(
    verb: str, expected: str, *, got: str = "", hint: str | None = None, all_of_it: bool = False
) -> RunError:
    """Return the error for a command line without a run; `got` are the runs, where it has too many."""
    problem = "one run at a time" if got else "no run was named"
    return RunError(problem, got=got or None, expected=expected, hint=hint or with_newest(verb, all_of_it=all_of_it))


def run_at(named: str, words: list[str], *, where: str) -> RunFolder:
    """Return the run at a path or of `run:NAME`; a word `run.root=FOLDER` sets the folder of runs."""
    if not is_run_name(named):
        return open_run(Path(named))
    root = next((word.partition("=")[2] for word in words if word.lstrip("+").startswith("run.root=")), _ROOT)
    return find_run(named, root, where=where)
