"""Print where two configurations differ: the key, and below it both values with their origins."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rlhf_cli.reference.differences import Difference, Side
from rlhf_cli.screen.configuration_tree import as_written

_FURTHEST_ORIGIN = 44


def show_differences(console: Console, found: Sequence[Difference], here: Side, there: Side) -> None:
    """Print the differences like a diff: `-` for the first side's value, `+` for the second's."""
    console.print(Text.assemble(("- ", "red"), (here.label, "bold")), soft_wrap=True)
    console.print(Text.assemble(("+ ", "green"), (there.label, "bold")), soft_wrap=True)
    if not found:
        console.print("no difference")
        return
    for one in found:
        console.print()
        console.print(Text(one.key, style="bold"), soft_wrap=True)
        pairs = [(sign, style, value) for sign, style, value in (("-", "red", one.here), ("+", "green", one.there))]
        texts = [as_written(value.value) if value.is_there else "not there" for _, _, value in pairs]
        column = min(_FURTHEST_ORIGIN, max(map(len, texts)) + 2)
        for (sign, style, value), text in zip(pairs, texts, strict=True):
            line = Text.assemble((f"  {sign} ", style), (text, "" if value.is_there else "dim"))
            origin = f"# {value.origin or 'default'}" if value.is_there else ""
            gap = max(2, column + 4 - len(line.plain))
            if console.is_terminal and len(line.plain) + gap + len(origin) > console.width:
                console.print(line, soft_wrap=True)
                line, gap = Text(), 4
            line.append(" " * gap + origin, style="dim")
            line.rstrip()
            console.print(line, soft_wrap=True)
