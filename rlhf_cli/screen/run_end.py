"""Print the panel after a run: each reward's start, end and curve, some completions, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.expectations.met_or_missed import verify
from rlhf_cli.json_values import section
from rlhf_cli.runs.checkpoint_folders import checkpoint_folder
from rlhf_cli.runs.metrics_file import TOTAL, Event, failed_shares, read_metrics, reward_spans, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import Status, read_status, stopped_by_rule, told_state
from rlhf_cli.screen.expectations_table import at_the_end
from rlhf_cli.screen.failed_rewards import failures_again, rows_failed
from rlhf_cli.screen.held_out_table import held_out
from rlhf_cli.screen.learning_curve import learning
from rlhf_cli.screen.next_commands import show_commands
from rlhf_cli.screen.one_line import one_line
from rlhf_cli.screen.sweep_table import sparkline
from rlhf_cli.screen.time_line import time_line
from rlhf_cli.tracking.where_to_look import where_to_look

_SPARKS = 24
_MOST_LINES = 18
"""Leaves room for a hint and the run folder below the panel."""


def show_end(console: Console, folder: RunFolder) -> None:
    """Print how the run in `folder` went and what to type next, in at most twenty lines.

    A run without rewards shows its loss.
    """
    status, events = read_status(folder), read_metrics(folder.metrics)
    best = _best_step(folder)
    said: list[RenderableType] = [*rows_failed(folder), *_said(folder, events, status)]

    def panel(most_rows: int, most_held_out: int, most_samples: int, most_said: int) -> Panel:
        parts = [
            _learnt(folder, events, most_rows),
            held_out(events, best, most=most_held_out) if most_held_out else None,
            _samples(folder, most_samples) if most_samples else None,
            Group(*said[:most_said]) if said[:most_said] else None,
        ]
        shown = [part for part in parts if part is not None]
        spaced = [one for part in shown for one in ("", part)][1:]
        title = f"[bold]{told_state(status.state, status.reason)} after {status.step} steps"
        return Panel(Group(*spaced), title=title, title_align="left", expand=False)

    sizes = [(rows, shown, samples) for rows in (8, 5, 3) for shown in (6, 2, 0) for samples in (3, 1, 0)]
    drawn = [*((*size, len(said)) for size in sizes), *((3, 0, 0, most) for most in range(len(said), -1, -1))]
    fitting = (size for size in drawn if len(console.render_lines(panel(*size), pad=False)) <= _MOST_LINES)
    console.print(panel(*next(fitting, drawn[-1])))
    show_commands(console, _next(folder))


def _said(folder: RunFolder, events: list[Event], status: Status) -> Iterator[Text]:
    """Yield other facts about a run, one line each, the most important first."""
    if reason := stopped_by_rule(status):
        yield Text(reason, style="bold")
    verified = verify(folder)
    if verified.outcomes:
        yield from at_the_end(verified, _typed(folder))
    if status.warnings:
        warnings = "1 warning" if status.warnings == 1 else f"{status.warnings} warnings"
        yield Text(f"{warnings} of your code: log.txt", style="yellow")
    if (times := time_line(events)) is not None:
        yield times
    lengths = section(read_json(folder.provenance), "lengths")
    for which in lengths:
        told = section(lengths, which)["in_words"]
        yield Text(f"{'data' if which == 'train' else 'data.eval'}: {told}", style="dim")


def _learnt(folder: RunFolder, events: list[Event], most: int) -> RenderableType | None:
    """Return the rewards at start and end with their curves, or the loss metrics of a run without rewards."""
    spans = reward_spans(events)
    if not spans:
        return learning(events)
    configured = section(folder.read_config(), "rewards")
    weights = {name: section(configured, name).get("weight") for name in spans}
    shown = dict(list(spans.items())[: most + 1])
    table = _rewards(shown, weights, failed_shares(events), events)
    more = len(spans) - len(shown)
    return Group(table, Text(f"and {more} more", style="dim")) if more else table


def _typed(folder: RunFolder) -> list[str]:
    """Return the overrides that the run was started with."""
    overrides = read_json(folder.provenance).get("overrides")
    return [str(word) for word in overrides] if isinstance(overrides, list) else []


def _best_step(folder: RunFolder) -> int | None:
    """Return the step of the best checkpoint that was kept, read from the newest checkpoint's state, or None."""
    checkpoint = folder.last_checkpoint()
    step = read_json(checkpoint / "trainer_state.json").get("best_global_step") if checkpoint is not None else None
    if isinstance(step, int) and step and checkpoint_folder(folder.checkpoints, step).is_dir():
        return step
    return None


def _rewards(
    spans: Mapping[str, tuple[float, float]],
    weights: Mapping[str, object],
    failed: Mapping[str, float],
    events: list[Event],
) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("reward", style="bold", overflow="fold")
    for column in ("weight", "start", "end", "change"):
        table.add_column(column, justify="right")
    if failed:
        table.add_column("rows failed", justify="right")
    table.add_column("", style="blue", no_wrap=True)
    for name, (start, end) in spans.items():
        colour = "green" if end > start else "red" if end < start else "dim"
        weight = weights.get(name)
        table.add_row(
            "total" if name == TOTAL else name,
            f"{weight:g}" if isinstance(weight, int | float) else "",
            f"{start:.3f}",
            f"{end:.3f}",
            f"[{colour}]{end - start:+.3f}",
            *([f"[yellow]{failed[name]:.1%}" if name in failed else ""] if failed else []),
            sparkline(series(events, name if name == TOTAL else f"rewards/{name}/mean")[1], _SPARKS),
        )
    return table


def _samples(folder: RunFolder, most: int) -> Table | None:
    """Return up to `most` completions of the last log event, one per prompt, with their advantage."""
    files = sorted((folder.path / "completions").glob("*.parquet"))
    if not files:
        return None
    import pyarrow.parquet

    first_of_prompt: dict[str, dict[str, Any]] = {}
    for row in pyarrow.parquet.read_table(files[-1]).to_pylist():
        first_of_prompt.setdefault(one_line(row["prompt"]), row)
    rows = list(first_of_prompt.values())[:most]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("prompt", max_width=32, no_wrap=True, overflow="ellipsis")
    table.add_column("completion at the end", max_width=40, no_wrap=True, overflow="ellipsis")
    table.add_column("advantage", justify="right")
    for row in rows:
        table.add_row(Text(one_line(row["prompt"])), Text(one_line(row["completion"])), f"{row['advantage']:+.2f}")
    return table


def _next(folder: RunFolder) -> dict[str, str]:
    """Return the one command to type next: for a failed reward, else for the tracker, else `rlhf why`."""
    commands = {
        **failures_again(folder),
        **where_to_look(folder),
        f"rlhf why {folder.shown}": "what its log says, and what to change",
    }
    return dict(list(commands.items())[:1])
