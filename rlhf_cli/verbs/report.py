"""rlhf report RUN | SWEEP ...          one HTML file that needs no network: verdict, curves, Pareto front, completions
side by side, what differs, commands and versions. RUN is a run, a sweep or a folder of runs

--out FILE   where it is written; else report.html in the folder that was named, of several in the one around them
--json       print where it is and what it holds as one object
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, RunError, UserError
from rlhf_cli.runs.found_runs import runs_in

_KILOBYTE = 1000


def run(argv: list[str]) -> int:
    """Write the report of the runs that `argv` names and say where it is; returns the exit code.

    Raises RunError where none is named or none can be read, UserError where the file cannot be written.
    """
    parser = argparse.ArgumentParser(prog="rlhf report", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    try:
        options = parser.parse_args(argv)
    except (argparse.ArgumentError, SystemExit) as error:
        raise UserError(str(error), where="command line", hint="rlhf report --help") from None
    if not options.folders:
        raise RunError(
            "no run was named", expected="runs, sweeps or folders of them", hint="rlhf report runs/quickstart"
        )
    folders = [run for folder in options.folders for run in runs_in(folder)]

    from rlhf_cli.report.page.write_report import default_out, report_on, title_of

    out = options.out or default_out(options.folders)
    if out.is_dir():
        raise UserError(
            "the report is a file", where="--out", got=f"the folder {out}", hint=f"--out {out / 'report.html'}"
        )
    try:
        written = report_on(folders, out, title=title_of(options.folders))
    except OSError as error:
        raise UserError(f"{out} cannot be written", where="--out", got=error.strerror or str(error)) from error
    if options.json:
        print(json.dumps({**asdict(written), "path": str(out)}, indent=2))
        return EXIT_OK
    console = Console(soft_wrap=True, highlight=False)
    shown = os.path.relpath(out) if out.resolve().is_relative_to(Path.cwd()) else str(out)
    holds = [f"{written.runs} run{'s' if written.runs > 1 else ''}"]
    holds += [f"{written.settings} settings"] if written.settings > 1 else []
    size = f"{written.num_bytes / _KILOBYTE:.0f} kB"
    console.print(f"{shown}  ({size}: {', '.join(holds)}, {written.plots} plots)", markup=False)
    for problem in written.left_out:
        console.print(f"left out: {problem}", style="yellow", markup=False)
    return EXIT_OK
