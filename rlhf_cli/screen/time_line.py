"""Summarise in one line where training time went, the largest phases first."""

from __future__ import annotations

from rich.text import Text

from rlhf_cli.runs.metrics_file import Event, series
from rlhf_cli.runs.time_shares import phase_label, time_shares
from rlhf_cli.screen.time_spans import span

_MOST_PHASES = 3
_SHORT_S = 10.0


def time_line(events: list[Event]) -> Text | None:
    """Return `time 4.1 s: generation 41%, forward 18%, 8 more 14%`, or None if no times were logged."""
    names = dict.fromkeys(name for event in events for name in event)
    shares = time_shares(names, lambda name: series(events, name)[1])
    if shares is None:
        return None
    phases = [(phase_label(key), share) for key, share in shares.shares.items() if share > 0]
    more = phases[_MOST_PHASES:]
    named = phases[:_MOST_PHASES] + ([(f"{len(more)} more", sum(share for _, share in more))] if more else [])
    said = ", ".join(f"{label} {share:.0%}" for label, share in named)
    elapsed = f"{shares.elapsed_s:.2g} s" if shares.elapsed_s < _SHORT_S else span(shares.elapsed_s)
    return Text(f"time {elapsed}: {said}", style="dim")
