"""Check that this machine has what a run needs: GPUs, packages, a vLLM server, a meeting place, room on the disk."""

from __future__ import annotations

import json
import os
import shutil
import socket
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import cast, get_args
from urllib.parse import urlsplit

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.rules.launch_rules import NAMES_A_SERVER, rollout_warnings
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, Prose, RewardError, RunError, UserError
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.devices import (
    FIRST_WITH_BF16,
    compute_capabilities,
    count_processes,
    is_left_to_a_node,
    may_have_other_gpus,
    runs_on_cpu,
    uses_gpu,
    visible_gpus,
)
from rlhf_cli.plan.network import meeting_place, own_host, why_not_reached
from rlhf_cli.plan.rollout_server_plan import INSTALL_VLLM
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.workload import space_problems
from rlhf_cli.tables.strategies import STRATEGIES

_RUNS_CODE = "rlhf_cli.rewards.code:"
_VLLM_PORT = 8000
_MODELS_TIMEOUT_S = 2.0
_OVERRIDING = (
    *("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM"),
    *("ACCELERATE_USE_PARALLELISM_CONFIG", "ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION"),
)
"""Variables by which accelerate would change what `launch` says."""


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
    if is_left_to_a_node(launch) or (may_have_other_gpus() and not there):
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
    training = 0 if on_cpu else count_processes(launch.processes, launch.device, rollout_gpus=serving)
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


def launch_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Check the rest of `launch` on this machine: variables, the vLLM server, accelerate's file.

    accelerate needs seconds to translate its file.
    """
    launch, where = experiment.launch, composed.origins.where
    for name in _OVERRIDING:
        value = os.environ.get(name, "no").lower()
        is_ours = name == "ACCELERATE_MIXED_PRECISION" and value in (launch.precision, "no")
        if value not in ("no", "false", "0", "") and not is_ours:
            yield ConfigError(
                f"{name} in the environment would change what `launch` says",
                where=where("launch"),
                got=f"{name}={os.environ[name]}",
                hint=f"unset {name}",
            )
    if launch.rollout.startswith("vllm"):
        from rlhf_cli.plan.rollout_server_plan import vllm_problems

        yield from vllm_problems(experiment, composed.origins)
        yield from _foreign_server_problems(experiment, composed)
        context.notices += [Notice("launch", line) for line in rollout_warnings(experiment)]
    if launch.accelerate_config is not None:
        from rlhf_cli.config.accelerate_file import KEY, accelerate_environment

        context.files[KEY] = Path(launch.accelerate_config).expanduser().resolve()
        context.accelerate_env = accelerate_environment(context.files[KEY], where=where(KEY))


def _foreign_server_problems(experiment: Experiment, composed: Composed) -> Iterator[UserError]:
    """Yield an error if the vLLM server that the experiment names does not answer, or serves another model."""
    launch, args = experiment.launch, experiment.trainer.args
    name = next((name for name in NAMES_A_SERVER if args.get(name) is not None), None)
    if launch.rollout != "vllm_server" or launch.rollout_gpus or name is None or experiment.model.build is not None:
        return
    given = args.get("vllm_server_port", _VLLM_PORT)
    host, port = str(args[name]), given if isinstance(given, int) else _VLLM_PORT
    url = f"http://{host}:{port}"
    if name == "vllm_server_base_url":
        parts = urlsplit(host if "//" in host else f"//{host}")
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        url = f"{parts.scheme or 'http'}://{host}:{port}"
    reason = why_not_reached(host, port)
    if reason is not None:
        yield ConfigError(
            "no vLLM server answers",
            where=composed.origins.where(f"trainer.args.{name}"),
            got=f"{host}:{port}: {reason}",
            expected="a server that runs: docs/how-to/launch.md has the command",
            hint=Prose("launch.rollout_gpus=1 without this argument, and the run starts its own"),
        )
        return
    path, served = experiment.model.path, _served_models(url)
    # The same model may lie in another folder on another machine.
    if served and Path(str(path)).name not in {Path(one).name for one in served}:
        yield ConfigError(
            "the vLLM server serves another model",
            where=composed.origins.where(f"trainer.args.{name}"),
            got=f"{', '.join(served)} at {url}",
            expected=f"model.path={path}, whose weights TRL sends there",
            hint=Prose(
                f"vllm serve {path} ... (docs/how-to/launch.md), or, if it is the same model, --served-model-name"
            ),
        )


def _served_models(url: str) -> list[str]:
    """Return the names and folders of the models of a vLLM server; empty if it does not say them."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/v1/models", timeout=_MODELS_TIMEOUT_S) as answer:
            models = json.load(answer)["data"]
        return list(dict.fromkeys(str(one[key]) for one in models for key in ("id", "root") if key in one))
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return []


def meeting_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if the machines of a run cannot meet at this one. The port is free again afterwards."""
    launch = experiment.launch
    text = (
        f"the {launch.nodes} machines talk through ports without a password, and exchange pickles: "
        "anyone who reaches these ports can run code there. Use a network of trusted machines only"
    )
    context.notices.append(Notice("launch", text))
    place = meeting_place(launch.rdzv) if launch.rdzv is not None else None
    if place is None or launch.slurm is not None:
        return
    try:
        reason = None
        if place.is_own_alone():
            reason = f"that is {socket.gethostbyname(place.host)}, which leads every machine to itself"
        else:
            place.listen().close()
    except OSError as error:
        reason = error.strerror or str(error)
    if reason is not None:
        yield ConfigError(
            "the machines cannot meet at launch.rdzv",
            where=composed.origins.where("launch.rdzv"),
            got=f"{place}: {reason}",
            expected="an address of this machine that the others reach, with a free port",
            hint=f"launch.rdzv={own_host()}:{place.port + 1}, or rlhf join {place}",
        )


def sandbox_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if model-written code cannot run here, or not as safely as its reward requires.

    Skipped for Slurm, whose node is another machine. Trying the sandbox takes half a second, only if such a reward
    exists.
    """
    for name, reward in experiment.rewards.items():
        if not str(reward.fn).startswith(_RUNS_CODE) or experiment.launch.slurm is not None:
            continue
        from rlhf_cli.rewards.stack.argument_values import anchored
        from rlhf_cli.services.sandbox import running

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
    least = min(compute_capabilities(shutil.which("nvidia-smi")), default=FIRST_WITH_BF16)
    if least < FIRST_WITH_BF16:
        text = f"a GPU of compute capability {least:g} has no bf16 and emulates it, slowly; launch.precision=fp16"
        context.notices.append(Notice("precision", text))


def rollout_notice(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note that a model which vLLM could serve generates by itself on a GPU."""
    if uses_gpu(experiment.launch):
        text = "the model itself generates (launch.rollout=hf), which is the slow way on a GPU"
        context.notices.append(Notice("rollout", f"{text}; {INSTALL_VLLM}, then launch.rollout=vllm"))


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
            hint="run.root=SOMEWHERE_ELSE" if run is None else Prose(f"cp -r {folder} SOMEWHERE_ELSE, and resume that"),
        )
    problems, notice = space_problems(experiment, context.steps, context.folder)
    yield from problems
    if notice is not None:
        context.notices.append(Notice("disk", notice))
