"""What Tab offers of the disk: files and folders, runs by name, functions of a file."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_cli.errors import UserError
from rlhf_cli.reference.function_source import functions_in

RUN_PREFIX = "run:"
_ROOT = Path("runs")
_MOST_RUNS = 200


def files(typed: str, *, endings: tuple[str, ...] = ()) -> list[str]:
    """Return the paths that begin with what was typed, folders with a `/`; of `endings` alone, where there are any.

    What is hidden is offered where its dot was typed. `~` stays as it is.
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
    """Return the folders that begin with what was typed."""
    return [path for path in files(typed) if path.endswith("/")]


def runs_by_name(typed: str) -> list[str]:
    """Return `run:EXPERIMENT` for every folder of runs, and behind a `/` its runs."""
    if not typed.startswith(RUN_PREFIX):
        return [RUN_PREFIX] if RUN_PREFIX.startswith(typed) and typed and _ROOT.is_dir() else []
    experiment, slash, _ = typed.removeprefix(RUN_PREFIX).partition("/")
    if slash:
        runs = sorted(_ROOT.glob(f"{experiment}/*/config.yaml"))[-_MOST_RUNS:]
        return [f"{RUN_PREFIX}{experiment}/{run.parent.name}" for run in runs]
    folders = sorted(_ROOT.iterdir()) if _ROOT.is_dir() else []
    return [f"{RUN_PREFIX}{folder.name}" for folder in folders if next(folder.glob("*/config.yaml"), None)]


def functions(typed: str) -> list[str]:
    """Return `./rewards.py:fn` for what begins so: Python files and folders, behind the colon their functions."""
    module, colon, _ = typed.rpartition(":")
    if not colon:
        found = files(typed, endings=(".py",))
        return [f"{path}:" if path.endswith(".py") else path for path in found]
    try:
        return [f"{module}:{name}" for name in functions_in(f"{module}:")]
    except UserError:
        return []
