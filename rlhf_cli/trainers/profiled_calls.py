"""Collects what TRL's profiling measures, which TRL itself would log as a row of a tracker for every call."""

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
        """Return the sums since this was last called."""
        taken, self._seconds = self._seconds, {}
        return taken


@contextlib.contextmanager
def profiled_calls(*, wanted: bool = True) -> Iterator[ProfiledCalls]:
    """Open a context in which every profiled call of TRL's in this process is collected, besides what TRL does.

    Where it is not `wanted` nothing is.
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
