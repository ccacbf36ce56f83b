"""Check that this machine has what a run needs: GPUs, packages, a vLLM server, room on the disk, time."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast, get_args

from rlhf_cli.config.origins import Origins
from rlhf_cli.errors import ConfigError, RewardError, RunError
from rlhf_cli.plan import devices
from rlhf_cli.plan import rollout_server_plan as servers
from rlhf_cli.plan.checks.facts import Check, Findings, Subject
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.workload import space_problems
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.text.json_values import JsonTree, section

_OVERRIDING = "USE_FSDP USE_DEEPSPEED USE_MEGATRON_LM USE_PARALLELISM_CONFIG USE_CPU MIXED_PRECISION"
"""Ends of the variables by which accelerate would change what `launch` says."""


def gpu_problems(subject: Subject) -> Findings:
    """Yield an error for GPUs that this machine lacks, and for variables of accelerate's that would change `launch`.

    Which GPUs there are for a Slurm job, its node decides.
    """
    launch, there, where = subject.experiment.launch, len(devices.visible_gpus()), subject.where
    on_cpu = devices.runs_on_cpu(launch)
    for name in (f"ACCELERATE_{end}" for end in _OVERRIDING.split()):
        value = os.environ.get(name, "no").lower()
        is_ours = name == "ACCELERATE_MIXED_PRECISION" and value in (launch.precision, "no")
        if value not in ("no", "false", "0", "") and not is_ours:
            what, got = f"{name} in the environment would change what `launch` says", f"{name}={os.environ[name]}"
            yield ConfigError(what, where=where("launch"), got=got, hint=f"unset {name}")
    for key, value, is_refused, on_a_cpu, instead in (
        ("strategy", launch.strategy, not STRATEGIES[launch.strategy].runs_on_cpu, "accelerate runs plain DDP", "ddp"),
        ("rollout", launch.rollout, launch.rollout.startswith("vllm"), "TRL sends vLLM no weights", "hf"),
    ):
        if on_cpu and is_refused:
            what, got = f"launch.{key}={value} needs a GPU", f"a CPU, on which {on_a_cpu}"
            yield ConfigError(what, where=where(f"launch.{key}"), got=got, hint=f"launch.{key}={instead}")
    if devices.is_left_to_a_node(launch) or (devices.OTHER_GPUS.exists() and not there):
        return
    rewards = {f"rewards.{name}.device": reward.device for name, reward in subject.experiment.rewards.items()}
    for key, device in {"launch.device": launch.device, **rewards}.items():
        kind, _, number = str(device).partition(":")
        if kind == "cuda" and int(number or 0) >= there:
            got = f"{key}={device}, but {there} GPUs by nvidia-smi or CUDA_VISIBLE_DEVICES"
            hint = "launch=cpu" if key == "launch.device" else f"{key}=cpu"
            yield ConfigError("this machine has no such CUDA device", where=where(key), got=got, hint=hint)
    if launch.device == "cuda" and not there:
        return
    serving = launch.rollout_gpus
    training = 0 if on_cpu else devices.count_processes(launch)
    if training + serving > there:
        what, key = "the run needs more GPUs than this machine has", "rollout_gpus" if serving else "processes"
        got = f"{training} to train on" + (f" and {serving} for the vLLM server" if serving else "")
        expected = f"at most {there}, by nvidia-smi or CUDA_VISIBLE_DEVICES"
        hint = f"launch.processes={there - serving}" if there > serving else "launch.rollout=hf launch.rollout_gpus=0"
        yield ConfigError(what, where=where(f"launch.{key}"), got=got, expected=expected, hint=hint)


def launch_problems(subject: Subject) -> Check[dict[str, str]]:
    """Yield a notice for bf16 on a GPU that emulates it, for a GPU model that vLLM could serve, and for a network; and
    an error for a vLLM that cannot serve the run.

    Return the variables that accelerate makes of its file.
    """
    experiment, launch, where = subject.experiment, subject.experiment.launch, subject.where
    if launch.precision == "bf16" and launch.slurm is None and not devices.runs_on_cpu(launch):
        least = min(devices.compute_capabilities(), default=devices.FIRST_WITH_BF16)
        if least < devices.FIRST_WITH_BF16:
            text = f"a GPU of compute capability {least:g} has no bf16 and emulates it, slowly; launch.precision=fp16"
            yield Notice("precision", text)
    can_be_served = launch.rollout == "hf" and experiment.trainer.row.generates and experiment.model.build is None
    if can_be_served and devices.uses_gpu(launch):
        install = f"{servers.INSTALL_VLLM}, then " if servers.installed_vllm() is None else ""
        text = "launch.rollout=hf generates with the model itself, which is slow on a GPU"
        yield Notice("rollout", f"{text}; {install}launch.rollout=vllm")
    if launch.nodes > 1:
        text = f"the {launch.nodes} machines exchange pickles through ports without a password, so whoever reaches"
        yield Notice("launch", f"{text} them can run code there. Use a network of trusted machines only")
    if launch.rollout.startswith("vllm"):
        from rlhf_cli.config.rules.launch_rules import rollout_warnings

        yield from servers.vllm_problems(experiment, subject.composed.origins)
        yield from (Notice("launch", line) for line in rollout_warnings(experiment))
    if launch.accelerate_config is not None:
        from rlhf_cli.config.accelerate_file import KEY, accelerate_environment

        return accelerate_environment(Path(launch.accelerate_config).expanduser().resolve(), where=where(KEY))
    return {}


def sandbox_problems(subject: Subject) -> Findings:
    """Yield an error if model-written code cannot run here, or not as safely as its reward requires.

    Trying the sandbox takes half a second.
    """
    experiment = subject.experiment
    if devices.is_left_to_a_node(experiment.launch):
        return
    for name, reward in experiment.rewards.items():
        if not str(reward.fn).startswith("rlhf_cli.rewards.code:"):
            continue
        from rlhf_cli.rewards.stack.reward_functions import anchored
        from rlhf_cli.services.sandbox import running

        isolation = reward.args.get("isolation", "auto")
        if isolation not in get_args(running.Isolation):
            continue  # the check of its signature reports this
        try:
            running.protections(cast(running.Isolation, isolation))
        except RewardError as error:
            yield anchored(error, args_key=f"rewards.{name}.args", place=subject.where)


DEADLINE = ("launch", "must_save_by")


def has_passed(deadline: str, *, grace_s: float = 0.0) -> bool:
    """Return whether `launch.must_save_by` lies in the past, or less than the grace period ahead."""
    return datetime.fromisoformat(deadline).astimezone() <= datetime.now().astimezone() + timedelta(seconds=grace_s)


def without_passed_deadline(tree: JsonTree, _: Origins) -> None:
    """Remove a deadline that has passed, in place, as a resumed run does: it was for an earlier start."""
    launch = section(tree, DEADLINE[0])
    with suppress(ValueError):  # validating reports it
        if isinstance(old := launch.get(DEADLINE[1]), str) and has_passed(old):
            launch[DEADLINE[1]] = None


def deadline_problems(subject: Subject) -> Findings:
    """Yield an error for a deadline that has passed; a resumed run forgets it (launch/resuming.py)."""
    key, deadline = "launch.must_save_by", subject.experiment.launch.must_save_by
    if deadline is not None and has_passed(deadline):
        hint = f"{key}={datetime.now() + timedelta(hours=8):%Y-%m-%dT%H:%M}, or {key}=null"
        what, expected = f"{key} has passed", "a time in the future"
        yield ConfigError(what, where=subject.where(key), got=deadline, expected=expected, hint=hint)


def folder_problems(subject: Subject, steps: int | None) -> Findings:
    """Yield an error if the run's folder cannot be written to, or if not even one checkpoint fits on the disk."""
    experiment = subject.experiment
    run = subject.folder
    folder = run or Path(experiment.run.root).expanduser().resolve()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "the run folder cannot be created" if run is None else "the run folder is not writable"
        where = "run.root" if run is None else str(folder)
        got, expected = f"{folder} is {'not writable' if folder.is_dir() else 'a file'}", "a writable folder"
        hint = "run.root=SOMEWHERE_ELSE" if run is None else None
        advice = None if run is None else f"cp -r {shlex.quote(str(folder))} SOMEWHERE_ELSE, and resume the copy"
        yield RunError(what, where=where, got=got, expected=expected, hint=hint, advice=advice)
    yield from space_problems(subject.folders, steps, run)
