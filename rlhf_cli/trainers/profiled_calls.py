"""Collect the times of TRL's profiling, which TRL itself would log to trackers once per call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trl.extras.profiling import ProfilingContext


class ProfiledCalls:
    """Seconds by TRL's own name, `profiling/Time taken: GRPOTrainer.compute_loss`, summed over calls."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Add the seconds that one call took."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def taken(self) -> dict[str, float]:
        """Return the sums since the last call."""
        taken, self._seconds = self._seconds, {}
        return taken


@contextlib.contextmanager
def profiled_calls(*, wanted: bool = True) -> Iterator[ProfiledCalls]:
    """Collect all profiled calls of TRL in this process in this context, in addition to TRL's own logging.

    Do not collect any if not `wanted`.
    """
    calls = ProfiledCalls()
    if not wanted:
        yield calls
        return
    log_metrics = ProfilingContext._log_metrics

    def collect(self: ProfilingContext, duration: float) -> None:
        calls.add(f"{self.metric_prefix}: {self.name}", duration)
        log_metrics(self, duration)

    ProfilingContext._log_metrics = collect  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        ProfilingContext._log_metrics = log_metrics  # type: ignore[method-assign]
