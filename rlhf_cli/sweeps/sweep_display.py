"""Show the progress of a sweep: a live table at a terminal, lines elsewhere."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from rlhf_cli.errors import in_one_line
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.metrics_file import start_and_end
from rlhf_cli.runs.run_status import FAILED, FINISHED, KILLED, PREEMPTED, RUNNING, Status, told_state
from rlhf_cli.screen.start_panel import show_start
from rlhf_cli.screen.sweep_table import PRUNED, STARTING, WAITING, SweepRows, sweep_table
from rlhf_cli.screen.time_spans import span
from rlhf_cli.suggest import nearest
from rlhf_cli.sweeps.job_watch import JobWatch

_STYLE = {FINISHED: "green", PRUNED: "dim", FAILED: "red", KILLED: "red", PREEMPTED: "yellow"}
_REDRAW_EVERY_S = 0.5


class SweepDisplay:
    """Shows a sweep's jobs as they start and end. It is a context manager; leaving it removes the table.

    `expected_s` is the expected time of one job from earlier runs, or None. `num_to_come` is the number of jobs that
    are not created yet.
    """

    num_to_come: int = 0

    def __init__(
        self,
        console: Console,
        watches: Sequence[JobWatch],
        *,
        at_once: int,
        verbose: bool,
        expected_s: float | None = None,
    ) -> None:
        self._console = console
        self._watches = watches
        self._at_once = at_once
        self._verbose = verbose
        self._expected_s = expected_s
        self._began_at = time.monotonic()
        self._drawn_at = float("-inf")
        self._has_named_metrics = False
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def __enter__(self) -> SweepDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def look(self) -> None:
        """Redraw the table if there is one and it is due."""
        if not self._console.is_terminal or time.monotonic() < self._drawn_at + _REDRAW_EVERY_S:
            return
        for watch in self._running():
            watch.look()
        self._live.update(
            sweep_table(self.rows(), height=self._console.height, width=self._console.width), refresh=True
        )
        self._drawn_at = time.monotonic()

    def began(self, watch: JobWatch) -> None:
        """Print that a job starts."""
        job = watch.job
        if self._verbose:
            show_start(self._console, job.experiment, job.plan, title=job.name, folder=job.folder.shown)
        elif not self._console.is_terminal:
            begun = sum(one.began_at is not None for one in self._watches)
            again = " again" if job.resume else ""
            self._say(f"[{begun}/{len(self._watches) + self.num_to_come}] {job.name} begins{again}")

    def ended(self, watch: JobWatch, status: Status) -> None:
        """Print how a job ended; in verbose mode also its results. A failed job always prints its reason."""
        if self._verbose and status.state == FINISHED:
            from rlhf_cli.screen.run_end import show_end  # this import loads the plotting library

            self._say(f"{watch.job.name}:", "bold")
            show_end(self._console, watch.job.folder)
        ended = sum(one.ended_at is not None for one in self._watches)
        of = len(self._watches) + self.num_to_come
        row = watch.row()
        span_of_values = start_and_end(list(row.values))
        value = f", {watch.shown_metric} {span_of_values[1]:.3f}" if span_of_values is not None else ""
        took = f" in {span(watch.took_s)}" if status.state == FINISHED else f" at step {status.step}"
        told = told_state(status.state, status.reason)
        reason = in_one_line(status.reason or "")
        why = f": {reason}" if reason and status.state != FINISHED and told == status.state else ""
        if self._console.is_terminal and status.state == FINISHED:
            return
        left = self.rows().left_s
        to_come = f" (about {span(left)} left)" if left and status.state == FINISHED else ""
        line = f"[{ended}/{of}] {watch.job.name} {told}{took}{value}{to_come}{why}"
        self._say(line, style=_STYLE.get(status.state))
        if status.state in (FAILED, KILLED):
            shown = shlex.quote(watch.job.folder.shown)
            self._say(f"  rlhf why {shown}  # its last words; {watch.job.folder.console.name} there is what it printed")

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._say(line, style="yellow")

    def name_metrics(self, watch: JobWatch) -> None:
        """When a job has ended without logging the watched metric, print the closest logged name, once."""
        metric = watch.metric
        if metric is None or self._has_named_metrics or metric in watch.logged() or not watch.logged():
            return
        self._has_named_metrics = True
        close = nearest(metric, sorted(watch.logged()))
        hint = f"; try --watch {close}" if close else ""
        self._say(
            f"no run logs {metric!r}{hint}: `tail -1 {watch.job.folder.shown}/metrics.jsonl` lists them", "yellow"
        )

    def rows(self) -> SweepRows:
        """Return the current state of all jobs and the estimated remaining time."""
        metrics = [watch.shown_metric for watch in self._watches if watch.began_at is not None]
        return SweepRows(
            [watch.row() for watch in self._watches],
            metric=metrics[0] if metrics else "",
            left_s=self._left_s(),
            elapsed_s=time.monotonic() - self._began_at,
            num_to_come=self.num_to_come,
        )

    def _left_s(self) -> float | None:
        """Return the estimated seconds until the last job ends, or None if the time of a job is unknown.

        This is the remaining time of all jobs divided by the number of places. The times of finished jobs are
        preferred.
        """
        took = [watch.took_s for watch in self._watches if watch.took_s is not None and watch.state == FINISHED]
        will_take = [watch.will_take_s for watch in self._running() if watch.will_take_s is not None]
        known_s = took or will_take
        one_s = sum(known_s) / len(known_s) if known_s else self._expected_s
        lefts = [left if (left := watch.left_s()) is not None else one_s for watch in self._running()]
        lefts += [one_s for watch in self._watches if watch.state == WAITING] + [one_s] * self.num_to_come
        known = [left for left in lefts if left is not None]
        if len(known) < len(lefts):
            return None
        return max(sum(known) / self._at_once, max(known, default=0.0))

    def _running(self) -> list[JobWatch]:
        return [watch for watch in self._watches if watch.state in (STARTING, RUNNING)]

    def _say(self, line: str, style: str | None = None) -> None:
        self._console.print(redacted(line), style=style, markup=False, highlight=False, soft_wrap=True)
