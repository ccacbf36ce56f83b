"""Format table cells: a prompt or completion on one line, a number, or why a total is missing."""

from __future__ import annotations

from rich.text import Text


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
