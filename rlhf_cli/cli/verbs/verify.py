"""rlhf verify RUN | SWEEP ...          whether runs met their `expect:`: met, missed, or open if the run has not come
so far, each with its number; a run without expectations is named. docs/how-to/expectations.md explains how the
numbers are read

  --json   an object: `state`; `runs`, each with its `expectations`; `left_out`, why others cannot be read

Exit code 0 if everything is met, 1 if anything is missed or open, 2 if no run has expectations or one cannot be read.
"""

from __future__ import annotations

from rlhf_cli.analysis.verification import MET, MISSED, OPEN, VerifiedRun, verify
from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import folders_of, none_named
from rlhf_cli.display.comparison_tables import show_left_out
from rlhf_cli.display.run_tables import show_edited, show_verified
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_USER_ERROR, RunError, UserError, raise_any


def run(options: Options) -> int:
    """Print which expectations the named runs met, and return the exit code."""
    if not options.words:
        raise none_named("rlhf verify", "a run folder, or a sweep's")
    verified: dict[object, VerifiedRun] = {}
    problems: list[UserError] = []
    for word in options.words:
        try:
            folders = [*folders_of(word, where="rlhf verify")]
        except UserError as error:
            problems.append(error)
            continue
        for folder in folders:
            try:
                verified[folder] = verify(folder)
            except UserError as error:
                problems.append(error)
    runs = list(verified.values())
    states = [run.state for run in runs if run.state is not None]
    if not states:
        raise_any(problems)
        what = "these runs have no expectations" if len(runs) > 1 else "the run has no expectations"
        where = ", ".join(run.folder.shown for run in runs[:3]) + (" ..." if len(runs) > 3 else "")
        expected = "`expect:` in the experiment, before the run is made"
        raise RunError(what, where=where, expected=expected, hint="expect: [{metric: reward, at: end, at_least: 0.5}]")
    state = next(state for state in (MISSED, OPEN, MET) if state in states)
    left_out = [str(problem) for problem in problems]
    content = {"state": state, "runs": [run.as_json() for run in runs], "left_out": left_out}
    print_result(options, lambda: content, lambda console: show_verified(console, runs))
    errors = Screen(stderr=True)
    show_left_out(errors, problems)
    show_edited(errors, [run.folder for run in runs])
    return EXIT_USER_ERROR if problems else EXIT_OK if state == MET else EXIT_CRASH
