"""Show what a run would start: its panel, its processes, their commands, and its first rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.launch.freeze import experiment_name, planned_folder
from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell, plan_launch, torchrun_command
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from rlhf_cli.trainers.assemble.tried_rows import TriedRows


def show_plan(console: Console, prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> None:
    """Show what `run_once` would start: panel, processes, their commands. Start nothing."""
    from rlhf_cli.display.start_panel import show_launch

    folder, launch = _planned_launch(prepared, plan, earlier)
    title, place = experiment_name(prepared.composed), os.path.relpath(folder)
    show_start(console, prepared.experiment, plan, title=title, folder=place, is_whole=True)
    show_launch(console, launch, _machine_commands(prepared, launch, earlier))
    console.print("nothing was started or written")


def planned_json(prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> dict[str, object]:
    """Return the plan of a run, its folder and its ranks' commands; `earlier` is the run that would be resumed."""
    folder, launch = _planned_launch(prepared, plan, earlier)
    command = next(iter(_machine_commands(prepared, launch, earlier).values()), None)
    return {
        "experiment": experiment_name(prepared.composed),
        "folder": os.path.relpath(folder),
        "resumes": earlier is not None,
        "plan": plan.as_json(),
        "launch": {
            "in_this_process": launch.in_this_process,
            "nodes": launch.num_nodes,
            "world_size": launch.world_size,
            "ranks": [
                {"rank": rank.rank, "gpu": rank.gpu, "command": command or as_shell(rank.env, rank.argv)}
                for rank in launch.ranks
            ],
            "server": as_shell({}, launch.server.argv) if launch.server is not None else None,
        },
    }


def _machine_commands(prepared: Prepared, launch: LaunchPlan, earlier: RunFolder | None) -> dict[str, str]:
    """Return what starts the ranks of a run on several machines; {} if this command starts all of them itself."""
    if launch.num_nodes == 1 or launch.group is not None:
        return {}
    if prepared.experiment.launch.slurm is not None:
        return {"first node": launch.resume_command, "other nodes": f"srun {launch.resume_command}"}
    words = ["train", *prepared.composed.typed] if earlier is None else ["resume", earlier.shown]
    return {"every machine": torchrun_command(launch, words)}


def _planned_launch(prepared: Prepared, plan: Plan, earlier: RunFolder | None) -> tuple[Path, LaunchPlan]:
    folder = planned_folder(prepared.experiment, prepared.composed) if earlier is None else earlier.path
    is_resumed = earlier is not None
    return folder, plan_launch(prepared.experiment, folder, resume=is_resumed, accelerate_env=plan.accelerate_env)


def first_rows(experiment: Experiment, count: int) -> TriedRows:
    """Return the first `count` rows as the trainer reads them, with the scores of some answers to them."""
    from rlhf_cli.trainers.assemble.tried_rows import try_rows  # calls rewards, and loads a tokenizer

    return try_rows(experiment, count)
