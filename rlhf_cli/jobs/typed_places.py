"""Resolve a typed word to a folder: a path, or `run:NAME` for the newest finished run of NAME."""

from __future__ import annotations

from pathlib import Path

_BY_NAME = "run:"


def place_of(word: str, *, where: str) -> Path:
    """Return the folder or file that a word names. Raises RunError if no run of that name has finished.

    `where` is the command or flag, for error messages.
    """
    if not word.startswith(_BY_NAME):
        return Path(word).expanduser()
    from rlhf_cli.jobs.run_names import find_run  # imports pydantic classes of all sections

    return find_run(word, "runs", where=where).path
