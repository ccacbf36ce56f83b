"""Print what `rlhf export` wrote and how to upload it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlhf_cli.export.given_away import GivenAway

_KIB, _MIB = 1024, 1024**2


def show_given_away(
    console: Console, run: str, given: GivenAway, pushed_to: str | None, *, flags: Sequence[str] = ()
) -> None:
    """Print where the exported model is, what it is, and the command that uploads it.

    `flags` are the flags that chose the weights and the folder.
    """
    place = os.path.relpath(given.folder) if given.folder.is_relative_to(Path.cwd()) else str(given.folder)
    how = "its adapter merged into its base" if given.merged else "its weights as they were saved"
    console.print(Text.assemble((place, "bold"), f": the {given.kind} of step {given.step}, {how}"))
    size = f"{given.bytes / _MIB:.1f} MiB" if given.bytes >= _MIB else f"{given.bytes / _KIB:.0f} KiB"
    console.print(Text(f"  {len(given.files)} files, {size}; README.md is its card: read it before others do"))
    for note in given.notes:
        console.print(Text(f"  {note}", "yellow"))
    if pushed_to is not None:
        console.print(Text(f"  pushed to {pushed_to}"))
    else:
        command = f"rlhf export {shlex.join([run, *flags])} --push OWNER/NAME"
        console.print(Text(f"  {command}  # uploads it, with the card as you leave it"), soft_wrap=True)
