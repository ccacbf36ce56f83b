"""Print what a run will do: launch, memory, workload."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rlhf_cli.plan.launch_plan import NODE, LaunchPlan, as_shell
from rlhf_cli.plan.memory.estimate import MemoryPlan, Moment, Phase
from rlhf_cli.plan.run_plan import Checkpoints, Evaluations, Plan, Workload
from rlhf_cli.runs.disk_space import size

_CHOSEN = "port 0 is replaced by a free one at the start"
_BY_SLURM = "FIRST_NODE is the first of the nodes that Slurm gives, port 0 a free one of it"


def describe_launch(plan: LaunchPlan) -> str:
    """Return the plan in one line: `2 ranks on GPUs 0, 1, a vLLM server on GPU 2`."""
    if plan.in_this_process:
        return "1 process, the command itself" + _on(plan.gpus)
    machines = f" on each of {plan.num_nodes} machines" if plan.num_nodes > 1 else ""
    ranks = f"{len(plan.ranks)} rank" + ("s" if len(plan.ranks) > 1 else "") + machines + _on(plan.gpus)
    return ranks + (f", a vLLM server{_on(plan.server.gpus)}" if plan.server else "")


def show_launch(console: Console, plan: LaunchPlan) -> None:
    """Print the processes and their roles, then every command, the log files and the resume command."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    has_several = plan.num_nodes > 1
    for name in ("process", *(["machine"] if has_several else []), "GPU", "does", "reached at"):
        table.add_column(name, overflow="fold")
    machines = [plan, *(plan.on_machine(node) for node in range(1, plan.num_nodes))]
    if plan.server is not None:
        gpus = ", ".join(plan.server.gpus)
        table.add_row("vLLM server", gpus, "generates", f"{plan.server.url}, weights {plan.server.group_port}")
    for one in machines:
        for rank in one.ranks:
            place = rank.env
            reached = "" if plan.world_size == 1 else f"{place['MASTER_ADDR']}:{place['MASTER_PORT']}"
            machine = [str(one.node + 1)] if has_several else []
            table.add_row(f"rank {rank.rank} of {plan.world_size}", *machine, rank.gpu or "none", "trains", reached)
    console.print(table)
    console.print(Text(_about_ports(plan), style="dim"))
    if plan.server is not None:
        _say(console, "vLLM server", as_shell(plan.server.env, plan.server.argv))
    if not plan.in_this_process:
        shared = {name: value for name, value in plan.shared.items() if name != NODE}
        _say(console, "every rank", f"export {as_shell(shared)}")
        for one in machines:
            if has_several:
                _say(console, f"machine {one.node + 1}", _typed(one))
            for rank in one.ranks:
                own = {name: value for name, value in rank.env.items() if name not in shared}
                _say(console, f"rank {rank.rank}", as_shell(own, rank.argv))
    logs = [*(one.log for one in machines), *([plan.server.log] if plan.server else [])]
    _say(console, "log", "  ".join(os.path.relpath(log) for log in logs))
    _say(console, "resume", plan.resume_command)


def _about_ports(plan: LaunchPlan) -> str:
    if plan.in_this_process:
        return "the command trains itself: no other process is started"
    if plan.num_nodes == 1:
        return _CHOSEN
    return f"{plan.meets_at} is opened by this command" if plan.meets_at else _BY_SLURM


def _typed(plan: LaunchPlan) -> str:
    """Return what a user types on one of several machines, or what Slurm starts there."""
    if plan.meets_at is None:
        return "srun starts `rlhf join` there" if plan.node else "the job starts `rlhf resume` here"
    return f"rlhf join {plan.meets_at}" if plan.node else "this one"


def _on(gpus: tuple[str, ...]) -> str:
    if not gpus:
        return ""
    return (" on GPU " if len(gpus) == 1 else " on GPUs ") + ", ".join(gpus)


def _say(console: Console, name: str, line: str) -> None:
    """Print a line without hard breaks, so that it can be copied."""
    console.print(Text.assemble((name, "bold"), "  ", line), soft_wrap=True, highlight=False)


_BAR = 20
_PHASES: tuple[Phase, ...] = ("generation", "training")
_ADVISED_ABOVE = 0.1
"""Fraction of the device. Below it, no advice is given."""
_SHOWN_FROM = 0.01
"""Fraction of the moment's total. Smaller parts are not listed."""


def memory_bars(plan: MemoryPlan) -> RenderableType:
    """Return a heading, one line per phase with the parts of its peak, and the largest part."""
    peak = plan.peak
    if peak is None:
        return Text(f"memory: not estimated ({plan.unknown})", style="dim")
    device = f" ({_size(plan.device_bytes)})" if plan.device_bytes is not None else ""
    holder = "GPU" if plan.device == "GPU" else "process"
    heading = Text(f"memory of each {holder}{device}: the fullest moments, estimated", "dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    scale = plan.device_bytes if plan.device_bytes and plan.device_bytes < 10 * peak.total else peak.total
    for phase in _PHASES:
        moment = plan.fullest(phase)
        if moment is not None:
            table.add_row(phase, _bar(moment.total, scale), _size(moment.total), _Parts(tuple(_parts(moment))))
    return Group(heading, table, *(Text(line, style=style) for line, style in _below(plan, peak)))


def will_not_fit(plan: MemoryPlan) -> str | None:
    """Return a message if the run needs more memory than its device has. Return None if it fits or is unknown."""
    if plan.peak is None or plan.device_bytes is None or plan.peak.total <= plan.device_bytes:
        return None
    return f"more than the {_size(plan.device_bytes)} that the {plan.device} has: it will not fit"


@dataclass(frozen=True)
class _Parts:
    """A comma-separated list that breaks lines only between parts, so `3.7 MB` stays together."""

    parts: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for number, part in enumerate(self.parts):
            piece = part + ("," if number < len(self.parts) - 1 else "")
            if line and len(line) + 1 + len(piece) > options.max_width:
                yield Text(line)
                line = ""
            line += (" " if line else "") + piece
        yield Text(line)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, self.parts), default=0) + 1, len(", ".join(self.parts)))


