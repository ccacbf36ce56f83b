"""Mirror a run in trackio: locally, or as set by TRACKIO_SPACE_ID or TRACKIO_SERVER_URL."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence

from rlhf_cli.runs.tracking.tracker import Ending, Row, TrackedRun


class TrackioTracker:
    """A trackio run in the project `track.project`. It is named by the full label, as trackio resumes by name."""

    def start(self, run: TrackedRun) -> int:
        """Start a run, or resume the one with its name."""
        import trackio

        with _quiet():
            api_runs = _names(run.project)
            self._run = trackio.init(
                project=run.project,
                name=run.label,
                group=run.group,
                config={**run.config, "tags": list(run.tags), "notes": run.notes, "job_type": run.job_type},
                resume="allow",
                embed=False,
            )
        self._last = run.goes_on_from
        return run.recorded_to if run.label in api_runs else run.goes_on_from

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._last = step
        self._run.log(dict(metrics), step=step)

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Log rows as a table of a step."""
        import trackio

        columns = list(rows[0])
        data = [[row[column] for column in columns] for row in rows]
        self._run.log({name: trackio.Table(columns=columns, data=data)}, step=step)

    def finish(self, summary: Mapping[str, float], ending: Ending) -> None:
        """Log the summary at the last step, because trackio has no summary, and close the run."""
        import trackio

        with _quiet():
            self._run.log(dict(summary), step=self._last)
            trackio.finish()


def _names(project: str) -> list[str]:
    """Return the names of a project's existing runs on this machine."""
    from trackio.sqlite_storage import SQLiteStorage

    names: list[str] = list(SQLiteStorage.get_runs(project))
    return names


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress trackio's own output."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
