"""Print the panel after a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.analysis.expectations import verify
from rlhf_cli.display.run_tables import at_the_end
from rlhf_cli.display.tables import Cell, plain_table
from rlhf_cli.display.terminal import one_line, show_commands, span, sparkline
from rlhf_cli.plan.batches import count
from rlhf_cli.runs.metrics_file import (
    TOTAL,
    Event,
    evaluation_sets,
    failed_shares,
    most_attempts,
    read_metrics,
    reward_spans,
    series,
    start_and_end,
)
from rlhf_cli.runs.phase_clock import phase_label, time_shares
from rlhf_cli.runs.reward_records import failed_rows, kept_batches
from rlhf_cli.runs.run_folder import GREEDY, SAMPLED, RunFolder, checkpoint_folder, read_json
from rlhf_cli.runs.run_status import Status, describe_state, read_status, stopped_by_rule
from rlhf_cli.runs.tracking.tracked_run import where_to_look
from rlhf_cli.tables.metrics import DRAWS, LEARNING_METRICS, UNUSED_TOKENS, sign_of
from rlhf_cli.tables.trl_trainers import data_key
from rlhf_cli.text.json_values import section


def _change(start: float, end: float, sign: int = 1) -> list[Cell]:
    gain = (end - start) * sign
    style = "green" if gain > 0 else "red" if gain < 0 else "dim"
    return [f"{start:.3f}", f"{end:.3f}", (f"{end - start:+.3f}", style)]


def _losses(events: Sequence[Event]) -> Table | None:
    """Return the first and last tenth's means of losses and accuracies (held out: first and last value), or None."""
    rows: list[list[Cell]] = []
    sets = evaluation_sets(name for event in events for name in event)
    for prefix, suffix in (("", ""), *((prefix, f", held out {name}".rstrip()) for name, prefix in sets.items())):
        for name in LEARNING_METRICS:
            values = series(events, prefix + name)[1]
            span = (values[0], values[-1]) if prefix and values else start_and_end(values)
            if span is not None:
                label = name.removeprefix("rewards/").replace("_", " ").replace("/", " ") + suffix
                rows.append([(label, "bold"), *_change(*span, sign_of(name))])
    return plain_table(["measure"], ["start", "end", "change"], rows=rows, head="dim") if rows else None


def held_out(events: Sequence[Event], best_step: int | None, rewards: Sequence[str]) -> Table | None:
    """Return the first, the best and the last evaluation beside one another, or None if no policy was evaluated.

    `best_step` is the step whose checkpoint was kept as the best, or None. `rewards` are the names to show. Of several
    sets it shows the greedy scores only.
    """
    sets = evaluation_sets(name for event in events for name in event)
    at = {p: {event["step"]: event for event in events if f"{p}{GREEDY}/total" in event} for p in sets.values()}
    steps = list(dict.fromkeys(step for of_set in at.values() for step in of_set))
    if not steps:
        return None
    shown = [step for step in steps if step in (steps[0], best_step, steps[-1])]

    def cell(event: Event, name: str) -> str:
        mean, low, high = (event.get(f"{name}{bound}") for bound in ("", "/low", "/high"))
        if mean is None:
            return "-"
        return f"{mean:.3f}" if low is None or high is None else f"{mean:.2f} [{low:.2f}, {high:.2f}]"

    rows: list[list[Cell]] = []
    for name, prefix in sets.items():
        found = [at[prefix].get(step, {}) for step in shown] if at[prefix] else []
        for label, metric in (_measures(prefix, rewards, found[-1]) if found else {}).items():
            if not name or label.startswith(GREEDY):
                label = name + label.removeprefix(GREEDY) if name else label
                rows.append([(label, "bold"), *(cell(event, metric) for event in found)])
    heads = [f"step {step}{' best' if step == best_step else ''}" for step in shown]
    table = plain_table(["held out, greedy" if len(sets) > 1 else "held out"], heads, rows=rows, head="dim")
    for column in table.columns[1:]:
        column.no_wrap = True  # an interval on two lines cannot be read
    return table


def _measures(prefix: str, rewards: Sequence[str], last: Event) -> dict[str, str]:
    return {
        **{f"{part} total": f"{prefix}{part}/total" for part in (GREEDY, SAMPLED)},
        **{f"{GREEDY} {name}": f"{prefix}{GREEDY}/rewards/{name}" for name in rewards},
        **{name.removeprefix(prefix).replace("/", " "): name for name in most_attempts(last)},
        "truncated": f"{prefix}{SAMPLED}/truncated",
    }


_MOST_PHASES = 3
_SHORT_S = 10.0


def time_line(events: list[Event]) -> Text | None:
    """Return `time 4.1 s: generation 41%, forward 18%, 8 more 14%`, or None if no times were logged."""
    names = dict.fromkeys(name for event in events for name in event)
    shares = time_shares(names, lambda name: series(events, name)[1])
    if shares is None:
        return None
    phases = [(phase_label(key), share) for key, share in shares.shares.items() if share > 0]
    shown, more = phases[:_MOST_PHASES], phases[_MOST_PHASES:]
    shown += [(f"{len(more)} more", sum(share for _, share in more))] if more else []
    elapsed = f"{shares.elapsed_s:.2g} s" if shares.elapsed_s < _SHORT_S else span(shares.elapsed_s)
    line = f"time {elapsed}: {', '.join(f'{label} {share:.0%}' for label, share in shown)}"
    draws, unused = (series(events, name)[1] for name in (DRAWS, UNUSED_TOKENS))
    if draws and unused:  # of sampling.keep_groups
        line += f"; rounds drawn {fmean(draws):.1f} times, {fmean(unused):.0%} of their tokens not trained on"
    return Text(line, style="dim")


