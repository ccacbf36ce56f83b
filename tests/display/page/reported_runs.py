"""Writes the run folders that the page's tests read: two settings by two seeds with completions, and one that failed.

Every text that comes from outside (names, prompts, completions, values, reasons, commands) can be replaced by a hostile
one, so that a test sees what the page makes of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.display.page.page_content import report_on
from rlhf_cli.runs.run_folder import RunFolder, runs_in
from tests.support.logged_runs import configured, write_run

STEPS = 12
ENDS = {0.0: (0.80, 0.82), 0.5: (0.40, 0.44)}
"""Maps the weight of brevity -> what its seeds reach on `correct`; `brevity` goes the other way."""


def write_reported(folder: Path, *, text: str = "4", prompt: str = "2+2=", said: str = "plain") -> list[RunFolder]:
    """Write the runs into a sweep's folder. `text` stands in completions, `said` in values, reasons and commands."""
    runs = []
    for weight, ends in ENDS.items():
        for seed, end in enumerate(ends):
            curves = {
                "rewards/correct/mean": [end * step / STEPS for step in range(1, STEPS + 1)],
                "rewards/brevity/mean": [(1 - end) * step / STEPS for step in range(1, STEPS + 1)],
                "rewards/correct/advantage_share": [0.5 + 0.01 * step for step in range(STEPS)],
                "loss": [1 / step for step in range(1, STEPS + 1)],
                "kl": [0.01 * weight * step for step in range(STEPS)],
                "completions/mean_length": [9.0] * STEPS,
            }
            provenance = {"command": f"rlhf train {said}", "versions": {"trl": said}, "device": "cpu"}
            run = write_run(
                folder / f"weight={weight:g},seed={seed}",
                configured(weight, seed, model={"name": said}),
                curves,
                provenance=provenance,  # type: ignore[arg-type]
            )
            for step in (1, 6, STEPS):
                write_completions(run, step, text=text, prompt=f"{prompt}{step}")
            runs.append(run)
    failed = write_run(
        folder / "weight=0.5,seed=2",
        configured(0.5, 2, model={"name": said}),
        {"loss": [1.0] * 3},
        state="failed",
        reason=f"rank 1 died: {said}",
    )
    return [*runs, failed]


def write_completions(run: RunFolder, step: int, *, text: str, prompt: str) -> None:
    """Write a table of two answers to one prompt: one good, one (first at step 1) whose `brevity` is closed."""
    answers = [f"{text} good", f"{text} bad"]
    table: dict[str, list[Any]] = {
        "step": [step] * 2,
        "prompt": [prompt] * 2,
        "completion": answers,
        "correct": [1.0, 0.0],
        "brevity": [0.5, None],
        "brevity.effective": [0.5, 0.0],
        "brevity.weighted": [0.25, 0.0],
        "brevity.closed_by": [None, "correct"],
        "correct.effective": [1.0, 0.0],
        "correct.weighted": [1.0, 0.0],
        "total": [1.25, 0.0],
        "advantage": [1.0, -1.0],
    }
    if step == 1:
        table = {name: values[::-1] for name, values in table.items()}
    folder = run.path / "completions"
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(table), folder / f"completions_{step:05d}.parquet")


def write_report(folder: Path, out: Path) -> Path:
    """Write the report of the runs in a folder to `out`, and return its path."""
    report_on(*read_runs(runs_in(folder)), out, folder)
    return out
