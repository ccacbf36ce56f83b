"""Prints the panel after a run: each reward at start and end, the curve, some completions, what to type next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import plotext
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.expectations.met_or_missed import verify
from rlhf_cli.json_values import section
from rlhf_cli.runs.checkpoint_folders import checkpoint_folder
from rlhf_cli.runs.evaluations import PICTURE, in_training
from rlhf_cli.runs.metrics_file import TOTAL, failed_shares, read_metrics, reward_spans, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import read_status, stopped_by_rule, told_state
from rlhf_cli.screen.expectations_table import at_the_end
from rlhf_cli.screen.failed_rewards import failures_again, rows_failed
from rlhf_cli.screen.held_out_table import held_out
from rlhf_cli.screen.learning_curve import learning
from rlhf_cli.screen.next_commands import show_commands
from rlhf_cli.screen.one_line import one_line
from rlhf_cli.screen.time_table import time_went
from rlhf_cli.tracking.where_to_look import where_to_look

_PLOT_COLUMNS, _PLOT_ROWS = 64, 12
_SAMPLES = 3


def show_end(console: Console, folder: RunFolder) -> None:
    """Print how the run in `folder` went. A run without rewards shows its loss."""
    status, events = read_status(folder), read_metrics(folder.metrics)
    rewards = reward_spans(events)
    metric = TOTAL if TOTAL in rewards else "loss"
    parts: list[Any] = []
    if rewards:
        configured = section(folder.read_config(), "rewards")
        weights = {name: section(configured, name).get("weight") for name in rewards}
        parts.append(_rewards(rewards, weights, failed_shares(events)))
    elif (measures := learning(events)) is not None:
        parts.append(measures)
    steps, values = series(events, metric)
    if len(values) > 1:
        parts += ["", Text(f"{metric} by step", style="dim"), Text.from_ansi(_curve(steps, values, console.width - 4))]
    if (evaluations := held_out(events, _best_step(folder))) is not None:
        parts += ["", evaluations]
    if (times := time_went(events)) is not None:
        parts += ["", times]
    samples = _samples(folder)
    if samples is not None:
        parts += ["", samples]
    all_lengths = section(read_json(folder.provenance), "lengths")
    for which in all_lengths:
        told = section(all_lengths, which)["in_words"]
        parts += ["", Text(f"{'data' if which == 'train' else 'data.eval'}: {told}", style="dim")]
    parts += rows_failed(folder)
    verified = verify(folder)
    if verified.outcomes:
        parts += ["", at_the_end(verified, _typed(folder))]
    if reason := stopped_by_rule(status):
        parts += ["", Text(reason, style="bold")]
    if status.warnings:
        parts += ["", Text(f"{status.warnings} warnings are in log.txt", style="dim")]
    title = f"[bold]{told_state(status.state, status.reason)} after {status.step} steps"
    console.print(Panel(Group(*parts), title=title, title_align="left", expand=False))
    _show_next(console, folder)


def _typed(folder: RunFolder) -> list[str]:
    """The overrides that the run was started with."""
    overrides = read_json(folder.provenance).get("overrides")
    return [str(word) for word in overrides] if isinstance(overrides, list) else []


def _best_step(folder: RunFolder) -> int | None:
    """The step whose checkpoint was kept as the best, as the newest checkpoint's state has it."""
    checkpoint = folder.last_checkpoint()
    step = read_json(checkpoint / "trainer_state.json").get("best_global_step") if checkpoint is not None else None
    if isinstance(step, int) and step and checkpoint_folder(folder.checkpoints, step).is_dir():
        return step
    return None


def _rewards(
    spans: dict[str, tuple[float, float]], weights: Mapping[str, object], failed: Mapping[str, float]
) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("reward", style="bold")
    for column in ("weight", "start", "end", "change"):
        table.add_column(column, justify="right")
    if failed:
        table.add_column("rows failed", justify="right")
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
        )
    return table


def _curve(steps: list[int], values: list[float], room: int) -> str:
    """Return the curve as lines, no wider than `room` characters: a line of it that is folded cannot be read."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(_PLOT_COLUMNS, room), _PLOT_ROWS)
    plotext.plot(steps, values, marker="braille")
    plotext.yfrequency(4)
    plotext.xticks(sorted({steps[round(part * (len(steps) - 1) / 4)] for part in range(5)}))
    built: str = plotext.build()
    return built.rstrip("\n")


def _samples(folder: RunFolder) -> Table | None:
    """A few completions of the last log event, one a prompt, with their advantage."""
    files = sorted((folder.path / "completions").glob("*.parquet"))
    if not files:
        return None
    import pyarrow.parquet

    first_of_prompt: dict[str, dict[str, Any]] = {}
    for row in pyarrow.parquet.read_table(files[-1]).to_pylist():
        first_of_prompt.setdefault(one_line(row["prompt"]), row)
    rows = list(first_of_prompt.values())[:_SAMPLES]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("prompt", max_width=32, no_wrap=True, overflow="ellipsis")
    table.add_column("completion at the end", max_width=40, no_wrap=True, overflow="ellipsis")
    table.add_column("advantage", justify="right")
    for row in rows:
        table.add_row(Text(one_line(row["prompt"])), Text(one_line(row["completion"])), f"{row['advantage']:+.2f}")
    return table


def _show_next(console: Console, folder: RunFolder) -> None:
    path = folder.shown
    picture = in_training(folder) / PICTURE
    if picture.is_file():
        command = f"  [cyan]{path}/{picture.relative_to(folder.path)}[/]  [dim]# the evaluations as a picture[/]"
        console.print(command, soft_wrap=True, highlight=False)
    commands = {
        **failures_again(folder),
        **where_to_look(folder),
        f"rlhf compare {os.path.dirname(path)}": "this run beside the others of its experiment",
        f"rlhf why {path}": "what its log says, and what to change",
        f"tail -1 {path}/metrics.jsonl": "every metric that was logged",
        "rlhf list": "what else can be put together",
    }
    show_commands(console, commands)
