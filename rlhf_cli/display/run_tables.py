"""Print the state of runs, the panel after one, outcomes of expectations, reproductions, and the plan of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.analysis.verification import MET, MISSED, OPEN, ExpectationOutcome, Reproduction, VerifiedRun, verify
from rlhf_cli.display.terminal import (
    STATE_STYLE,
    Cell,
    one_line,
    plain_table,
    show_blocks,
    show_commands,
    span,
    sparkline,
    width_of,
)
from rlhf_cli.errors import in_one_line
from rlhf_cli.plan.batches import count
from rlhf_cli.runs.heartbeat import TimeSpent, phase_label
from rlhf_cli.runs.metric_arrays import columns_of, reward_spans, start_and_end
from rlhf_cli.runs.metrics_file import (
    TOTAL,
    Event,
    evaluation_sets,
    failed_shares,
    most_attempts,
    read_metrics,
    series,
    tables_by_step,
)
from rlhf_cli.runs.reward_records import failed_rows, kept_batches
from rlhf_cli.runs.run_folder import EDITED_CONFIG, GREEDY, SAMPLED, RunFolder, checkpoint_folder, read_json
from rlhf_cli.runs.run_status import CREATED, FINISHED, RunRow, Status, describe_state, read_status
from rlhf_cli.runs.tracking.tracked_run import where_to_look
from rlhf_cli.tables.metrics import DRAWS, LEARNING_METRICS, UNUSED_TOKENS, sign_of
from rlhf_cli.tables.trl_trainers import data_key
from rlhf_cli.text.json_values import section

_MOST_MISSED = 3
_MOST_PHASES = 3
_MOST_LINES = 17  # leaves room for two commands and the run folder below the panel
_LENGTHS = ("trainer.args.max_steps", "trainer.args.num_train_epochs")
_STYLES = {MET: "green", MISSED: "bold red", OPEN: "yellow"}


def show_overview(console: Console, rows: Sequence[RunRow], notice: str | None) -> None:
    """Print one row per run without the empty columns, and the `notice` why Slurm could not be queried.

    On a narrow screen the folder of all runs stands above the table, and columns are left out, so that it is one table.
    """
    states = [describe_state(row.state, row.reason).partition(" ")[0] for row in rows]  # the reason stands for itself
    columns: dict[str, list[Cell]] = {
        "run": [row.run for row in rows],
        "state": [(state, STATE_STYLE.get(row.state, "")) for row, state in zip(rows, states, strict=True)],
        "step": [f"{row.step}/{row.max_steps}" if row.max_steps else str(row.step or "") for row in rows],
        "s/step": ["" if row.s_per_step is None else f"{row.s_per_step:.2f}" for row in rows],
        "left": [span(row.time_left_s) for row in rows],
        "logged": ["" if row.log_age_s is None else f"{span(row.log_age_s)} ago" for row in rows],
        "saved": [(row.last_checkpoint or "").replace("checkpoint-", "step ") for row in rows],
        "job": [" ".join(part for part in (row.job_id, row.slurm_state) if part) for row in rows],
    }
    shown = {name: cells for name, cells in columns.items() if any(Text.assemble(cell).plain for cell in cells)}
    parents = set.intersection(*({*PurePath(row.run).parents} for row in rows))
    folder = max(parents, key=lambda parent: len(parent.parts), default=PurePath())
    if folder.name and width_of(shown.items()) > console.width:
        console.print(f"{folder}/", style="bold", markup=False, soft_wrap=True)
        shown["run"] = [row.run.removeprefix(f"{folder}/") for row in rows]
    whole = list(shown)
    for name in ("s/step", "saved", "logged"):
        if width_of(shown.items()) > console.width and name in shown:
            del shown[name]
    show_blocks(console, [(name, shown.pop(name)) for name in ("run", "state")], shown.items())
    if left_out := [name for name in whole[2:] if name not in shown]:
        console.print(f"no room for {', '.join(left_out)}; rlhf status --json has all", style="dim")
    for row in rows:
        for said in filter(None, (row.reason, EDITED_CONFIG * row.config_edited)):
            console.print(Text.assemble((row.run, "bold"), f": {in_one_line(said)}"))
    if notice is not None:
        # Later lines of squeue's message only follow from the first.
        console.print(f"[yellow]no answer from Slurm:[/] {notice.partition(chr(10))[0]}")


def show_edited(console: Console, folders: Iterable[RunFolder]) -> None:
    """Print a line for every run whose configuration was edited after it began."""
    for folder in folders:
        if folder.is_config_edited():
            console.print(f"{folder.shown}: {EDITED_CONFIG}", style="yellow", markup=False, soft_wrap=True)


def at_the_end(verified: VerifiedRun) -> Iterator[Text]:
    """Yield the lines for a run's last screen: how many expectations are met, and each missed one."""
    if (line := shortened_line(verified.typed)) is not None:
        yield Text(line, style="dim")
        return
    outcomes = verified.outcomes
    missed = [outcome for outcome in outcomes if outcome.state == MISSED]
    met = sum(outcome.state == MET for outcome in outcomes)
    yield Text(f"expected: {met} of {len(outcomes)} met", style=_STYLES[verified.state or MET])
    for outcome in missed[:_MOST_MISSED]:
        yield Text(f"  missed: {missed_line(outcome)}", style="red")
    if len(missed) > _MOST_MISSED:
        yield Text(f"  and {len(missed) - _MOST_MISSED} more: rlhf verify shows all", style="red")


