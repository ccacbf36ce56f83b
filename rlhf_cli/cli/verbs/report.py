"""rlhf report RUN | SWEEP ...          one HTML file that needs no network: verdict, settings, curves, findings,
evaluations, answers side by side, and the command of each run. RUN is a run folder, a sweep, a folder of runs, a glob
in quotes, run:NAME, or wandb:entity/project[/group]

--out FILE   write it there; by default to report.html in the folder named, or in the common folder of several
--json       print its path and contents as one object
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import none_named, read_by_words
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, UserError, writing
from rlhf_cli.plan.batches import count

_KILOBYTE = 1000


def run(options: Options) -> int:
    """Write the report of the runs in the typed words, print its path and return the exit code."""
    words = options.words
    if not words:
        raise none_named("rlhf report", "runs, sweeps, folders of them", all_of_it=True)
    runs, problems = read_by_words(words, wanted=None, where="rlhf report")
    if len(words) == 1 and Path(words[0]).expanduser().is_dir():
        folder = Path(words[0]).expanduser()
    else:
        places = [run.folder.path.resolve() for run in runs if run.folder is not None]  # runs of wandb have none
        folder = Path(os.path.commonpath(places)) if places else Path.cwd()
    out = options.path("--out") or folder / "report.html"
    if out.is_dir():
        hint = f"--out {shlex.quote(str(out / 'report.html'))}"
        raise UserError("the report is a file", where="--out", got=f"the folder {out}", hint=hint)

    from rlhf_cli.display.page.page_content import report_on

    with writing("the report", out, "--out FILE.html"):
        written = report_on(runs, problems, out, folder)
    if options.as_json:
        print_json({"path": str(out), **written})
        return EXIT_OK
    console = Screen(soft_wrap=True)
    shown = os.path.relpath(out) if out.resolve().is_relative_to(Path.cwd()) else str(out)
    holds = [count(len(runs), "run")]
    holds += [f"{written['settings']} settings"] if written["settings"] != 1 else []
    size = f"{out.stat().st_size / _KILOBYTE:.0f} kB"
    console.print(f"{shown}  ({size}: {', '.join(holds)}, {written['plots']} plots)", markup=False)
    for problem in written["left_out"]:
        console.print(f"left out: {problem}", style="yellow", markup=False)
    return EXIT_OK
