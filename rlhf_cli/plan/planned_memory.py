"""Plans the memory of one device of a run: what the experiment and its data say, given to the estimate."""

from __future__ import annotations

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.memory.estimate import memory_plan
from rlhf_cli.memory.moments import MemoryPlan
from rlhf_cli.memory.run_load import Lengths, run_load
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.device_memory import gpu_bytes, host_bytes
from rlhf_cli.plan.devices import num_gpus
from rlhf_cli.plan.longest_rows import longest_rows


def planned_memory(experiment: Experiment, known: Known) -> MemoryPlan:
    """Return what a process needs of its device, after the data and the batches were looked at."""
    batches = known.batches
    completions = batches.per_device * batches.steps_per_generation if batches is not None else 0
    lengths = longest_rows(experiment, known.sources)
    load = run_load(experiment, lengths or Lengths(0, 0, 0), completions)
    if not load.tokens:
        return MemoryPlan(unknown="how long the rows are is known when they are read")
    on_gpu = uses_gpu(experiment)
    local = max(1, known.processes // experiment.launch.nodes)
    host = host_bytes()
    plan = memory_plan(
        experiment,
        load,
        processes=known.processes,
        on_gpu=on_gpu,
        bf16=experiment.launch.precision == "bf16" or (on_gpu and experiment.launch.precision == "auto"),
        device_bytes=(gpu_bytes() if experiment.launch.slurm is None else None) if on_gpu else host and host // local,
    )
    return plan


def uses_gpu(experiment: Experiment) -> bool:
    """Return whether a run computes on GPUs: those of this machine, or those that Slurm is asked for."""
    launch = experiment.launch
    if launch.device != "auto":
        return launch.device == "cuda"
    if launch.slurm is not None:
        return bool(launch.slurm.gpus_per_node)
    return num_gpus() > 0