def shortened_line(typed: Sequence[str]) -> str | None:
    """Return the line that says why a run is not judged: its length was typed, and its `expect` was not; else None."""
    words = [word.lstrip("+~") for word in typed]
    lengths = {key: word for word in words if (key := word.partition("=")[0]) in _LENGTHS}  # the last of a key counts
    if not lengths or any(word.startswith(("expect=", "expect.")) for word in words):
        return None
    return f"expectations are not checked, because {', '.join(lengths.values())} was typed"


def show_verified(console: Console, runs: Sequence[VerifiedRun]) -> None:
    """Print the outcomes of every run; for several runs, also print a tally."""
    for run in runs:
        state = describe_state(run.status.state, run.status.reason)
        ending = "" if run.status.state == FINISHED else f" ({state} at step {run.status.step})"
        outcome = "no expectations" if run.state is None else (run.state, _STYLES[run.state])
        console.print(Text.assemble((run.folder.shown, "bold"), f"{ending}: ", outcome), soft_wrap=True)
        rows: list[list[Cell]] = []
        for expected in run.outcomes:
            is_known = expected.state != OPEN and not math.isnan(expected.value)
            value = f"{expected.value:.4g}" if is_known else expected.why or ""
            expectation, style = expected.expectation, _STYLES[expected.state]
            head: list[Cell] = [(expected.state, style), (expectation.metric, "bold")]
            rows.append([*head, expectation.place, expectation.bound, value])
        if rows:
            heads = ["expected", "metric", "when", "bound"]
            console.print(plain_table(heads, ["value"], rows=rows, head="dim"))
    if len(runs) > 1:
        console.print(tally(runs))


def tally(runs: Sequence[VerifiedRun]) -> Text:
    """Return one line that counts how many runs met their expectations."""
    states = [run.state for run in runs if run.state is not None]
    words = [f"{states.count(state)} {state}" for state in (MET, MISSED, OPEN) if state in states]
    words += [f"{len(runs) - len(states)} without expectations"] if len(states) < len(runs) else []
    style = next((_STYLES[state] for state in (MISSED, OPEN) if state in states), "green")
    return Text.assemble(f"{len(runs)} runs: ", (", ".join(words), style))


def missed_line(missed: ExpectationOutcome) -> str:
    """Return a missed expectation in one line: `correct at the end 0.612, expected at least 0.75`."""
    value = f": {missed.why}" if math.isnan(missed.value) else f" {missed.value:.4g}"
    return f"{missed.expectation.metric} {missed.expectation.place}{value}, expected {missed.expectation.bound}"


def show_reproduction(console: Console, result: Reproduction) -> None:
    """Print whether two runs are equal, the first difference, the weights, and what else differs."""
    verdict = ("equal", "bold green") if result.equal else ("differs", "bold red")
    found = result.first_difference
    text = f": {result.numbers} numbers up to step {result.steps}"
    if found is not None:
        also = f", and so are {len(result.also)} other metrics of that step" if result.also else ""
        text = f" first at step {result.first_step}: {found.name} was {found.before}, is {found.after}{also}"
    console.print(Text.assemble(verdict, text), soft_wrap=True)
    pairs = [replace(part, name=f"weights of {part.name}") for part in result.weights] + result.causes
    rows = [[f"  {pair.name}", f"{pair.before!s:.20}", f"{pair.after!s:.20}"] for pair in pairs]
    if rows:
        console.print(plain_table(["", "before", "after"], rows=rows, head="dim"))
    console.print(f"run folder: {result.again}", soft_wrap=True)


