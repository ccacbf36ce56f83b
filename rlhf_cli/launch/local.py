"""Train a frozen run: in this process, in one process per rank, or together with other machines."""

from __future__ import annotations

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import CTRL_C
from rlhf_cli.launch.progress import TrainingScreen
from rlhf_cli.launch.rank_failures import conclude, forget_failures
from rlhf_cli.launch.stopping import preempted
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.plan.network import MeetingPlace
from rlhf_cli.process import environment
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import PREEMPTED, read_status, update_status


def run(
    folder: RunFolder, console: Console, screen: TrainingScreen, plan: LaunchPlan, launch: Launch, *, resume: bool
) -> None:
    """Train the run in `folder` to its end. Raises Preempted, RankFailed, or the worker's error in this process."""
    try:
        if plan.num_nodes > 1:
            from rlhf_cli.launch.machines import run_on_several  # imports torch, as all below

            run_on_several(folder, console, plan, launch, resume=resume)
            return
        forget_failures(folder)
        if plan.in_this_process:
            from rlhf_cli.launch.worker import run_rank

            # With several visible GPUs, one process would train on all of them with DataParallel.
            gpus = {name: value for name, value in plan.shared.items() if name == "CUDA_VISIBLE_DEVICES"}
            with environment(gpus):
                run_rank(folder, screen, resume=resume)
            return
        from rlhf_cli.launch.elastic import listening_store, run_ranks
        from rlhf_cli.launch.rollout_server import free_ports, rollout_server

        store = listening_store(MeetingPlace("127.0.0.1", 0))
        plan = plan.at_ports(store.port, *free_ports(2))
        with rollout_server(plan.server, console):
            end = run_ranks(folder, plan, launch, store=store)
        conclude(folder, end, grace_s=launch.grace_s)
    except KeyboardInterrupt as stop:
        if read_status(folder).state != PREEMPTED:  # no rank was there to write it
            update_status(folder, state=PREEMPTED, reason=str(stop) or CTRL_C)
        raise preempted(folder, str(stop)) from None
