"""rlhf doctor     what training needs and this machine lacks, and the fix: GPU, packages, extras, network, logins,
cores, memory, disk, sandbox. Exit code 2 if something that training needs is missing or does not fit.

  --json   {can_train, conditions: [{area, name, state, found, fix, is_needed}]}; state: ok, warn, missing, unfit
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.display.terminal import Cell, plain_table
from rlhf_cli.errors import EXIT_OK, EXIT_USER_ERROR
from rlhf_cli.project.doctor import Condition, State, can_train, examine

_STYLE = {State.OK: "green", State.WARN: "yellow", State.MISSING: "dim", State.UNFIT: "red"}


def run(options: Options) -> int:
    """Examine this machine, print the result and return the exit code."""
    if options.words:
        raise options.error("rlhf doctor takes only flags", got=options.words[0], expected="no words")
    conditions = examine()
    content = {"can_train": can_train(conditions), "conditions": [asdict(condition) for condition in conditions]}
    print_result(options, lambda: content, lambda console: _show(console, conditions))
    return EXIT_OK if can_train(conditions) else EXIT_USER_ERROR


def _show(console: Console, conditions: Sequence[Condition]) -> None:
    rows: list[list[Cell]] = []
    for area, group in itertools.groupby(conditions, key=lambda condition: condition.area):
        rows.append([(area, "bold"), "", ""])
        for condition in group:
            style = "bold red" if condition.prevents_training else _STYLE[condition.state]
            found = Text(condition.found)
            if condition.fix is not None:
                found.append("\n" if condition.found else "").append(condition.fix, "cyan")
            rows.append([f"  {condition.name}", (condition.state, style), found])
    console.print(plain_table(["", "", ""], rows=rows))
    if can_train(conditions):
        console.print("[green]ok[/], rlhf can train here; missing packages are only for the feature in their row")
    else:
        wrong = ", ".join(condition.name for condition in conditions if condition.prevents_training)
        console.print(Text.assemble(("rlhf cannot train here", "bold red"), f": {wrong}"))
