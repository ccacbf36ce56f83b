"""Looks at the log of a run that trains, now and then, and says what is new."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rlhf_cli.diagnosis.finding import Finding
from rlhf_cli.diagnosis.logged import Log
from rlhf_cli.diagnosis.look import look
from rlhf_cli.diagnosis.run_setup import RunSetup
from rlhf_cli.diagnosis.sustained import ENOUGH

_EVERY = 10
_LONGER = 1.1
"""A look comes ten log events after the last, later when the log is longer by a tenth: all looks together cost in
proportion to the length of the log, and nothing is told later than after a tenth more of it."""
_NOT_SAID = "note"


class Watch:
    """A log that grows, and the findings that have been said of it, each once.

    `kinds` are those to look for; `earlier` are the log events before a run went on: what they hold has been said.
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
        self._said: set[tuple[str, str]] = set()
        self._next = ENOUGH
        if self._log.num_events >= ENOUGH:
            self.look()

    def take(self, step: int, event: Mapping[str, object]) -> list[Finding]:
        """Add a log event; return what is found for the first time, nothing where it is not time to look."""
        self._log.take(step, event)
        return self.look() if self._kinds and self._log.num_events >= self._next else []

    def look(self) -> list[Finding]:
        """Return what is found for the first time, the worst first; a note is for `rlhf why` alone."""
        self._next = max(self._log.num_events + _EVERY, round(_LONGER * self._log.num_events))
        findings = look(self._log, self._setup, self._kinds).findings
        new = [one for one in findings if one.severity != _NOT_SAID and (one.kind, one.subject) not in self._said]
        self._said.update((one.kind, one.subject) for one in new)
        return new
