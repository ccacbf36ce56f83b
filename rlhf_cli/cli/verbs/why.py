"""rlhf why RUN | SWEEP ...             diagnose runs from their logs: findings, worst first, each with its evidence and
what to type instead; then passed checks, and checks that were impossible. For several runs, one line each. A run may
still be running, or have failed: that comes first. run:NAME is the newest finished run of an experiment.
docs/how-to/diagnosis.md describes every finding, and how often it is wrong

  --json   an object; for several runs a list of them
"""

from __future__ import annotations

from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose, diagnose_readable
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import folders_of, none_named
from rlhf_cli.display.findings_panel import show_why, show_worst
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.jobs.usage import read_options


def run(argv: list[str]) -> int:
    """Print a diagnosis of the runs in `argv` and return the exit code, 0 with any findings."""
    options = read_options(__doc__, argv, verb="why")
    words = options.words
    if not words:
        raise none_named("rlhf why", "a run folder, or a sweep's")
    folders = list(dict.fromkeys(folder for word in words for folder in folders_of(word, where="rlhf why")))
    if len(folders) == 1:
        one = diagnose(folders[0])
        if options.as_json:
            print_json(one.as_json())
        else:
            show_why(wide_console(), one)
        return EXIT_OK
    runs = [diagnose_readable(folder) for folder in folders]
    if options.as_json:
        print_json([run.as_json() for run in runs])
    else:
        show_worst(wide_console(), runs)
    return EXIT_OK
