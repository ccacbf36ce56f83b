"""Write texts, numbers, curves, tables, commands and waits to the terminal, without control codes of others.

Tables have one style: no frame, headers that are never cut, numbers on the right. A table that is too wide for the
screen is split into several, one below another.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import IO, TextIO, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.errors import MarkupError
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rlhf_cli.rewards.completion_text import shown_text
from rlhf_cli.runs.run_status import RunState
from rlhf_cli.text.redaction import CONTROL, DrawnOn, OverStream, is_of_a_bar, printable


def one_line(value: object) -> str:
    """Return a text with line breaks and other control characters escaped.

    Of a conversation, use the last message, or all of it from the first call of a tool on.
    """
    if isinstance(value, list):
        calls = [place for place, message in enumerate(value) if message.get("tool_calls")]
        value = " > ".join(shown_text(one) for one in value[calls[0] if calls else -1 :])
    return repr(str(value))[1:-1]


def figure(value: float | None) -> str:
    """Return a number with three decimals, or a dash for None."""
    return "-" if value is None else f"{value:.3f}"


def cut_middle(text: str, most: int) -> str:
    """Shorten a text to at most `most` terminal cells by cutting out its middle."""
    if cell_len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{set_cell_size(text, most - 1 - tail)}…{set_cell_size(text[::-1], tail)[::-1]}"


def cut_end(text: str, most: int) -> str:
    """Shorten a text to at most `most` terminal cells by cutting off its end."""
    return text if cell_len(text) <= most else f"{set_cell_size(text, most - 1)}…"


def sparkline(values: Sequence[float], width: int = 10) -> str:
    """Return a curve of at most `width` characters, scaled from the minimum to the maximum of the values."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [place * len(values) // columns for place in range(columns + 1)]
    means = [fmean(values[start:end]) for start, end in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return BARS[len(BARS) // 2 - 1] * columns
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / (high - low) * len(BARS)))] for value in means)


BARS = "▁▂▃▄▅▆▇█"
_PIPE_WIDTH = 200
_STYLES = frozenset(("/", "bold", "dim", "italic", "red", "green", "yellow", "cyan", "blue", "magenta"))
"""The words allowed in tags of our own markup."""


