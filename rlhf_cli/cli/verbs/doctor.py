"""rlhf doctor     what training needs and this machine lacks, and the fix: GPU, packages, extras, network, logins,
cores, memory, disk, sandbox. Exit code 2 if something that training needs is missing or does not fit.

  --json   {can_train, conditions: [{area, name, state, found, fix, is_needed}]}; state: ok, warn, missing, unfit
"""

from __future__ import annotations

from dataclasses import asdict

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.display.project_screens import show_conditions
from rlhf_cli.errors import EXIT_OK, EXIT_USER_ERROR
from rlhf_cli.project.doctor import can_train, examine


def run(options: Options) -> int:
    """Examine this machine, print the result and return the exit code."""
    if options.words:
        what, got = "rlhf doctor takes only flags", options.words[0]
        raise options.error(what, got=got, expected="no words")
    conditions = examine()
    print_result(
        options,
        lambda: {"can_train": can_train(conditions), "conditions": [asdict(condition) for condition in conditions]},
        lambda console: show_conditions(console, conditions),
    )
    return EXIT_OK if can_train(conditions) else EXIT_USER_ERROR
