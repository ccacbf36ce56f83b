"""Look at the log while a run trains."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rlhf_cli.analysis.diagnosis.finding import Finding, RunSetup
from rlhf_cli.analysis.diagnosis.logged import ENOUGH, Log
from rlhf_cli.analysis.diagnosis.run_diagnosis import look

_EVERY = 10
_LONGER = 1.1
"""Check again after ten log events, later after the log grew by a tenth. So the total cost is proportional to the
length of the log, and a report is delayed by a tenth of the log at most.
"""
_SILENT = "note"


class Watch:
    """A growing log, and the findings already reported; each is reported once.

    `kinds` are the kinds to check; `earlier` are the log events before a resume, whose findings count as reported.
    """

    def __init__(
        self,
        setup: RunSetup,
        kinds: Collection[str],
        max_steps: int | None = None,
        earlier: Iterable[Mapping[str, object]] = (),
    ) -> None:
        self._setup = setup
        self._kinds = kinds
        self._log = Log.of(earlier, max_steps)
        self._reported: set[tuple[str, str]] = set()
        self._next = ENOUGH
        if self._log.num_events >= ENOUGH:
            self.look()

    def take(self, step: int, event: Mapping[str, object]) -> list[Finding]:
        """Add a log event; return new findings, or an empty list if no check is due."""
        self._log.take(step, event)
        return self.look() if self._kinds and self._log.num_events >= self._next else []

    def look(self) -> list[Finding]:
        """Return new findings, worst first; notes only appear in `rlhf why`."""
        self._next = max(self._log.num_events + _EVERY, round(_LONGER * self._log.num_events))
        findings = look(self._log, self._setup, self._kinds).findings
        new = [one for one in findings if one.severity != _SILENT and (one.kind, one.subject) not in self._reported]
        self._reported.update((one.kind, one.subject) for one in new)
        return new
