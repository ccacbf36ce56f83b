"""Take the run that a user named out of the typed words."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.jobs.run_names import find_run, is_run_name
from rlhf_cli.runs.run_folder import RunFolder, names_a_run, open_run


def take_run(words: list[str], *, where: str) -> RunFolder | None:
    """Remove the word that names a run from `words` and return the run; None if there is no such word.

    Raises RunError if a folder is not a run, or no run of a name has finished. `where` is the verb.
    """
    named = next((word for word in words if names_a_run(word)), None)
    if named is None:
        return None
    words.remove(named)
    return run_at(named, words, where=where)


def run_at(named: str, words: list[str], *, where: str) -> RunFolder:
    """Return the run at a path or of `run:NAME`; `run.root=FOLDER` in `words` sets the folder of runs."""
    if not is_run_name(named):
        return open_run(Path(named))
    root = next((word.partition("=")[2] for word in words if word.lstrip("+").startswith("run.root=")), "runs")
    return find_run(named, root, where=where)
