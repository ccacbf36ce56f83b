"""rlhf why RUN | SWEEP ...             what was logged, read: findings from the worst on, each with its evidence and
what to type instead; then what is fine, and what could not be looked at. Of several runs a line each. A run may be at
work, or have failed: that is said first. docs/diagnosis.md has every finding, and how often it is wrong

  --json   an object, of several runs a list of them
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.console import Console

from rlhf_cli.diagnosis.run_diagnosis import diagnose, diagnose_readable
from rlhf_cli.errors import EXIT_OK, RunError, UserError
from rlhf_cli.runs.found_runs import runs_in
from rlhf_cli.screen.findings_panel import show_why, show_worst

_PIPE_WIDTH = 200


def run(argv: list[str]) -> int:
    """Print a diagnosis of the runs that `argv` names; returns the exit code, whatever was found.

    Raises RunError for what is no run, and where the one run that is named cannot be read.
    """
    words = [word for word in argv if word != "--json"]
    if options := [word for word in words if word.startswith("-")]:
        raise UserError("there is no such option", got=options[0], expected="--json", hint="rlhf why --help")
    if not words:
        raise RunError(
            "no run was named", expected="a run folder, or a sweep's", hint="rlhf status shows what there is"
        )
    folders = list(dict.fromkeys(folder for word in words for folder in runs_in(Path(word))))
    as_json = len(words) < len(argv)
    # In a pipe nobody sees a table that is folded at 80 columns.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH)
    if len(folders) == 1:
        one = diagnose(folders[0])
        if as_json:
            print(json.dumps(one.as_json(), indent=2))
        else:
            show_why(console, one)
        return EXIT_OK
    runs = [diagnose_readable(folder) for folder in folders]
    if as_json:
        print(json.dumps([run.as_json() for run in runs], indent=2))
    else:
        show_worst(console, runs)
    return EXIT_OK