_SPARKS = 24
_MOST_LINES = 17
"""Leaves room for two commands and the run folder below the panel."""


def show_end(console: Console, folder: RunFolder) -> None:
    """Print in at most twenty lines how a run went and what to type next; what has no room is left out."""
    status, events = read_status(folder), read_metrics(folder.metrics)
    facts = list(_other_facts(folder, events, status))
    rewards, checkpoint, best_step = list(section(folder.read_config(), "rewards")), folder.last_checkpoint(), None
    if checkpoint is not None:
        best = read_json(checkpoint / "trainer_state.json").get("best_global_step")
        if isinstance(best, int) and best and checkpoint_folder(folder.checkpoints, best).is_dir():
            best_step = best

    def panel(most_rewards: int, most_samples: int, most_facts: int, *, has_held_out: bool) -> Panel:
        parts = [
            _learnt(folder, events, most_rewards),
            held_out(events, best_step, rewards[:most_rewards]) if has_held_out else None,
            _samples(folder, most_samples) if most_samples else None,
            Group(*facts[:most_facts]) if most_facts else None,
        ]
        spaced = [line for part in parts if part is not None for line in ("", part)][1:]
        title = f"[bold]{describe_state(status.state, status.reason)} after {status.step} steps"
        return Panel(Group(*spaced), title=title, title_align="left", expand=False)

    sizes = [(*size, len(facts), True) for size in ((8, 3), (5, 1), (3, 1), (3, 0), (1, 0))]
    sizes += [(3, 0, most, False) for most in range(len(facts), -1, -1)]
    panels = (panel(*size, has_held_out=has_held_out) for *size, has_held_out in sizes)
    console.print(next(shown for shown in panels if len(console.render_lines(shown, pad=False)) <= _MOST_LINES))
    commands = {command: f"{name}: score these rows again" for command, name in kept_batches(folder).items()}
    commands |= {**where_to_look(folder), f"rlhf report {folder.shown}": "curves and answers as a page"}
    first, reason = next(iter(commands.items()))
    show_commands(console, {first: reason, f"rlhf why {folder.shown}": "what to change"})


def _other_facts(folder: RunFolder, events: list[Event], status: Status) -> Iterator[Text]:
    """Yield other facts about a run, one line each, the most important first."""
    for name, number in failed_rows(folder).items():
        yield Text(f"{name} failed on {count(number, 'row')}: {folder.reward_errors.name}", style="yellow")
    if failed := read_json(folder.provenance).get("tracker_failed"):
        yield Text(f"{failed} and has only part of the run; metrics.jsonl has all of it", style="yellow")
    if reason := stopped_by_rule(status):
        yield Text(reason, style="bold")
    verified = verify(folder)
    if verified.outcomes:
        yield from at_the_end(verified)
    if status.warnings:
        yield Text(f"{count(status.warnings, 'warning')} in log.txt", style="yellow")
    if (times := time_line(events)) is not None:
        yield times
    lengths = section(read_json(folder.provenance), "lengths")
    for which in lengths:
        text = section(lengths, which)["in_words"]
        yield Text(f"{data_key(which)}: {text}", style="dim")


def _learnt(folder: RunFolder, events: list[Event], most: int) -> RenderableType | None:
    """Return the rewards at start and end with their curves; without rewards, the losses."""
    spans = reward_spans(events)
    if not spans:
        return _losses(events)
    configured = section(folder.read_config(), "rewards")
    failed = failed_shares(events)
    names = [*spans, *(name for name in configured if name not in spans)]
    rows: list[list[Cell]] = []
    for name in names[: most + 1]:
        weight = section(configured, name).get("weight")
        curve = series(events, name if name == TOTAL else f"rewards/{name}/mean")[1]
        failures: list[Cell] = [(f"{failed[name]:.1%}" if name in failed else "", "yellow")] if failed else []
        head: list[Cell] = [
            ("total" if name == TOTAL else name, "bold"),
            f"{weight:g}" if isinstance(weight, int | float) else "",
        ]
        change: list[Cell] = [*_change(*spans[name])] if name in spans else ["-", "-", ("no score", "yellow")]
        rows.append([*head, *change, *failures, (sparkline(curve, _SPARKS), "blue")])
    heads = ["weight", "start", "end", "change", *(["rows failed"] if failed else [])]
    table = plain_table(["reward"], heads, [""], rows=rows, head="dim")
    more = len(names) - len(rows)
    return Group(table, Text(f"and {more} more", style="dim")) if more else table


def _samples(folder: RunFolder, most: int) -> Table | None:
    """Return up to `most` completions of the last log event, one per prompt."""
    files = sorted((folder.path / "completions").glob("*.parquet"))
    if not files:
        return None
    import pyarrow.parquet

    first_of_prompt: dict[str, dict[str, Any]] = {}
    for row in pyarrow.parquet.read_table(files[-1]).to_pylist():
        first_of_prompt.setdefault(one_line(row["prompt"]), row)
    rows = [
        (one_line(row["prompt"]), one_line(row["completion"]), f"{row['advantage']:+.2f}")
        for row in list(first_of_prompt.values())[:most]
    ]
    table = plain_table(["prompt", "completion at the end"], ["advantage"], rows=rows, head="dim")
    for column, width in zip(table.columns, (32, 40), strict=False):
        column.max_width, column.no_wrap, column.overflow = width, True, "ellipsis"
    return table
