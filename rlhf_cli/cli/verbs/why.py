"""rlhf why RUN | SWEEP ...             diagnose runs from their logs: findings, worst first, each with its evidence and
what to type instead; then passed checks, and checks that were impossible. For several runs, one line each. A run may
still be running, or have failed: that comes first. run:NAME is the newest finished run of an experiment.
docs/how-to/diagnosis.md describes every finding, and how often it is wrong

  --json   an object; for several runs a list of them
"""

from __future__ import annotations

from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose, diagnose_readable
from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import folders_of, none_named
from rlhf_cli.display.findings_panel import show_why, show_worst


def run(options: Options) -> int:
    """Print a diagnosis of the named runs and return the exit code, 0 with any findings."""
    words = options.words
    if not words:
        raise none_named("rlhf why", "a run folder, or a sweep's")
    folders = list(dict.fromkeys(folder for word in words for folder in folders_of(word, where="rlhf why")))
    if len(folders) == 1:
        diagnosis = diagnose(folders[0])
        return print_result(options, diagnosis.as_json, lambda console: show_why(console, diagnosis))
    runs = [diagnose_readable(folder) for folder in folders]
    return print_result(options, lambda: [run.as_json() for run in runs], lambda console: show_worst(console, runs))
