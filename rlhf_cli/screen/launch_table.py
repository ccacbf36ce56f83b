"""Print a launch plan: which process runs on which GPU, and each command in shell syntax."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.plan.launch_plan import NODE, LaunchPlan, as_shell

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
