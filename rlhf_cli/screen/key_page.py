"""Print the type, default and meaning of configuration keys."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rlhf_cli.reference.function_source import NO_DEFAULT
from rlhf_cli.reference.key_reference import KeyReference
from rlhf_cli.reference.reward_reference import as_yaml
from rlhf_cli.screen.option_lists import show_pairs


def show_keys(console: Console, keys: Sequence[KeyReference]) -> None:
    """Print each key with its type and default, and its meaning below."""
    for key in keys:
        default = "must be given" if key.default is NO_DEFAULT else f"default {as_yaml(key.default)}"
        is_section = key.type in ("section", "section | null")
        facts = f"section of {len(key.holds)} keys" if is_section else f"{key.type}, {default}"
        console.print(Text.assemble((key.key, "bold cyan"), "  ", (facts, "dim")), soft_wrap=not console.is_terminal)
        if key.text:
            show_pairs(console, [("  ", key.text)])
