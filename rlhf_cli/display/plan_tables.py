"""Print what a run will do: launch, memory, workload."""

from __future__ import annotations

import os

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlhf_cli.plan.batches import count
from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell
from rlhf_cli.plan.memory_estimate import PHASES, MemoryPlan
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.disk_space import size


def describe_launch(plan: LaunchPlan) -> str:
    """Return the plan in one line: `2 ranks on GPUs 0, 1, a vLLM server on GPU 2`."""
    if plan.group is not None:
        return f"rank {plan.group.rank} of {plan.world_size}, which a launcher started" + _on(plan.gpus)
    if plan.in_this_process:
        return "1 process, the command itself" + _on(plan.gpus)
    machines = f" on each of {plan.num_nodes} machines" if plan.num_nodes > 1 else ""
    ranks = f"{len(plan.ranks)} rank" + ("s" if len(plan.ranks) > 1 else "") + machines + _on(plan.gpus)
    return ranks + (f", a vLLM server{_on(plan.server.gpus)}" if plan.server else "")


def show_launch(console: Console, plan: LaunchPlan, commands: dict[str, str]) -> None:
    """Print every process with its command, the log files and the resume command.

    `commands` maps a machine of several to what starts the ranks there.
    """
    about = "port 0 is replaced by a free one at the start"
    if plan.in_this_process:
        about = "the command trains itself: no other process is started"
    elif commands:
        about = "each machine starts its own ranks"
    console.print(Text(f"{describe_launch(plan)}; {about}", style="dim"), soft_wrap=True)
    if plan.server is not None:
        _say(console, "vLLM server", as_shell(plan.server.env, plan.server.argv))
    for machine, command in commands.items():
        _say(console, machine, command)
    if not plan.in_this_process and not commands:
        _say(console, "every rank", f"export {as_shell(plan.shared)}")
        for rank in plan.ranks:
            own = {name: value for name, value in rank.env.items() if name not in plan.shared}
            _say(console, f"rank {rank.rank}", as_shell(own, rank.argv))
    logs = [plan.log, *([plan.server.log] if plan.server else [])]
    _say(console, "log", "  ".join(os.path.relpath(log) for log in logs))
    _say(console, "resume", plan.resume_command)


def _on(gpus: tuple[str, ...]) -> str:
    if not gpus:
        return ""
    return (" on GPU " if len(gpus) == 1 else " on GPUs ") + ", ".join(gpus)


def _say(console: Console, name: str, line: str) -> None:
    """Print a line without hard breaks, so that it can be copied."""
    console.print(Text.assemble((name, "bold"), "  ", line), soft_wrap=True, highlight=False)


_BAR = 20
_SHOWN_FROM = 0.01
"""Fraction of the moment's total. Smaller parts are not listed."""


def memory_bars(plan: MemoryPlan) -> RenderableType:
    """Return a heading, one line per phase with the parts of its peak, and the largest part."""
    peak = plan.peak
    if peak is None:
        return Text(f"memory: not estimated ({plan.unknown})", style="dim")
    there = plan.device.num_bytes
    device = f" ({_size(there)})" if there is not None else ""
    holder = "GPU" if plan.device.on_gpu else "process"
    heading = Text(f"memory of each {holder}{device}: the fullest moments, estimated", "dim")
    scale = there if there and there < 10 * peak.total else peak.total
    grid = Table.grid(padding=(0, 2))
    for is_folded in (False, False, False, True):
        grid.add_column(no_wrap=not is_folded)
    for phase in PHASES:
        if (moment := plan.fullest(phase)) is not None:
            by_size = sorted(moment.parts.items(), key=lambda entry: -entry[1])
            parts = [f"{part} {_size(count)}" for part, count in by_size if count >= _SHOWN_FROM * moment.total]
            grid.add_row(Text(phase, "bold"), _bar(moment.total, scale), _size(moment.total), ", ".join(parts))
    largest, most = max(peak.parts.items(), key=lambda entry: entry[1])
    below = [Text(f"most of it: {largest}, {most / peak.total:.0%} ({peak.what})", "dim")]
    if plan.leaves_out:
        below.append(Text(f"not counted: {'; '.join(plan.leaves_out)}", "yellow"))
    if plan.too_large is not None:
        below.append(Text(plan.too_large, "bold red"))
    return Group(heading, grid, *below)


def _bar(num_bytes: int, scale: int) -> Text:
    full = min(_BAR, max(1, round(_BAR * num_bytes / scale)))
    style = "red" if num_bytes > scale else "green" if num_bytes < 0.8 * scale else "yellow"
    return Text.assemble(("█" * full, style), ("░" * (_BAR - full), "dim"))


def _size(num_bytes: int) -> str:
    """Format a size with three digits. An estimate has no more precision."""
    number, unit = size(num_bytes).split()
    return f"{float(number):.3g} {unit}" if float(number) < 1000 else f"{number} {unit}"


def workload_lines(plan: Plan) -> dict[str, str]:
    """Return name -> line for the workload of a plan: batch, steps, in all, evaluation, checkpoints."""
    work, stage, batches = plan.workload, plan.stage, plan.batches
    lines: dict[str, str] = {}
    if stage is not None:
        lines |= {"batch": stage.describe(), "steps": plan.describe_steps()}
        if work.rows is not None:
            tokens = f", {_tokens(work.max_tokens)} at most" if work.max_tokens is not None else ""
            longest = f"; the longest row has {count(work.longest_row, 'token')}" if work.longest_row else ""
            lines["in all"] = f"{work.rows} rows{tokens}{longest}"
    if batches is not None:
        lines |= {"batch": batches.describe(), "steps": plan.describe_steps()}
        if work.completions is not None:
            epochs = f" ({work.epochs:.4g} times the data)" if work.epochs is not None else ""
            tokens = f", {_tokens(work.max_tokens)} generated at most" if work.max_tokens is not None else ""
            most = work.longest_prompt
            prompt = f"; the longest prompt has {count(most, 'token')}" if most is not None else ""
            lines["in all"] = f"{work.completions} completions of {work.prompts} prompts{epochs}{tokens}{prompt}"
    if (found := plan.evaluations) is not None:
        rows = f"{found.rows} rows" if found.rows is not None else "all held-out rows"
        completions = f", {found.completions} completions" if found.completions is not None else ""
        lines["evaluation"] = f"{found.every}{_times(found.times)}: {rows}{completions}"
    else:
        kept = f"; {plan.num_held_out} rows are held out, for `rlhf eval`" if plan.num_held_out else ""
        lines["evaluation"] = f"none in training{kept}"
    lines["checkpoints"] = "none, the model at the end alone"
    if (saved := plan.checkpoints) is not None:
        how_large = "; how large is known when the model is here"
        if saved.checkpoint_bytes is not None and saved.model_bytes is not None:
            at_once = f", at most {saved.at_once} at a time" if saved.at_once else ""
            how_large = (
                f": {size(saved.checkpoint_bytes)} each{at_once}; the model at the end {size(saved.model_bytes)}"
            )
        lines["checkpoints"] = f"{saved.every}{_times(saved.times)}{how_large}"
    return lines


def _times(number: int | None) -> str:
    return "" if number is None else ", once" if number == 1 else f", {number} times"


def _tokens(number: int) -> str:
    """Return `61 thousand tokens`, rounded up, because it follows "at most"."""
    for unit, name in ((10**9, " thousand million"), (10**6, " million"), (10**3, " thousand")):
        if number >= 10 * unit:
            return f"{-(-number // unit)}{name} tokens"
    return f"{number} tokens"
