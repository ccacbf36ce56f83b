"""rlhf why RUN | SWEEP ...             diagnose runs from their logs: findings, worst first, each with its evidence and
what to type instead; then passed checks, and checks that were impossible. For several runs, one line each. A run may
still be running, or have failed: that comes first. run:NAME is the newest finished run of an experiment.
docs/how-to/diagnosis.md describes every finding, and how often it is wrong

  --json   an object; for several runs a list of them
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from textwrap import indent

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rlhf_cli.analysis.diagnosis.run_diagnosis import RunDiagnosis, diagnose, diagnose_readable
from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import folders_of, none_named
from rlhf_cli.display.run_tables import show_edited
from rlhf_cli.display.terminal import Cell, facts_grid, plain_table, sparkline
from rlhf_cli.runs.run_status import FINISHED, describe_state

_STYLES = {"serious": "bold red", "warning": "yellow", "note": "cyan"}
_WIDTH = 24
_NARROW = 100
"""On a terminal with fewer columns, a curve gets its own line."""


def run(options: Options) -> int:
    """Print a diagnosis of the named runs and return the exit code, 0 with any findings."""
    words = options.words
    if not words:
        raise none_named("rlhf why", "a run folder, or a sweep's")
    folders = list(dict.fromkeys(folder for word in words for folder in folders_of(word, where="rlhf why")))
    if len(folders) == 1:
        diagnosis = diagnose(folders[0])
        return print_result(options, diagnosis.as_json, lambda console: _show_run(console, diagnosis))
    runs = [diagnose_readable(folder) for folder in folders]
    return print_result(options, lambda: [run.as_json() for run in runs], lambda console: _show_worst(console, runs))


def _show_run(console: Console, run: RunDiagnosis) -> None:
    """Print how a run ended, its findings (worst first), and which checks passed or were not possible."""
    console.print(Text.assemble((run.folder.shown, "bold"), f": {run.ending}, {run.num_events} log events"))
    if run.status.reason and describe_state(run.status.state, run.status.reason) == run.status.state:
        reason = Text(indent(run.status.reason.rstrip(), "  "), "" if run.status.state == FINISHED else "red")
        console.print(reason, soft_wrap=True)  # the reason may hold a command, so keep it on one line for copying
    show_edited(console, [run.folder])
    for name, why in run.slow_paths.items():
        console.print(Text(f"slower: {name} is off: {why}", "dim"))
    for finding in run.diagnosis.findings:
        console.print()
        rows: list[tuple[Cell, Cell]] = [((f"{finding.severity:7}", _STYLES[finding.severity]), (finding.what, "bold"))]
        for evidence in finding.evidence:
            curve = sparkline(evidence.values, _WIDTH)
            gap = "\n" if console.width < _NARROW and curve else "  " if curve else ""
            rows.append(("", Text.assemble((evidence.metric, "default"), "  ", evidence.says, gap, (curve, "blue"))))
        for number, change in enumerate(finding.changes):
            line = Text.assemble((change.words, "cyan"), (f"  # {change.reason}", "dim"))
            rows.append((("try" if number == 0 else "or", "dim"), line))
        console.print(facts_grid([*rows, (("kind", "dim"), (finding.kind, "dim"))], style=""))
    findings, unseen = run.diagnosis.findings, [(check.kind, check.why) for check in run.diagnosis.unseen]
    if findings:
        console.print(Text("warn.KIND=off turns off the warnings of a kind", "dim"))
    console.print()
    if not findings and not run.num_events:
        console.print(Text("it cannot be judged before it has logged a step", "yellow"))
        return
    is_unclear = not findings and not run.is_judged
    if is_unclear:
        _show_checks(console, Text("the log does not show whether the run learns", "bold yellow"), unseen)
        console.print(Text("the other checks found no problem", "dim"))
    elif not findings:
        console.print(Text("no problems found", "green"))
    passed = [(check.kind, check.says) for check in run.diagnosis.fine]
    _show_checks(console, Text("checks that passed", "dim"), passed)
    if not is_unclear:
        _show_checks(console, Text("checks that were not possible", "dim"), unseen)


def _show_checks(console: Console, title: Text, rows: Sequence[tuple[str, str]]) -> None:
    if rows:
        console.print(title)
        table = facts_grid([(kind, (says, "dim")) for kind, says in rows], style="dim")
        console.print(Padding(table, (0, 0, 0, 2)))


def _show_worst(console: Console, runs: Sequence[RunDiagnosis]) -> None:
    parent = os.path.commonpath([run.folder.path.parent for run in runs])
    rows = [(os.path.relpath(run.folder.path, parent), run.problem or run.ending, _worst(run)) for run in runs]
    console.print(plain_table(["run", "", "worst finding"], rows=rows))
    show_edited(console, [run.folder for run in runs])
    console.print(Text("rlhf why RUN shows all findings of a run", "dim"))


def _worst(run: RunDiagnosis) -> Text:
    if run.problem is not None:
        return Text("-", "dim")
    if not run.diagnosis.findings:
        if run.num_events and not run.is_judged:
            return Text("none, but the log does not show whether it learns", "yellow")
        return Text("none", "green") if run.num_events else Text("no log events", "dim")
    worst, *others = run.diagnosis.findings
    more = (f"  and {len(others)} more", "dim") if others else ("", "")
    return Text.assemble((f"{worst.severity}: ", _STYLES[worst.severity]), worst.what, more)
