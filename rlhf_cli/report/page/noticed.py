"""Collect the findings of `rlhf why` over all runs; a finding that several runs share appears once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.comparison.logged_run import LoggedRun
from rlhf_cli.diagnosis.finding import SEVERITIES, Finding
from rlhf_cli.diagnosis.run_diagnosis import diagnose_readable


@dataclass(frozen=True)
class Noticed:
    """A finding. `says` is its headline in the first of the `runs` that have it; `change` is what to type, or ''."""

    severity: str
    says: str
    change: str
    reason: str
    runs: list[int]


def noticed(runs: Sequence[LoggedRun]) -> list[Noticed]:
    """Return the findings of all runs, the most severe first; among equals, those of the most runs first."""
    found: dict[tuple[str, str, str], tuple[Finding, list[int]]] = {}
    for place, run in enumerate(runs):
        for finding in diagnose_readable(run.folder).diagnosis.findings if run.folder is not None else ():
            key = (finding.severity, finding.kind, finding.subject)
            found.setdefault(key, (finding, []))[1].append(place)
    ordered = sorted(found.values(), key=lambda one: (SEVERITIES.index(one[0].severity), -len(one[1])))
    return [
        Noticed(
            finding.severity,
            finding.what,
            finding.changes[0].words if finding.changes else "",
            finding.changes[0].reason if finding.changes else "",
            places,
        )
        for finding, places in ordered
    ]
