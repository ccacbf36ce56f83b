"""A job that can start: frozen, checked, and with planned processes."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.plan.launch_plan import LaunchPlan, plan_launch
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder


@dataclass(frozen=True)
class ReadyJob:
    """A run folder to be trained.

    `resume` continues from its newest checkpoint; `take_over` says that its last process, on another machine, is dead.
    """

    name: str
    folder: RunFolder
    experiment: Experiment
    plan: Plan
    resume: bool = False
    take_over: bool = False

    @property
    def launch(self) -> LaunchPlan:
        """Return the launch plan on the GPUs that this process sees."""
        env = self.plan.machine.accelerate_env
        return plan_launch(self.experiment, self.folder.path, resume=self.resume, accelerate_env=env)

    @property
    def is_pinned(self) -> bool:
        """Return whether it must run on specific GPUs."""
        return "CUDA_VISIBLE_DEVICES" in self.plan.machine.accelerate_env
