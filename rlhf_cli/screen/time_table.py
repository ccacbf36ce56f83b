"""Draws where the time of a training went: a line a phase, the longest first."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlhf_cli.runs.metrics_file import Event, series
from rlhf_cli.runs.time_shares import TimeShares, phase_label, time_shares
from rlhf_cli.screen.time_spans import span

_LEAST = 0.02
"""Phases with a smaller share are one line together."""
_BAR = 24
_SHORT_S = 10.0


def time_went(events: list[Event]) -> RenderableType | None:
    """Return a heading and the table, None where nothing was timed."""
    names = dict.fromkeys(name for event in events for name in event)
    shares = time_shares(names, lambda name: series(events, name)[1])
    if shares is None:
        return None
    parts: list[RenderableType] = [
        Text(f"where {_span(shares.elapsed_s)} of training went", style="dim"),
        _table(shares),
    ]
    if shares.slots_per_token is not None:
        said = f"{shares.slots_per_token:.2f} token slots were computed for each real token"
        parts.append(Text(said, style="dim"))
    return Group(*parts)


def _table(shares: TimeShares) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(style="blue", no_wrap=True)
    large = {key: share for key, share in shares.shares.items() if share >= _LEAST}
    longest = max(large.values(), default=1.0)
    for key, share in large.items():
        bar = "█" * max(1, round(_BAR * share / longest))
        table.add_row(phase_label(key), f"{share:.0%}", _span(shares.seconds(key)), bar)
    small = [share for share in shares.shares.values() if 0.0 < share < _LEAST]
    if small:
        table.add_row(
            Text(f"{len(small)} more", style="dim"), f"{sum(small):.0%}", _span(sum(small) * shares.elapsed_s)
        )
    return table


def _span(span_s: float) -> str:
    return f"{span_s:.2g} s" if span_s < _SHORT_S else span(span_s)
