"""rlhf doctor     what this machine has and lacks for training, and what to type: GPU, packages, extras, network,
logins, cores, memory, disk, sandbox, Slurm. Exit code 2 if something that training needs is missing or does not fit.

  --json   {can_train, conditions: [{area, name, state, found, fix, is_needed}]}; state: ok, warn, missing, unfit
"""

from __future__ import annotations

from dataclasses import asdict

from rlhf_cli.cli.output import print_json
from rlhf_cli.display.project_screens import show_conditions
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_OK, EXIT_USER_ERROR
from rlhf_cli.jobs.usage import read_options
from rlhf_cli.project.doctor import can_train, examine


def run(argv: list[str]) -> int:
    """Examine this machine, print the result and return the exit code."""
    options = read_options(__doc__, argv, verb="doctor")
    options.refuse_words("rlhf doctor takes flags alone")
    conditions = examine()
    if options.as_json:
        print_json({"can_train": can_train(conditions), "conditions": [asdict(one) for one in conditions]})
    else:
        show_conditions(wide_console(), conditions)
    return EXIT_OK if can_train(conditions) else EXIT_USER_ERROR
