"""Mirror a run in TensorBoard files in the run folder: `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rlhf_cli.runs.tracking.tracker import Ending, Row, TrackedRun, flat

FOLDER = "tensorboard"
_MOST_ROWS = 20


class TensorBoardTracker:
    """Writes scalars by step, the configuration as text and hyperparameters, and tables as text of 20 rows."""

    def start(self, run: TrackedRun) -> int:
        """Start an event file; for a resumed run, TensorBoard drops events after the checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        purge = run.goes_on_from + 1 if run.recorded_to > run.goes_on_from else None
        self._writer = SummaryWriter(str(run.path / FOLDER), purge_step=purge)
        self._config = {name: _parameter(value) for name, value in flat(run.config).items()}
        if run.goes_on_from == 0:
            self._writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2)}\n```")
            if run.notes:
                self._writer.add_text("notes", run.notes)
        return run.goes_on_from

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Write the first rows as a Markdown table."""
        lines: list[list[object]] = [
            [*rows[0]],
            ["---"] * len(rows[0]),
            *([*row.values()] for row in rows[:_MOST_ROWS]),
        ]
        self._writer.add_text(name, "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines), step)

    def finish(self, summary: Mapping[str, float], ending: Ending) -> None:
        """Write configuration and summary for the hyperparameter tab, and close the file."""
        from torch.utils.tensorboard.summary import hparams

        for written in hparams(self._config, dict(summary)):
            self._writer._get_file_writer().add_summary(written)
        for name, value in summary.items():
            self._writer.add_scalar(name, value)
        self._writer.add_text("ending", ending)
        self._writer.close()


def _parameter(value: object) -> bool | int | float | str:
    """Return a value in a type that the hyperparameter tab accepts: lists and None become JSON."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", " ⏎ ")
