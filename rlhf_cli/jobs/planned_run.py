"""Build the plan object that `rlhf check --json` and `rlhf train --dry-run --json` print."""

from __future__ import annotations

import os

from rlhf_cli.jobs.prepare import Prepared
from rlhf_cli.launch.freeze import experiment_name, planned_folder
from rlhf_cli.plan.launch_plan import as_shell, plan_launch
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder


def planned_json(prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> dict[str, object]:
    """Return the plan of a run, its folder and its ranks' commands; `earlier` is the run that would be resumed."""
    experiment, composed = prepared.experiment, prepared.composed
    folder = earlier.path if earlier is not None else planned_folder(experiment, composed)
    launch = plan_launch(experiment, folder, resume=earlier is not None, accelerate_env=plan.machine.accelerate_env)
    return {
        "experiment": experiment_name(composed),
        "folder": os.path.relpath(folder),
        "resumes": earlier is not None,
        "plan": plan.as_json(),
        "launch": {
            "in_this_process": launch.in_this_process,
            "nodes": launch.num_nodes,
            "world_size": launch.world_size,
            "ranks": [
                {"rank": rank.rank, "gpu": rank.gpu, "command": as_shell({**launch.shared, **rank.env}, rank.argv)}
                for rank in launch.ranks
            ],
            "server": as_shell({}, launch.server.argv) if launch.server is not None else None,
        },
    }
