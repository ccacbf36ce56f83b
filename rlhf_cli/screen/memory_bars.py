"""Draw a run's device memory: one bar for generation and one for training. The two are never added up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rlhf_cli.memory.moments import MemoryPlan, Moment, Phase
from rlhf_cli.runs.disk_space import size

_BAR = 20
_PHASES: tuple[Phase, ...] = ("generation", "training")
_ADVISED_ABOVE = 0.1
"""Fraction of the device. Below it, no advice is given."""
_SHOWN_FROM = 0.01
"""Fraction of the moment's total. Smaller parts are not listed."""


def memory_bars(plan: MemoryPlan) -> RenderableType:
    """Return a heading, one line per phase with the parts of its peak, and the largest part."""
    peak = plan.peak
    if peak is None:
        return Text(f"memory: not estimated ({plan.unknown})", style="dim")
    device = f" ({_size(plan.device_bytes)})" if plan.device_bytes is not None else ""
    holder = "GPU" if plan.device == "GPU" else "process"
    heading = Text(f"memory of each {holder}{device}: the fullest moments, estimated", "dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    scale = plan.device_bytes if plan.device_bytes and plan.device_bytes < 10 * peak.total else peak.total
    for phase in _PHASES:
        moment = plan.fullest(phase)
        if moment is not None:
            table.add_row(phase, _bar(moment.total, scale), _size(moment.total), _Parts(tuple(_parts(moment))))
    return Group(heading, table, *(Text(line, style=style) for line, style in _below(plan, peak)))


def will_not_fit(plan: MemoryPlan) -> str | None:
    """Return a message if the run needs more memory than its device has. Return None if it fits or is unknown."""
    if plan.peak is None or plan.device_bytes is None or plan.peak.total <= plan.device_bytes:
        return None
    return f"more than the {_size(plan.device_bytes)} that the {plan.device} has: it will not fit"


@dataclass(frozen=True)
class _Parts:
    """A comma-separated list that breaks lines only between parts, so `3.7 MB` stays together."""

    parts: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for number, part in enumerate(self.parts):
            piece = part + ("," if number < len(self.parts) - 1 else "")
            if line and len(line) + 1 + len(piece) > options.max_width:
                yield Text(line)
                line = ""
            line += (" " if line else "") + piece
        yield Text(line)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, self.parts), default=0) + 1, len(", ".join(self.parts)))


def _below(plan: MemoryPlan, peak: Moment) -> Iterator[tuple[str, str]]:
    """Yield (line, style): the largest part, how to reduce it, and what was not counted."""
    share = peak.parts[peak.largest] / peak.total
    yield f"most of it: {peak.largest}, {share:.0%} ({peak.what})", "dim"
    is_large = plan.device_bytes is None or peak.total > _ADVISED_ABOVE * plan.device_bytes
    if plan.cheapest is not None and is_large:
        yield f"to lower {plan.cheapest.part}: {' '.join(plan.cheapest.words)}  ({plan.cheapest.why})", ""
    if plan.leaves_out:
        yield f"not counted: {'; '.join(plan.leaves_out)}", "yellow"
    if (too_large := will_not_fit(plan)) is not None:
        yield too_large, "bold red"


def _parts(moment: Moment) -> Iterator[str]:
    by_size = sorted(moment.parts.items(), key=lambda entry: -entry[1])
    for part, num_bytes in by_size:
        if num_bytes >= _SHOWN_FROM * moment.total:
            yield f"{part} {_size(num_bytes)}"


def _bar(num_bytes: int, scale: int) -> Text:
    full = min(_BAR, max(1, round(_BAR * num_bytes / scale)))
    style = "red" if num_bytes > scale else "green" if num_bytes < 0.8 * scale else "yellow"
    return Text.assemble(("█" * full, style), ("░" * (_BAR - full), "dim"))


def _size(num_bytes: int) -> str:
    """Format a size with three digits. An estimate has no more precision."""
    number, unit = size(num_bytes).split()
    return f"{float(number):.3g} {unit}" if float(number) < 1000 else f"{number} {unit}"
