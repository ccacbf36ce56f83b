"""Makes the consoles of all screens: text that is not ours cannot control the terminal, and a pipe is wide."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, TextIO, cast

from rich.console import Console, ConsoleOptions, HighlighterType, JustifyMethod, OverflowMethod, RenderableType
from rich.errors import MarkupError
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from rlhf_cli.terminal_output import DrawnOn, control_codes, printable

_PIPE_WIDTH = 200
_TAG = re.compile(r"(\\*)\[([a-z#/@][^\[]*?)\]")
_STYLES = frozenset(("/", "bold", "dim", "italic", "red", "green", "yellow", "cyan", "blue", "magenta"))
"""The words of the tags that our own markup has."""


class Screen(Console):
    """A console that spells out control codes in what it is given, and whose own codes reach the terminal."""

    @property
    def file(self) -> IO[str]:
        """Return the stream that is written to."""
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
        """Return a Text for a string in which our own tags count; any other tag, or one without its start, is text."""
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
        """Yield the segments of something, with control codes in its text spelled out."""
        for segment in super().render(_spelled(renderable), options):
            is_text = not segment.control and not segment.text.isprintable()
            yield Segment(printable(segment.text), segment.style) if is_text else segment


def wide_console(pipe_width: int = _PIPE_WIDTH) -> Screen:
    """Return a console on stdout; COLUMNS says how wide it is where it is no terminal, else `pipe_width`.

    Nobody sees a table in a pipe that is folded at 80.
    """
    return Screen(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else pipe_width)


def _spelled(renderable: RenderableType) -> RenderableType:
    """Return a Text with its control codes spelled out, before it is fitted into its column; all else as it is."""
    if not isinstance(renderable, Text) or not (codes := control_codes(renderable.plain)):
        return renderable
    spelled = renderable.blank_copy()
    for part in renderable.divide([edge for start in codes for edge in (start, start + 1)]):
        part.plain = printable(part.plain)
        spelled.append_text(part)
    return spelled


def _kept(tag: re.Match[str]) -> str:
    """Return a tag of rich's markup as it is where it is ours, else escaped."""
    is_escaped, words = len(tag[1]) % 2 == 1, tag[2].split(" ")
    return tag[0] if is_escaped or _STYLES.issuperset(words) else f"\\{tag[0]}"
