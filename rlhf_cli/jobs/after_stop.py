"""Asks what becomes of a sweep when Ctrl-C has stopped one of its jobs."""

from __future__ import annotations

import sys
from typing import Literal

from rich.console import Console
from rich.prompt import Prompt

from rlhf_cli.errors import Preempted
from rlhf_cli.launch.stopping import CTRL_C

Choice = Literal["stop", "skip", "continue"]

_MEANING: dict[Choice, str] = {
    "stop": "stop the sweep here",
    "skip": "leave this job as it is, start the next",
    "continue": "go on with this job, from where it was saved",
}


def choice_after(console: Console, job: str, stopped: Preempted) -> Choice:
    """Return what the user wants now: to stop, where nobody can be asked or the signal was not a key.

    A scheduler's signal is meant for everything; whoever has a terminal may have meant this job alone.
    """
    if stopped.reason != CTRL_C or not sys.stdin.isatty():
        return "stop"
    console.print(f"job {job}: {stopped}", markup=False, highlight=False, soft_wrap=True)
    for choice, meaning in _MEANING.items():
        console.print(f"  {choice:<9} {meaning}", markup=False, highlight=False)
    try:
        answer = Prompt.ask("and now", choices=list(_MEANING), default="stop", console=console)
    except (EOFError, KeyboardInterrupt):
        return "stop"
    return next(choice for choice in _MEANING if choice == answer)
