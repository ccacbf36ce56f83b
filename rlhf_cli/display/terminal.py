"""Write cells, blocks of columns, spans of time and commands at the width of the terminal."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TextIO, cast

from rich.console import Console, ConsoleOptions, HighlighterType, JustifyMethod, OverflowMethod, RenderableType
from rich.errors import MarkupError
from rich.markup import escape
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from rlhf_cli.text.terminal_output import DrawnOn, control_codes, printable


def one_line(value: object) -> str:
    """Return a text with line breaks and other control characters escaped. For a conversation, use the last message."""
    if isinstance(value, list):
        value = value[-1]["content"] if value else ""
    return repr(str(value))[1:-1]


def figure(value: float | None) -> str:
    """Return a number with three decimals, or a dash for None."""
    return "-" if value is None else f"{value:.3f}"


def no_total(reason: str) -> Text:
    """Return the line below a table whose rows have no total, with the reason."""
    return Text(f"no row has a total alone: {reason}", style="yellow")


def cut_middle(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters by cutting out its middle."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


_NUMBER, _GAP = 7, 2
"""Width of a number up to `-12.345`, and of the gap after it, in characters."""


def column_blocks(names: Sequence[str], room: int) -> list[list[str]]:
    """Return the names in order, split into blocks whose number columns fit side by side in `room` characters.

    A name that is wider than `room` gets a block of its own.
    """
    blocks: list[list[str]] = []
    left = 0
    for name in names:
        width = blocks_width([name])
        if not blocks or width > left:
            blocks.append([])
            left = room
        blocks[-1].append(name)
        left -= width
    return blocks


def blocks_width(names: Sequence[str]) -> int:
    """Return the total width of number columns with these names, in characters, including the gap after each."""
    return sum(max(len(name), _NUMBER) + _GAP for name in names)


_PIPE_WIDTH = 200
_TAG = re.compile(r"(\\*)\[([a-z#/@][^\[]*?)\]")
_STYLES = frozenset(("/", "bold", "dim", "italic", "red", "green", "yellow", "cyan", "blue", "magenta"))
"""The words allowed in tags of our own markup."""


class Screen(Console):
    """A console that escapes control codes in its input; the codes that rich adds still reach the terminal."""

    @property
    def file(self) -> IO[str]:
        """Return the output stream."""
        return cast(IO[str], DrawnOn(cast(TextIO, super().file)))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        """Return a Text in which only our own tags are markup.

        Any other tag, or a closing tag without its start, is text.
        """
        as_rich = functools.partial(
            super().render_str,
            style=style,
            justify=justify,
            overflow=overflow,
            emoji=False,
            highlight=highlight,
            highlighter=highlighter,
        )
        try:
            return as_rich(text if markup is False else _TAG.sub(_kept, text), markup=markup)
        except MarkupError:
            return as_rich(text, markup=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with control codes in its text escaped."""
        for segment in super().render(_spelled(renderable), options):
            is_text = not segment.control and not segment.text.isprintable()
            yield Segment(printable(segment.text), segment.style) if is_text else segment


def wide_console(pipe_width: int = _PIPE_WIDTH) -> Screen:
    """Return a console on stdout. If stdout is not a terminal, its width is COLUMNS or else `pipe_width`.

    A table in a pipe should not be folded at 80 characters.
    """
    return Screen(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else pipe_width)


def _spelled(renderable: RenderableType) -> RenderableType:
    """Escape the control codes of a Text before it is fitted into its column. Return anything else unchanged."""
    if not isinstance(renderable, Text) or not (codes := control_codes(renderable.plain)):
        return renderable
    spelled = renderable.blank_copy()
    for part in renderable.divide([edge for start in codes for edge in (start, start + 1)]):
        part.plain = printable(part.plain)
        spelled.append_text(part)
    return spelled


def _kept(tag: re.Match[str]) -> str:
    """Return a rich markup tag unchanged if it is one of ours, else escape it."""
    is_escaped, words = len(tag[1]) % 2 == 1, tag[2].split(" ")
    return tag[0] if is_escaped or _STYLES.issuperset(words) else f"\\{tag[0]}"


_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def span(span_s: float | None) -> str:
    """Return a duration in its one or two largest units: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; '' for None."""
    if span_s is None:
        return ""
    if span_s < _MINUTE_S:
        return f"{span_s:.0f} s"
    if span_s < _HOUR_S:
        return f"{span_s // _MINUTE_S:.0f} min"
    if span_s < _DAY_S:
        return f"{span_s // _HOUR_S:.0f} h {span_s % _HOUR_S // _MINUTE_S:.0f} min"
    return f"{span_s // _DAY_S:.0f} d {span_s % _DAY_S // _HOUR_S:.0f} h"


def show_commands(console: Console, commands: Mapping[str, str]) -> None:
    """Print one command per line, never broken, so that it can be copied.

    A comment that does not fit is left out.
    """
    for command, why in commands.items():
        comment = f"  [dim]# {escape(why)}[/]" if len(command) + len(why) + 6 <= console.width else ""
        console.print(f"  [cyan]{escape(command)}[/]{comment}", soft_wrap=True, highlight=False)
