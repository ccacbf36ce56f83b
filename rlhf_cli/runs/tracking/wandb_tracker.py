"""Log a run to wandb: online, or in files for a later upload."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from rlhf_cli.runs.tracking.tracked_run import STEP, TrackedRun
from rlhf_cli.runs.tracking.tracking_plan import Ending
from rlhf_cli.runs.tracking.wandb_files import mark_sent, records_of
from rlhf_cli.text.redaction import redacted

if TYPE_CHECKING:
    import wandb

_INIT_TIMEOUT_S = 30.0
_FINISH_TIMEOUT_S = 60.0
"""Seconds to wait at the end of a run for a slow server; unsent data stays in the run folder."""


class WandbTracker:
    """A wandb run that is open during training, with a nested config and metrics over `train/global_step`."""

    def __init__(self, mode: Literal["online", "offline"]) -> None:
        self._mode: Literal["online", "offline"] = mode

    def start(self, run: TrackedRun) -> int:
        """Start the run, or resume the one with the same id, and return the last step that wandb has.

        Records offline if the server no longer answers.
        """
        import wandb

        # Otherwise wandb leaves a copy of every table in the user's home folder.
        os.environ.setdefault("WANDB_DATA_DIR", str(run.path / "wandb"))
        # What an earlier attempt logged stays as it is: wandb's server drops new rows for steps that it has.
        recorded = run.recorded_to if records_of(run.path) else 0
        try:
            self._run = self._open(run)
        except wandb.errors.Error:
            # The server answered a minute ago and no longer does. The run matters more than its mirror.
            self._mode = "offline"
            self._run = self._open(run)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP, step_sync=True)
        on_server = self._run.step - 1 if self._run.resumed else 0
        return max(recorded, on_server, run.goes_on_from)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics into wandb's row of this step."""
        self._log({**metrics, STEP: step}, step)

    def table(self, name: str, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Log a table under its name: wandb keeps one per step, and shows all with `history.concat`."""
        import wandb

        table = wandb.Table(columns=[*rows[0]], data=[list(row.values()) for row in rows])
        self._log({name: table, STEP: step}, step)

    def finish(self, summary: Mapping[str, float], ending: Ending) -> None:
        """Write the summary and close the run, marked as failed or preempted if it was."""
        self._run.summary.update(dict(summary))
        if ending == "preempted":
            self._run.mark_preempting()
        folder = self._run.settings.sync_dir
        self._run.finish(exit_code=0 if ending == "finished" else 1)
        if self._mode == "online":
            mark_sent(folder)

    def _log(self, values: Mapping[str, object], step: int) -> None:
        # A reward that logs to wandb itself increments wandb's step; wandb would drop rows of lower steps.
        self._run.log(dict(values), step=step if step >= self._run.step else None)

    def _open(self, run: TrackedRun) -> wandb.Run:
        """Return an open wandb run, resumed if the server knows its id. Raises wandb's errors."""
        import wandb

        settings = wandb.Settings(
            silent=True,
            console="off",
            init_timeout=_INIT_TIMEOUT_S,
            finish_timeout=_FINISH_TIMEOUT_S,
            finish_timeout_raises=True,
        )
        with _redacted_command_line():
            return wandb.init(
                project=run.project,
                entity=run.entity,
                name=run.name,
                group=run.group,
                job_type=run.job_type,
                tags=list(run.tags),
                notes=run.notes,
                config=dict(run.config),
                dir=str(run.path),
                id=run.run_id,
                resume="allow",
                mode=self._mode,
                settings=settings,
            )


@contextlib.contextmanager
def _redacted_command_line() -> Iterator[None]:
    """Hide secrets in the command line from wandb, which stores it."""
    typed = sys.argv
    sys.argv = [redacted(word) for word in typed]
    try:
        yield
    finally:
        sys.argv = typed
