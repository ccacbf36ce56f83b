"""Check that this machine has what a run needs: GPUs, packages, a vLLM server, room on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, RewardError, RunError, UserError
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.devices import (
    FIRST_WITH_BF16,
    OTHER_GPUS,
    compute_capabilities,
    count_processes,
    is_left_to_a_node,
    runs_on_cpu,
    uses_gpu,
    visible_gpus,
)
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.workload import space_problems
from rlhf_cli.tables.strategies import STRATEGIES

RUNS_CODE = "rlhf_cli.rewards.code:"


def gpu_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if the run needs GPUs that this machine does not have. For a Slurm job, its node decides."""
    launch, there, where = experiment.launch, len(visible_gpus()), composed.origins.where
    on_cpu = runs_on_cpu(launch)
    if on_cpu and not STRATEGIES[launch.strategy].runs_on_cpu:
        what, key = f"launch.strategy={launch.strategy} needs a GPU", "launch.strategy"
        got = "a CPU, on which accelerate runs plain DDP in its place without a word"
        yield ConfigError(what, where=where(key), got=got, hint=f"{key}=ddp")
    if on_cpu and launch.rollout.startswith("vllm"):
        what, key = f"launch.rollout={launch.rollout} needs a GPU", "launch.rollout"
        got = "a CPU, from which TRL cannot send new weights to vLLM (NCCL)"
        yield ConfigError(what, where=where(key), got=got, hint=f"{key}=hf")
    if is_left_to_a_node(launch) or (OTHER_GPUS.exists() and not there):
        return
    if launch.device == "cuda" and not there:
        yield ConfigError(
            "there is no CUDA device here",
            where=where("launch.device"),
            got="launch.device=cuda, and neither nvidia-smi nor CUDA_VISIBLE_DEVICES names a GPU",
            hint="launch=cpu",
        )
        return
    serving = launch.rollout_gpus
    training = 0 if on_cpu else count_processes(launch)
    if training + serving > there:
        yield ConfigError(
            "more GPUs are asked for than there are",
            where=where("launch.rollout_gpus" if serving else "launch.processes"),
            got=f"{training} to train on" + (f" and {serving} for the vLLM server" if serving else ""),
            expected=f"at most {there}, which nvidia-smi or CUDA_VISIBLE_DEVICES names",
            hint=f"launch.processes={there - serving}"
            if there > serving
            else "launch.rollout=hf launch.rollout_gpus=0",
        )


_OVERRIDING = (
    *("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM"),
    *("ACCELERATE_USE_PARALLELISM_CONFIG", "ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION"),
)
"""Variables by which accelerate would change what `launch` says."""


def environment_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for each environment variable by which accelerate would change what `launch` says."""
    for name in _OVERRIDING:
        value = os.environ.get(name, "no").lower()
        is_ours = name == "ACCELERATE_MIXED_PRECISION" and value in (experiment.launch.precision, "no")
        if value not in ("no", "false", "0", "") and not is_ours:
            yield ConfigError(
                f"{name} in the environment would change what `launch` says",
                where=composed.origins.where("launch"),
                got=f"{name}={os.environ[name]}",
                hint=f"unset {name}",
            )


def launch_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for a vLLM that cannot serve the run, and read accelerate's file, which takes seconds."""
    launch, where = experiment.launch, composed.origins.where
    if launch.rollout.startswith("vllm"):
        from rlhf_cli.config.rules.launch_rules import rollout_warnings
        from rlhf_cli.plan.rollout_server_plan import vllm_problems

        yield from vllm_problems(experiment, composed.origins)
        context.notices += [Notice("launch", line) for line in rollout_warnings(experiment)]
    if launch.accelerate_config is not None:
        from rlhf_cli.config.accelerate_file import KEY, accelerate_environment

        context.files[KEY] = Path(launch.accelerate_config).expanduser().resolve()
        context.accelerate_env = accelerate_environment(context.files[KEY], where=where(KEY))


def network_notice(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note that the network between the machines of a run must be trusted."""
    text = (
        f"the {experiment.launch.nodes} machines talk through ports without a password, and exchange pickles: "
        "anyone who reaches these ports can run code there. Use a network of trusted machines only"
    )
    context.notices.append(Notice("launch", text))


def sandbox_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if model-written code cannot run here, or not as safely as its reward requires.

    Trying the sandbox takes half a second.
    """
    from rlhf_cli.rewards.stack.argument_values import anchored
    from rlhf_cli.services.sandbox import running

    for name, reward in experiment.rewards.items():
        if not str(reward.fn).startswith(RUNS_CODE):
            continue
        isolation = reward.args.get("isolation", "auto")
        if isolation not in get_args(running.Isolation):
            continue  # the check of its signature reports this
        try:
            running.protections(cast(running.Isolation, isolation))
        except RewardError as error:
            yield anchored(error, args_key=f"rewards.{name}.args", place=composed.origins.where)


def precision_notice(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note that bf16 was requested on a GPU that emulates it slowly."""
    if runs_on_cpu(experiment.launch):
        return
    least = min(compute_capabilities(), default=FIRST_WITH_BF16)
    if least < FIRST_WITH_BF16:
        text = f"a GPU of compute capability {least:g} has no bf16 and emulates it, slowly; launch.precision=fp16"
        context.notices.append(Notice("precision", text))


def rollout_notice(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note that a model which vLLM could serve generates by itself on a GPU."""
    if uses_gpu(experiment.launch):
        from rlhf_cli.plan.rollout_server_plan import INSTALL_VLLM, installed_vllm

        text = "the model itself generates (launch.rollout=hf), which is the slow way on a GPU"
        install = f"{INSTALL_VLLM}, then " if installed_vllm() is None else ""
        context.notices.append(Notice("rollout", f"{text}; {install}launch.rollout=vllm"))


def folder_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if the run's folder cannot be written to, or if not even one checkpoint fits on the disk."""
    run = context.folder
    folder = run or Path(experiment.run.root).expanduser().resolve()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield RunError(
            "the run folder cannot be made" if run is None else "the run folder cannot be written to",
            where="run.root" if run is None else str(folder),
            got=f"{folder} is {'not writable' if folder.is_dir() else 'a file'}",
            expected="a folder that can be written to",
            hint="run.root=SOMEWHERE_ELSE" if run is None else None,
            advice=None if run is None else f"cp -r {folder} SOMEWHERE_ELSE, and resume that",
        )
    problems, notice = space_problems(experiment, context.steps, context.folder)
    yield from problems
    if notice is not None:
        context.notices.append(Notice("disk", notice))
