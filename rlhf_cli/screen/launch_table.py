"""Shows the plan of a launch: which process is on which GPU, and the command of each as a shell could run it."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell

_CHOSEN = "port 0 is replaced by a free one at the start"


def describe_launch(plan: LaunchPlan) -> str:
    """Return the plan in a line: `2 ranks on GPUs 0, 1, a vLLM server on GPU 2`."""
    if plan.in_this_process:
        return "1 process, the command itself" + _on(plan.gpus)
    machines = f" on each of {plan.num_nodes} machines" if plan.num_nodes > 1 else ""
    ranks = f"{len(plan.ranks)} rank" + ("s" if len(plan.ranks) > 1 else "") + machines + _on(plan.gpus)
    return ranks + (f", a vLLM server{_on(plan.server.gpus)}" if plan.server else "")


def show_launch(console: Console, plan: LaunchPlan) -> None:
    """Print who serves and who trains, then every command, the log files and what resumes the run."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("process", "GPU", "does", "reached at"):
        table.add_column(name, overflow="fold")
    if plan.server is not None:
        gpus = ", ".join(plan.server.gpus)
        table.add_row("vLLM server", gpus, "generates", f"{plan.server.url}, weights {plan.server.group_port}")
    for rank in plan.ranks:
        place = rank.env
        reached = "" if len(plan.ranks) == 1 else f"{place['MASTER_ADDR']}:{place['MASTER_PORT']}"
        table.add_row(f"rank {rank.rank} of {plan.world_size}", rank.gpu or "none", "trains", reached)
    console.print(table)
    if not plan.in_this_process:
        console.print(f"[dim]{_CHOSEN}[/]")
    else:
        console.print("[dim]the command trains itself: no other process is started[/]")
    if plan.num_nodes > 1:
        console.print("[dim]the other machines: the same ranks of their own, placed by the rendezvous[/]")
    if plan.server is not None:
        _say(console, "vLLM server", as_shell(plan.server.env, plan.server.argv))
    if not plan.in_this_process:
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
    """Print a line that the terminal breaks and nothing else does, so that it can be copied."""
    console.print(Text.assemble((name, "bold"), "  ", line), soft_wrap=True, highlight=False)