class Screen(Console):
    """A console that escapes control codes in its input; the codes that rich adds still reach the terminal."""

    @property  # type: ignore[misc]
    def file(self) -> IO[str]:
        """Return the output stream."""
        return cast(IO[str], DrawnOn(cast(TextIO, super().file)))

    def render_str(self, text: str, **options: object) -> Text:
        """Return a Text in which only our own tags are markup and colours; a closing tag without its start is text."""
        options |= {"emoji": False, "highlight": False}
        marked = text if options.get("markup") is False else re.sub(r"(\\*)\[([a-z#/@][^\[]*?)\]", _kept, text)
        try:
            return super().render_str(marked, **options)  # type: ignore[arg-type]
        except MarkupError:
            return super().render_str(text, **{**options, "markup": False})  # type: ignore[arg-type]

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with control codes in its text escaped."""
        if isinstance(renderable, Text) and (found := [*CONTROL.finditer(renderable.plain)]):
            # Escape the codes before the text is fitted into its column.
            edges = [edge for match in found for edge in match.span()]
            spelled = renderable.blank_copy()
            for part in renderable.divide(edges):
                part.plain = printable(part.plain)
                spelled.append_text(part)
            renderable = spelled
        for segment in super().render(renderable, options):
            is_text = not segment.control and not segment.text.isprintable()
            yield Segment(printable(segment.text), segment.style) if is_text else segment


def wide_console(pipe_width: int = _PIPE_WIDTH) -> Screen:
    """Return a console on stdout; in a pipe its width is COLUMNS or `pipe_width`, so that no table is folded at 80."""
    return Screen(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else pipe_width)


def _kept(tag: re.Match[str]) -> str:
    """Return one of our own tags unchanged, and any other escaped."""
    is_escaped, words = len(tag[1]) % 2 == 1, tag[2].split(" ")
    return tag[0] if is_escaped or _STYLES.issuperset(words) else f"\\{tag[0]}"


def span(span_s: float | None) -> str:
    """Return a duration in its one or two largest units: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; '' for None."""
    if span_s is None:
        return ""
    span_s = round(span_s)
    minutes, hours, days = span_s // 60, span_s // 3600, span_s // 86400
    if days:
        return f"{days:.0f} d {hours % 24:.0f} h"
    if hours:
        return f"{hours:.0f} h {minutes % 60:.0f} min"
    return f"{minutes:.0f} min" if minutes else f"{span_s:.0f} s"


def show_commands(console: Console, commands: Mapping[str, str]) -> None:
    """Print one command per line, never broken, so that it can be copied. A comment that does not fit is left out."""
    for command, why in commands.items():
        comment = f"  [dim]# {escape(why)}[/]" if len(command) + len(why) + 6 <= console.width else ""
        console.print(f"  [cyan]{escape(command)}[/]{comment}", soft_wrap=True)


_QUIET_S = 30.0
_BESIDE = 10
"""Columns of the spinner and of the time."""


class BarsOf(OverStream):
    """A text stream that tells `show` how far the bars of libraries are, instead of writing them."""

    def __init__(self, stream: TextIO, show: Callable[[str], None]) -> None:
        super().__init__(stream)
        self._show = show

    def write(self, text: str) -> int:
        """Write a text, unless it is a bar such as `Tokenizing:  40%|###  | 4/10 [00:01<00:02]`."""
        if not is_of_a_bar():
            return self._stream.write(text)
        if found := re.match(r"\r(.*?):? +\d+%\|.*?\| (\S+/\S+)", text):
            self._show(" ".join(found.groups()))
        return len(text)


@contextlib.contextmanager
def spinner(doing: str, *, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Show what is done: a spinner, else a line every half minute. Yields a function that changes what it says.

    It also shows how far the bars of libraries are. A path that does not fit loses its middle, not the file's name.
    """
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.table import Column

    ended, is_terminal = threading.Event(), sys.stdout.isatty()
    screen, is_hidden = Screen(file=sys.stdout), not (shown and is_terminal)

    class Doing(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(cut_middle(task.description, max(1, screen.width - _BESIDE)), "progress.description")

    doing_column = Doing(Column(no_wrap=True, overflow="ellipsis", ratio=1))
    columns = (SpinnerColumn(), TimeElapsedColumn(), doing_column)
    with Progress(*columns, console=screen, transient=True, disable=is_hidden, expand=True) as progress:
        task = progress.add_task(doing, total=None)

        def print_lines() -> None:
            while not ended.wait(_QUIET_S):
                print(f"{progress.tasks[0].description} ...", flush=True)

        printing = threading.Thread(target=print_lines, daemon=True)
        if shown and not is_terminal:
            printing.start()

        def show(doing: str) -> None:
            progress.update(task, description=doing)

        bars = BarsOf(sys.stderr, show) if shown else sys.stderr
        try:
            with contextlib.redirect_stderr(cast(TextIO, bars)):
                yield show
        finally:
            ended.set()
            if printing.ident is not None:  # else its last line stands below what is printed next
                printing.join()


Cell = str | tuple[str, str] | Text
"""The content of a cell, for `Text.assemble`: a plain text, (text, style), or a Text."""
GAP = 2
STATE_STYLE: dict[str, str] = {
    **dict.fromkeys((RunState.RUNNING, RunState.STARTING), "cyan"),
    **dict.fromkeys((RunState.FAILED, RunState.KILLED, RunState.UNREADABLE), "red"),
    RunState.FINISHED: "green",
    RunState.PREEMPTED: "yellow",
    RunState.PRUNED: "dim",
}


def plain_table(
    texts: Sequence[str],
    numbers: Sequence[str] = (),
    after: Sequence[str] = (),
    *,
    rows: Iterable[Sequence[Cell]] = (),
    head: str = "bold",
    gap: int = GAP,
    indent: int = 0,
    widths: Sequence[int] = (),
) -> Table:
    """Return a table whose columns are `texts` (on the left), `numbers` (on the right), then `after` (on the left).

    A column without enough room is folded, header included; the first ones, whose greatest widths are
    `widths`, are cut instead. If all headers are empty, the header row is left out.
    """
    heads = [*texts, *numbers, *after]
    table = Table(box=None, padding=(0, gap, 0, indent), header_style=head, show_header=any(heads))
    for place, name in enumerate(heads):
        is_number = len(texts) <= place < len(texts) + len(numbers)
        table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for place, column in enumerate(table.columns if widths else ()):
        column.no_wrap = place >= len(widths)
        column.max_width = None if column.no_wrap else widths[place]
    for row in rows:
        cells = [Text.assemble(cell) for cell in row]
        for cell in cells[: len(widths)]:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*cells)
    return table


def facts_grid(rows: Iterable[tuple[Cell, Cell]], *, style: str = "bold") -> Table:
    """Return names and their descriptions in two columns; a long text is folded within its column."""
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(Text.assemble(name), Text.assemble(text))
    return grid


Column = tuple[str, Sequence[Cell]]
"""A title and one cell per row."""


def width_of(columns: Iterable[Column]) -> int:
    """Return the width of columns beside one another."""
    widths = [max(cell_len(title), *(Text.assemble(cell).cell_len for cell in cells), 0) for title, cells in columns]
    return sum(widths) + GAP * (len(widths) - 1)


_NUMBER = re.compile(r"([-+]?[\d.]+(e[-+]?\d+)?|-|all)?")


def show_blocks(
    console: Console, heads: Sequence[Column], columns: Iterable[Column], styles: Sequence[str] = ()
) -> None:
    """Print columns as several tables below one another if they do not fit the width; each repeats the `heads`.

    All but heads of texts are on the right. `styles` has one style per row; without it rows are plain.
    """
    blocks: list[list[Column]] = [[]]
    for column in columns:
        if blocks[-1] and width_of([*heads, *blocks[-1], column]) > console.width:
            blocks.append([])
        blocks[-1].append(column)
    for number, block in enumerate(blocks):
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for place, (title, cells) in enumerate([*heads, *block]):
            is_number = all(_NUMBER.fullmatch(Text.assemble(cell).plain) for cell in cells)
            justify: JustifyMethod = "right" if place >= len(heads) or is_number else "left"
            table.add_column(Text(title), justify=justify, overflow="fold")
        rows = zip(*(cells for _, cells in (*heads, *block)), strict=True)
        for row, style in itertools.zip_longest(rows, styles):
            table.add_row(*map(Text.assemble, row), style=style)
        console.print(*([""] if number else []), table, sep="\n")
