"""Plans the memory of one device of a run, by passing facts about the experiment and its data to the estimate."""

from __future__ import annotations

from dataclasses import replace

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.memory.estimate import memory_plan
from rlhf_cli.memory.malloc_keeps import malloc_keeps
from rlhf_cli.memory.memory_advice import part_advice
from rlhf_cli.memory.moments import Lowering, MemoryPlan, Moment
from rlhf_cli.memory.run_load import Lengths, run_load
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.device_memory import gpu_bytes, host_bytes
from rlhf_cli.plan.devices import num_gpus
from rlhf_cli.tables.pass_modes import Passes


def planned_memory(experiment: Experiment, known: Known, lengths: Lengths | None, passes: Passes | None) -> MemoryPlan:
    """Return how much device memory a process needs, given the data and the batches.

    `passes` is how rows will go through the models. If it is None (unknown), assume TRL's way, which needs the most.
    """
    batches = known.batches
    completions = batches.per_device * batches.steps_per_generation if batches is not None else 0
    load = run_load(experiment, lengths or Lengths(0, 0), completions, passes.mode if passes is not None else "plain")
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
        malloc_keeps=not on_gpu and malloc_keeps(),
        device_bytes=(gpu_bytes() if experiment.launch.slurm is None else None) if on_gpu else host and host // local,
    )
    peak = plan.peak
    if peak is None:
        return plan
    left_out = plan.leaves_out if lengths is not None else ("prompts, whose length is not known", *plan.leaves_out)
    return replace(plan, leaves_out=left_out, cheapest=_cheapest(experiment, peak, known.processes, on_gpu=on_gpu))


def _cheapest(experiment: Experiment, peak: Moment, processes: int, *, on_gpu: bool) -> Lowering | None:
    for part in sorted(peak.parts, key=lambda part: -peak.parts[part]):
        advice = part_advice(experiment, part, world_size=processes, on_gpu=on_gpu)
        if advice is not None:
            return Lowering(part, advice.words, advice.why + (f"; now {advice.now}" if advice.now else ""))
    return None


def uses_gpu(experiment: Experiment) -> bool:
    """Return whether a run computes on GPUs: those of this machine, or those requested from Slurm."""
    launch = experiment.launch
    if launch.device != "auto":
        return launch.device == "cuda"
    if launch.slurm is not None:
        return bool(launch.slurm.gpus_per_node)
    return num_gpus() > 0
