"""Takes the run that a user means out of what was typed."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.jobs.run_names import find_run, is_run_name
from rlhf_cli.runs.run_folder import RunFolder, names_a_run, open_run


def take_run(words: list[str], *, where: str) -> RunFolder | None:
    """Remove the word that names a run from `words` and return the run; None where no word does.

    Raises RunError for a folder that is none, and where no run of a name has finished. `where` is the verb.
    """
    named = next((word for word in words if names_a_run(word)), None)
    if named is None:
        return None
    words.remove(named)
    return run_at(named, words, where=where)


def run_at(named: str, words: list[str], *, where: str) -> RunFolder:
    """Return the run of a path or of `run:NAME`; `run.root=FOLDER` among the words may say where runs lie."""
    if not is_run_name(named):
        return open_run(Path(named))
    root = next((word.partition("=")[2] for word in words if word.lstrip("+").startswith("run.root=")), "runs")
    return find_run(named, root, where=where)
