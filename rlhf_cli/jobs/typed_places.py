"""Turns a typed word into the folder it means: a path as it is, `run:NAME` into the newest finished run of NAME."""

from __future__ import annotations

from pathlib import Path

_BY_NAME = "run:"


def place_of(word: str, *, where: str) -> Path:
    """Return the folder or file that a word means. Raises RunError where no run of a name has finished.

    `where` is the command or flag, for the error to name.
    """
    if not word.startswith(_BY_NAME):
        return Path(word).expanduser()
    from rlhf_cli.jobs.run_names import find_run  # pydantic's classes of all sections come with it

    return find_run(word, "runs", where=where).path