def show_planned(console: Console, sweep: str, jobs: Mapping[str, tuple[Status | None, str]]) -> None:
    """Print a line per unfinished job: its status (None: never frozen) and what is done now. Count the others."""
    states = [CREATED if status is None else status.state for status, _ in jobs.values()]
    done = f"{states.count(FINISHED)} of {len(jobs)} runs are done"
    console.print(f"[bold]sweep {sweep}[/]: {done}", soft_wrap=True)
    if to_come := [what for state, (_, what) in zip(states, jobs.values(), strict=True) if state == CREATED]:
        what = "to start now" if to_come[0] else "left out"
        console.print(f"  {count(len(to_come), 'run')} not started yet, {what}")
    rows: list[list[Cell]] = []
    for name, (status, what) in jobs.items():
        if status is not None and status.state not in (CREATED, FINISHED):
            steps = f"{status.step}/{status.max_steps}" if status.max_steps is not None else ""
            state, _, _ = describe_state(status.state, status.reason).partition(" ")
            shown = (state, STATE_STYLE.get(status.state, ""))
            rows.append([f"  {name}", shown, steps, what or "stays as it is", in_one_line(status.reason or "")])
    if rows:
        console.print(plain_table(["  run", "state", "step", "now", "why it ended"], rows=rows, gap=1))


def _change(values: Sequence[float], start: float, end: float, sign: int = 1) -> list[Cell]:
    """Return the cells of start, end and change, "-" for NaN; a single value is an end alone, and no change."""
    ends = ["-" if math.isnan(value) else f"{value:.3f}" for value in (start if len(values) > 1 else math.nan, end)]
    if "-" in ends:
        return [*ends, ""]
    gain = (end - start) * sign
    style = "green" if gain > 0 else "red" if gain < 0 else "dim"
    return [*ends, (f"{end - start:+.3f}", style)]


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
        if not at[prefix]:
            continue
        found = [at[prefix].get(step, {}) for step in shown]
        measures = {
            **{f"{part} total": f"{prefix}{part}/total" for part in (GREEDY, SAMPLED)},
            **{f"{GREEDY} {reward}": f"{prefix}{GREEDY}/rewards/{reward}" for reward in rewards},
            **{metric.removeprefix(prefix).replace("/", " "): metric for metric in most_attempts(found[-1])},
            "truncated": f"{prefix}{SAMPLED}/truncated",
        }
        for label, metric in measures.items():
            if not name or label.startswith(GREEDY):
                label = name + label.removeprefix(GREEDY) if name else label
                rows.append([(label, "bold"), *(cell(event, metric) for event in found)])
    heads = [f"step {step}{' best' if step == best_step else ''}" for step in shown]
    table = plain_table(["held out, greedy" if len(sets) > 1 else "held out"], heads, rows=rows, head="dim")
    for column in table.columns[1:]:
        column.no_wrap = True  # an interval on two lines cannot be read
    return table


def time_line(events: list[Event]) -> Text | None:
    """Return `time 4.1 s: generation 41%, forward 18%, 8 more 14%`, or None if no times were logged."""
    times = TimeSpent()
    for event in events:
        times.take(event)
    if not (phases := [(phase_label(key), share) for key, share in times.shares().items() if share > 0]):
        return None
    shown, more = phases[:_MOST_PHASES], phases[_MOST_PHASES:]
    shown += [(f"{len(more)} more", sum(share for _, share in more))] if more else []
    elapsed = f"{times.elapsed_s:.2g} s" if times.elapsed_s < 10.0 else span(times.elapsed_s)
    line = f"time {elapsed}: {', '.join(f'{label} {share:.0%}' for label, share in shown)}"
    draws, unused = (series(events, name)[1] for name in (DRAWS, UNUSED_TOKENS))
    if draws and unused:  # of sampling.keep_groups
        line += f"; rounds drawn {fmean(draws):.1f} times, {fmean(unused):.0%} of their tokens not trained on"
    return Text(line, style="dim")


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
        title = f"[bold]{describe_state(status.state, status.reason)} after {count(status.step, 'step')}"
        return Panel(Group(*spaced), title=title, title_align="left", expand=False)

    sizes = [(*size, len(facts), True) for size in ((8, 3), (5, 1), (3, 1), (3, 0), (1, 0))]
    sizes += [(3, 0, most, False) for most in range(len(facts), -1, -1)]
    for *size, has_held_out in sizes:
        shown = panel(*size, has_held_out=has_held_out)
        if len(console.render_lines(shown, pad=False)) <= _MOST_LINES:
            break
    console.print(shown)
    commands = {command: f"{name}: score these rows again" for command, name in kept_batches(folder).items()}
    commands |= {**where_to_look(folder), f"rlhf report {folder.typed}": "curves and answers as a page"}
    first, reason = next(iter(commands.items()))
    show_commands(console, {first: reason, f"rlhf why {folder.typed}": "what to change"})