def _below(plan: MemoryPlan, peak: Moment) -> Iterator[tuple[str, str]]:
    """Yield (line, style): the largest part, how to reduce it, and what was not counted."""
    share = peak.parts[peak.largest] / peak.total
    yield f"most of it: {peak.largest}, {share:.0%} ({peak.what})", "dim"
    is_large = plan.device_bytes is None or peak.total > _ADVISED_ABOVE * plan.device_bytes
    if plan.cheapest is not None and is_large:
        yield f"to lower {plan.cheapest.part}: {' '.join(plan.cheapest.words)}  ({plan.cheapest.why})", ""
    if plan.leaves_out:
        yield f"not counted: {'; '.join(plan.leaves_out)}", "yellow"
    if (too_large := will_not_fit(plan)) is not None:
        yield too_large, "bold red"


def _parts(moment: Moment) -> Iterator[str]:
    by_size = sorted(moment.parts.items(), key=lambda entry: -entry[1])
    for part, num_bytes in by_size:
        if num_bytes >= _SHOWN_FROM * moment.total:
            yield f"{part} {_size(num_bytes)}"


def _bar(num_bytes: int, scale: int) -> Text:
    full = min(_BAR, max(1, round(_BAR * num_bytes / scale)))
    style = "red" if num_bytes > scale else "green" if num_bytes < 0.8 * scale else "yellow"
    return Text.assemble(("█" * full, style), ("░" * (_BAR - full), "dim"))


def _size(num_bytes: int) -> str:
    """Format a size with three digits. An estimate has no more precision."""
    number, unit = size(num_bytes).split()
    return f"{float(number):.3g} {unit}" if float(number) < 1000 else f"{number} {unit}"


_WHEN_READ = "known when the data is read"


def workload_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (name, line) for the workload of a plan."""
    work = plan.workload
    if plan.stage is not None:
        yield "batch", plan.stage.describe()
        yield "steps", plan.stage.describe_steps()
        if work.rows is not None:
            yield "in all", _learned(work)
    if plan.batches is not None:
        batches = plan.batches
        yield "batch", batches.describe()
        yield "steps", _steps(work, f"{batches.accumulation} x {batches.per_device} completions a device each")
        if work.completions is not None:
            yield "in all", _generated(work)
    evaluations = plan.evaluations
    if evaluations is not None:
        yield "evaluation", _evaluated(evaluations)
    else:
        kept = f"; {plan.num_held_out} rows are held out, for `rlhf eval`" if plan.num_held_out else ""
        yield "evaluation", f"none in training{kept}"
    yield "checkpoints", "none, the model at the end alone" if plan.checkpoints is None else _saved(plan.checkpoints)


def _steps(work: Workload, each: str) -> str:
    """Return `320 = 20 rounds x 16, ...`: optimizer steps as rounds times steps per round."""
    assert work.steps_a_round is not None
    if work.steps is None or work.rounds is None:
        return f"{_WHEN_READ}, {_number(work.steps_a_round)} a round"
    if work.steps_a_round == 1:
        return f"{work.steps}, a round each; {each}"
    said = f"{work.steps} = {_count(work.rounds, 'round')} x {_number(work.steps_a_round)}; {each}"
    return said + ("" if work.rounds.is_integer() else "; the last round is not learned from whole")


def _generated(work: Workload) -> str:
    parts = [f"{work.completions} completions", f"{work.prompts} prompts"]
    said = " of ".join(parts)
    if work.epochs is not None:
        said += f" ({_number(work.epochs)} times the data)"
    if work.max_tokens is not None:
        said += f", {_tokens(work.max_tokens)} generated at most"
    if work.longest_prompt is not None:
        said += f"; the longest prompt has {_count(work.longest_prompt, 'token')}"
    return said


def _learned(work: Workload) -> str:
    said = f"{work.rows} rows"
    if work.max_tokens is not None:
        said += f", {_tokens(work.max_tokens)} at most"
    return said + (f"; the longest row has {_count(work.longest_row, 'token')}" if work.longest_row else "")


def _evaluated(found: Evaluations) -> str:
    said = found.every + _times(found.times)
    rows = f"{found.rows} rows" if found.rows is not None else "all held-out rows"
    return f"{said}: {rows}" + (f", {found.completions} completions" if found.completions is not None else "")


def _saved(found: Checkpoints) -> str:
    said = found.every + _times(found.times)
    if found.space is None:
        return said + "; how large is known when the model is here"
    at_once = f", at most {found.space.copies} at a time" if found.space.copies else ""
    return f"{said}: {size(found.space.checkpoint)} each{at_once}; the model at the end {size(found.space.model)}"


def _times(number: int | None) -> str:
    if number is None:
        return ""
    return ", once" if number == 1 else f", {number} times"


def _count(number: float, noun: str) -> str:
    return f"{_number(number)} {noun}{'' if number == 1 else 's'}"


def _number(number: float) -> str:
    return f"{number:.4g}" if number < 10000 else f"{number:.0f}"


def _tokens(number: int) -> str:
    """Return `61 thousand tokens`, rounded up, because it follows "at most"."""
    for unit, name in ((10**9, " thousand million"), (10**6, " million"), (10**3, " thousand")):
        if number >= 10 * unit:
            return f"{-(-number // unit)}{name} tokens"
    return f"{number} tokens"
