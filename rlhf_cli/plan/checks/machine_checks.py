"""Check that a run finds what it needs: GPUs, packages, a vLLM server, room on the disk, time, and files on the hub."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import cast, get_args
from urllib.parse import urlsplit

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.launch_rules import NAMES_A_SERVER, rollout_warnings
from rlhf_cli.errors import ConfigError, DataError, ModelError, RewardError, RunError, UserError
from rlhf_cli.models.model_folders import is_hub_id
from rlhf_cli.plan import devices, launch_plan
from rlhf_cli.plan.checks.facts import Check, Findings, Subject
from rlhf_cli.plan.rank_group import why_not_reached
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.sources_and_components import eval_sources, training_sources
from rlhf_cli.plan.workload import space_problems
from rlhf_cli.rewards.stack.reward_functions import anchored
from rlhf_cli.runs.provenance import version_of
from rlhf_cli.services import hub_lookup
from rlhf_cli.services.hub_lookup import HubAnswer, HubQuestion
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.text.json_values import JsonTree, section

DEADLINE = ("launch", "must_save_by")
_PORT, _ANSWER_TIMEOUT_S = 8000, 5.0
_OVERRIDING = "USE_FSDP USE_DEEPSPEED USE_MEGATRON_LM USE_PARALLELISM_CONFIG USE_CPU MIXED_PRECISION"
"""Ends of the variables by which accelerate would change what `launch` says."""


def gpu_problems(subject: Subject) -> Findings:
    """Yield an error for GPUs that this machine lacks, unless a Slurm job's node will have them, and for variables of
    accelerate's that would change `launch`.
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
    an error for a vLLM that cannot serve the run. Return the variables that accelerate makes of its file.
    """
    experiment, launch, where = subject.experiment, subject.experiment.launch, subject.where
    if launch.precision == "bf16" and launch.slurm is None and not devices.runs_on_cpu(launch):
        least = min(devices.compute_capabilities(), default=devices.FIRST_WITH_BF16)
        if least < devices.FIRST_WITH_BF16:
            text = f"a GPU of compute capability {least:g} has no bf16 and emulates it, slowly; launch.precision=fp16"
            yield Notice("precision", text)
    can_be_served = launch.rollout == "hf" and experiment.trainer.row.generates and experiment.model.build is None
    if can_be_served and devices.uses_gpu(launch):
        install = f"{launch_plan.INSTALL_VLLM}, then " if launch_plan.installed_vllm() is None else ""
        text = "launch.rollout=hf generates with the model itself, which is slow on a GPU"
        yield Notice("rollout", f"{text}; {install}launch.rollout=vllm")
    if launch.nodes > 1:
        text = f"the {launch.nodes} machines exchange pickles through ports without a password, so whoever reaches"
        yield Notice("launch", f"{text} them can run code there. Use a network of trusted machines only")
    if launch.rollout.startswith("vllm"):
        yield from vllm_problems(subject)
        yield from (Notice("launch", line) for line in rollout_warnings(experiment))
    if launch.accelerate_config is not None:
        from rlhf_cli.config.accelerate_file import KEY, accelerate_environment

        return accelerate_environment(Path(launch.accelerate_config).expanduser().resolve(), where=where(KEY))
    return {}


def vllm_problems(subject: Subject) -> Findings:
    """Yield an error if vLLM is not installed, its version is not supported, or the model cannot be served."""
    experiment, where = subject.experiment, subject.where("launch.rollout")
    launch, model, args = experiment.launch, experiment.model, experiment.trainer.args
    version = launch_plan.installed_vllm()
    if version is None:
        got, hint = f"launch.rollout={launch.rollout}", f"{launch_plan.INSTALL_VLLM}, or launch.rollout=hf"
        expected = "vLLM 0.28 to 0.30 beside TRL; also with a server, since TRL's client imports it"
        yield ConfigError("vLLM is not installed", where=where, got=got, expected=expected, hint=hint)
    elif not launch_plan.LEAST_VLLM <= version < launch_plan.BELOW_VLLM:
        what, got = "this version of vLLM is not supported", f"vllm {version_of('vllm')}"
        expected = "0.28 to 0.30, for TRL 1.16 and torch 2.13"
        yield ConfigError(what, where=where, got=got, expected=expected, hint=launch_plan.INSTALL_VLLM)
    key, what = "model.build", "vLLM cannot serve an embedded model" if model.build is not None else ""
    if launch.rollout_gpus and Path(os.path.expanduser(str(model.path)), "adapter_config.json").is_file():
        key, what = "model.path", "vllm serve needs a whole model, but this is an adapter"
    if what:
        got, expected = str(model.path or key), "the folder or hub name of a whole model"
        hint = "model.path=FOLDER, or launch.rollout=hf"
        yield ModelError(what, where=subject.where(key), got=got, expected=expected, hint=hint)
    name = next((name for name in NAMES_A_SERVER if args.get(name) is not None), None)
    if launch.rollout != "vllm_server" or launch.rollout_gpus or name is None or model.build is not None:
        return
    host, port = str(args[name]), given if isinstance(given := args.get("vllm_server_port"), int) else _PORT
    url = f"http://{host}:{port}"
    try:
        if name == "vllm_server_base_url":
            url = host if "//" in host else f"http://{host}"
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        reason = why_not_reached(host, port)
    except ValueError as error:
        reason = str(error)
    if reason is not None:
        what, got = "no vLLM server answers", f"{host}:{port}: {reason}"
        expected = "a running server: docs/how-to/launch.md has the command"
        advice = "remove this argument and set launch.rollout_gpus=1: the run then starts its own server"
        yield ConfigError(what, where=subject.where(f"trainer.args.{name}"), got=got, expected=expected, advice=advice)
    elif (served := _served_model(url)) is None:
        yield Notice("rollout", f"{host}:{port} does not say which model it serves; compare it with model.path")
    elif PurePath(served).name.lower() != PurePath(str(model.path)).name.lower():  # folders differ between machines
        text = f"the vLLM server at {host}:{port} serves {served}, and the run trains {model.path}: it cannot load the"
        yield Notice("rollout", f"{text} run's weights unless both have the same architecture and vocabulary")


def _served_model(url: str) -> str | None:
    """Return the folder or hub name that a vLLM server was started with, None if it does not say."""
    import httpx2

    with suppress(httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError):
        root = httpx2.get(f"{url.rstrip('/')}/v1/models", timeout=_ANSWER_TIMEOUT_S).json()["data"][0]["root"]
        return str(root) if root else None
    return None


def sandbox_problems(subject: Subject) -> Findings:
    """Try the sandbox (half a second); yield an error if model-written code cannot run as safely as its reward asks."""
    experiment = subject.experiment
    if devices.is_left_to_a_node(experiment.launch):
        return
    for name, reward in experiment.rewards.items():
        if not str(reward.fn).startswith("rlhf_cli.rewards.code:"):
            continue
        from rlhf_cli.services.sandbox import running

        isolation = reward.args.get("isolation", "auto")
        if isolation not in get_args(running.Isolation):
            continue  # the check of its signature reports this
        try:
            running.protections(cast(running.Isolation, isolation))
        except RewardError as error:
            yield anchored(error, args_key=f"rewards.{name}.args", place=subject.where)


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
    yield from space_problems(subject, steps)


def hub_problems(subject: Subject) -> Check[dict[str, Path]]:
    """Yield an error for each model and dataset that cannot be had from the hub; return hub model -> cache folder."""
    experiment, teacher, cached = subject.experiment, subject.experiment.teacher, dict[str, Path]()
    model, named = experiment.model, {"model.tokenizer": experiment.model.tokenizer} | subject.named_models()
    paths = {key: path for key, path in named.items() if path is not None and not Path(path).expanduser().exists()}
    data = [source for source in (*training_sources(experiment), *eval_sources(experiment)) if source.is_hub]
    if not (paths or data):
        return cached
    revisions = {"model.path": model.revision, "teacher.path": teacher.revision if teacher is not None else None}
    asked = {
        key: HubQuestion("model", path, revisions.get(key), needs_weights=key != "model.tokenizer")
        for key, path in paths.items()
        if is_hub_id(path)
    }
    asked |= {f"{source.name}.path": HubQuestion("dataset", source.paths[0], source.revision) for source in data}
    for (key, question), answer in zip(asked.items(), hub_lookup.look_up(list(asked.values())), strict=True):
        if answer.folder is not None:
            cached[question.name] = answer.folder
        local = f"{key}={'FILE' if question.kind == 'dataset' else 'FOLDER'}"
        if (error := _problem(key, subject.where(key), question, answer, local)) is not None:
            yield error
    return cached


def upload_problems(subject: Subject) -> Findings:
    """Yield an error for an argument that makes the run upload something, without a network or a token."""
    args = subject.experiment.trainer.args
    for key in [f"trainer.args.{name}" for name in ("push_to_hub", "log_completions_hub_repo") if args.get(name)]:
        from huggingface_hub import get_token

        got, hint = "no token of the hub", f"'~{key}', or hf auth login"
        if (variable := hub_lookup.is_offline()) is not None:
            got, hint = f"{variable}={os.environ[variable]}", f"'~{key}', or unset {variable}"
        elif get_token() is not None:
            return
        what, expected = f"{key} cannot upload from here", "a network, and a token that may write"
        yield ConfigError(what, where=subject.where(key), got=got, expected=expected, hint=hint)


def require_on_hub(question: HubQuestion, *, where: str, local: str) -> None:
    """Raise DataError or ModelError if a repository is neither on the hub nor in the cache; `local` is what to type for
    a local file or folder instead. This waits only briefly; the libraries that load it would retry for a minute.
    """
    if (error := _problem(where, where, question, hub_lookup.look_up([question])[0], local)) is not None:
        raise error


def _problem(key: str, where: str, question: HubQuestion, answer: HubAnswer, local: str) -> UserError | None:
    name, repository, is_dataset = question.name, f"{question.kind} {question.name}", question.kind == "dataset"
    page, folder = f"https://huggingface.co/{'datasets/' * is_dataset}{name}", Path(name).absolute()
    got, expected, hint, advice = answer.detail, "", "", None
    if answer.state in ("there", "cached"):
        return None
    if answer.state == "impossible":
        what = f"{name} is neither a folder nor a valid name on the hub"
        expected = "OWNER/NAME, such as Qwen/Qwen3-0.6B, or a folder"
    elif answer.state == "missing":
        what = f"the {repository} exists neither on the hub nor as a folder"
        got, expected = f"{name}; looked for {folder}", f"the name of a {question.kind} on the hub, or a folder"
        hint = f"{local}, or hf auth login"
    elif answer.state == "no_revision":
        what, got = f"the {repository} has no revision {question.revision!r}", str(question.revision)
        revision = f"{key.rpartition('.')[0]}.revision"
        where, hint = where.replace(key, revision), f"'~{revision}'"
        expected = f"a branch, tag or commit: {page}/tree/main"
    elif answer.state == "gated":
        what, got = f"the {repository} is gated: its owner has to give you access", "no token with access"
        advice = f"accept its terms at {page}, then `hf auth login`"
    else:
        what = f"the {repository} is not in the cache, and the hub cannot be reached"
        got, expected = f"{answer.detail}; looked for {folder}", "a network, or a copy on this machine"
        hint = f"hf download {name}{' --repo-type dataset' * is_dataset}, or {local}"
        hint += f", or export {hub_lookup.TIMEOUT_VARIABLE}=20" if answer.is_silence else ""
    kind = DataError if is_dataset else ModelError
    return kind(what, where=where, got=got, expected=expected or None, hint=hint or None, advice=advice)
