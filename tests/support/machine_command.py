"""What a process of tests/support/two_machines.py runs: a command of `rlhf` whose ranks are of a test's own module."""

from __future__ import annotations

import os
import sys
import time

from rlhf_cli import cli
from rlhf_cli.cli.verbs import join, resume
from rlhf_cli.launch import elastic, joining, machines
from rlhf_cli.plan import launch_plan

MODULES = (elastic, joining, machines, join, resume)


def run_command(
    words: list[str], file: str, patched: dict[str, float], cwd: str, environment: dict[str, str], path: list[str]
) -> None:
    """Run `rlhf` with these words in the folder `cwd`, print into `file`, and exit with its code."""
    sys.stdout.flush()
    printed = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [cwd, *path]
    time.tzset()
    launch_plan.WORKER = "pretended_rank"
    for name, value in patched.items():
        known = [module for module in MODULES if hasattr(module, name)]
        assert known, name
        for module in known:
            setattr(module, name, value)
    code = cli.main(words)
    sys.stdout.flush()
    os._exit(code)
