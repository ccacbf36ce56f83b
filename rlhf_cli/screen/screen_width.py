"""Create the consoles for all output: untrusted text cannot control the terminal, and output to a pipe is wide."""

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