def _other_facts(folder: RunFolder, events: list[Event], status: Status) -> Iterator[Text]:
    """Yield other facts about a run, one line each, the most important first."""
    for name, number in failed_rows(folder).items():
        yield Text(f"{name} failed on {count(number, 'row')}: {folder.reward_errors.name}", style="yellow")
    if failed := read_json(folder.provenance).get("tracker_failed"):
        yield Text(f"{failed} and has only part of the run; metrics.jsonl has all of it", style="yellow")
    if reason := status.stopped_by_rule:
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
        yield Text(f"{data_key(which)}: {section(lengths, which)['in_words']}", style="dim")


def _learnt(folder: RunFolder, events: list[Event], most: int) -> RenderableType | None:
    """Return the rewards at start and end with their curves; without rewards, the losses."""
    columns = columns_of(events)
    spans = reward_spans(columns)
    if not spans:
        losses: list[list[Cell]] = []
        sets = evaluation_sets(name for event in events for name in event)
        for prefix, suffix in (("", ""), *((prefix, f", held out {name}".rstrip()) for name, prefix in sets.items())):
            for name in LEARNING_METRICS:
                values = series(events, prefix + name)[1]
                span = (values[0], values[-1]) if prefix and values else start_and_end(columns.series(prefix + name))
                if span is not None:
                    label = name.removeprefix("rewards/").replace("_", " ").replace("/", " ") + suffix
                    losses.append([(label, "bold"), *_change(values, *span, sign_of(name))])
        return plain_table(["measure"], ["start", "end", "change"], rows=losses, head="dim") if losses else None
    configured = section(folder.read_config(), "rewards")
    failed = failed_shares(events)
    names = [*spans, *(name for name in configured if name not in spans)]
    rows: list[list[Cell]] = []
    for name in names[: most + 1]:
        weight = section(configured, name).get("weight")
        weighted = f"{weight:g}" if isinstance(weight, int | float) else ""
        curve = series(events, name if name == TOTAL else f"rewards/{name}/mean")[1]
        failures: list[Cell] = [(f"{failed[name]:.1%}" if name in failed else "", "yellow")] if failed else []
        change: list[Cell] = [*_change(curve, *spans[name])] if name in spans else ["-", "-", ("no score", "yellow")]
        head = ("total" if name == TOTAL else name, "bold")
        rows.append([head, weighted, *change, *failures, (sparkline(curve, 24), "blue")])
    heads = ["weight", "start", "end", "change", *(["rows failed"] if failed else [])]
    table = plain_table(["reward"], heads, [""], rows=rows, head="dim")
    more = len(names) - len(rows)
    return Group(table, Text(f"and {more} more", style="dim")) if more else table


def _samples(folder: RunFolder, most: int) -> Table | None:
    """Return up to `most` completions of the last log event, one per prompt."""
    tables = tables_by_step(folder.path)
    if not tables:
        return None
    import pyarrow.parquet

    first_of_prompt: dict[str, dict[str, Any]] = {}
    for row in pyarrow.parquet.read_table(tables[-1][1]).to_pylist():
        first_of_prompt.setdefault(one_line(row["prompt"]), row)
    rows = [
        (one_line(row["prompt"]), one_line(row["completion"]), f"{row['advantage']:+.2f}")
        for row in list(first_of_prompt.values())[:most]
    ]
    return plain_table(["prompt", "completion at the end"], ["advantage"], rows=rows, head="dim", widths=(32, 40))
