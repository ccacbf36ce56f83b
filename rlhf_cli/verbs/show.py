"""rlhf show +exp=NAME [overrides]      the resolved configuration, each value with the file and line it came from"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from rlhf_cli.config.environment_references import with_references
from rlhf_cli.config.origins import Origins
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.jobs.prepare import prepare

_ORIGIN_COLUMN = 56


def run(argv: list[str]) -> int:
    """Print the configuration, a value a line; returns the exit code."""
    prepared = prepare(argv, keep_run_names=True)
    shown = with_references(prepared.experiment.model_dump(mode="json"), prepared.composed.references)
    _show(Console(), shown, prepared.composed.origins, "", 0)
    return EXIT_OK


def _show(console: Console, node: Mapping[str, object], origins: Origins, prefix: str, depth: int) -> None:
    for name, value in node.items():
        key = f"{prefix}.{name}" if prefix else name
        line = Text("  " * depth)
        line.append(f"{name}:", style="bold")
        if isinstance(value, dict) and value:
            console.print(line)
            _show(console, value, origins, key, depth + 1)
            continue
        line.append(f" {_yaml(value)}")
        # Only a key that was written somewhere has an origin; the rest is our default.
        origin = origins.by_key.get(key)
        line.append(" " * max(2, _ORIGIN_COLUMN - len(line.plain)))
        line.append(f"# {origin}" if origin else "# default", style="dim")
        console.print(line, soft_wrap=True)


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    needs_quotes = isinstance(value, str) and (not value or value != value.strip() or "\n" in value)
    return repr(value) if needs_quotes else str(value)
