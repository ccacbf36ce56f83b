"""Complete names from the disk: files and folders, `run:NAME`, functions of a file."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_cli.errors import UserError
from rlhf_cli.reference.function_source import functions_in

RUN_PREFIX = "run:"
_ROOT = Path("runs")
_MOST_RUNS = 200


def files(typed: str, *, endings: tuple[str, ...] = ()) -> list[str]:
    """Return the paths that start with the typed text, folders with a `/`; files only with one of `endings`, if given.

    Hidden entries are included only if the dot was typed. `~` is kept.
    """
    head, slash, tail = typed.rpartition("/")
    folder = Path(head + slash).expanduser() if slash else Path()
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []
    found = []
    for entry in entries:
        if not entry.name.startswith(tail) or (entry.name.startswith(".") and not tail.startswith(".")):
            continue
        if entry.is_dir():
            found.append(f"{head}{slash}{entry.name}/")
        elif not endings or entry.name.endswith(endings):
            found.append(f"{head}{slash}{entry.name}")
    return found


def folders(typed: str) -> list[str]:
    """Return the folders that start with the typed text."""
    return [path for path in files(typed) if path.endswith("/")]


def runs_by_name(typed: str) -> list[str]:
    """Return `run:EXPERIMENT` for every folder of runs, or after a `/` its runs."""
    if not typed.startswith(RUN_PREFIX):
        return [RUN_PREFIX] if RUN_PREFIX.startswith(typed) and typed and _ROOT.is_dir() else []
    experiment, slash, _ = typed.removeprefix(RUN_PREFIX).partition("/")
    if slash:
        runs = sorted(_ROOT.glob(f"{experiment}/*/config.yaml"))[-_MOST_RUNS:]
        return [f"{RUN_PREFIX}{experiment}/{run.parent.name}" for run in runs]
    folders = sorted(_ROOT.iterdir()) if _ROOT.is_dir() else []
    return [f"{RUN_PREFIX}{folder.name}" for folder in folders if next(folder.glob("*/config.yaml"), None)]


def functions(typed: str) -> list[str]:
    """Return completions of `./rewards.py:fn`: Python files and folders, or after the colon their functions."""
    module, colon, _ = typed.rpartition(":")
    if not colon:
        found = files(typed, endings=(".py",))
        return [f"{path}:" if path.endswith(".py") else path for path in found]
    try:
        return [f"{module}:{name}" for name in functions_in(f"{module}:")]
    except UserError:
        return []
