"""Check the sections that say where a run runs: processes, machines, rollout engine, Slurm, strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import ConfigError, Prose, UserError
from rlhf_cli.tables.strategies import STRATEGIES, Feature

_USUAL_PORT = 29500
"""torch's default port, as in its documentation."""
_HIGHEST_PORT = 65535


def launch_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield what prevents machines from meeting, and an invalid deadline."""
    yield from _several_machines(experiment.launch, origins)
    if (deadline := experiment.launch.must_save_by) is not None and (wrong := _no_deadline(deadline)):
        yield ConfigError(
            "launch.must_save_by is no time to come",
            where=origins.where("launch.must_save_by"),
            got=f"{deadline} ({wrong})",
            expected="an ISO time, this machine's where it names no zone",
            hint=f"launch.must_save_by={datetime.now().replace(hour=23, minute=0):%Y-%m-%dT%H:%M}",
        )


def _several_machines(launch: Launch, origins: Origins) -> Iterator[UserError]:
    """Yield what prevents the machines of a run from meeting; under Slurm they find one another."""
    if launch.rdzv is not None and launch.slurm is not None:
        yield ConfigError(
            "in a job of Slurm the machines find one another",
            where=origins.where("launch.rdzv"),
            got=launch.rdzv,
            expected="no launch.rdzv beside launch.slurm",
            hint="launch.rdzv=null",
        )
    elif launch.rdzv is not None and launch.nodes == 1:
        yield ConfigError(
            "launch.rdzv is where several machines meet",
            where=origins.where("launch.rdzv"),
            got=f"{launch.rdzv} with launch.nodes=1",
            expected="launch.nodes=2 or more",
            hint="launch.nodes=2, or launch.rdzv=null",
        )
    elif launch.rdzv is not None and not 0 < int(launch.rdzv.rpartition(":")[2]) <= _HIGHEST_PORT:
        yield ConfigError(
            "launch.rdzv names no port",
            where=origins.where("launch.rdzv"),
            got=launch.rdzv,
            expected=f"a port of 1 to {_HIGHEST_PORT}",
            hint=f"launch.rdzv={launch.rdzv.rpartition(':')[0]}:{_USUAL_PORT}",
        )
    elif launch.rdzv is None and launch.nodes > 1 and launch.slurm is None:
        yield ConfigError(
            f"{launch.nodes} machines have nowhere to meet",
            where=origins.where("launch.nodes"),
            got=f"launch.nodes={launch.nodes} without launch.rdzv",
            expected="this machine's name or address as the others reach it, with a free port; or a job of Slurm",
            hint=f"launch.rdzv=HOST:{_USUAL_PORT}, or launch=slurm",
        )


def _no_deadline(text: str) -> str | None:
    """Return what is wrong with a deadline, or None if it is valid."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        return str(error)
    return "it has passed" if time.astimezone() <= datetime.now().astimezone() else None


NAMES_A_SERVER = ("vllm_server_base_url", "vllm_server_host")
"""TRL's arguments that give the address of an external vLLM server."""


def rollout_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with generation."""
    launch, args = experiment.launch, experiment.trainer.args
    if experiment.data.overlong_prompts != "error" and not experiment.trainer.row.generates:
        yield ConfigError(
            f"trainer={experiment.trainer.name} generates nothing that a prompt would have to leave room for",
            where=origins.where("data.overlong_prompts"),
            got=experiment.data.overlong_prompts,
            expected="error, which is the default; the others are for grpo, rloo, ppo",
            hint=Prose("trainer.args.max_length says what becomes of long rows"),
        )
    if launch.rollout != "hf" and not experiment.trainer.row.generates:
        yield ConfigError(
            f"trainer={experiment.trainer.name} generates nothing",
            where=origins.where("launch.rollout"),
            got=launch.rollout,
            expected="hf, which is the default; the others are for grpo, rloo, ppo",
            hint="launch.rollout=hf",
        )
        return
    if launch.rollout != "vllm_server":
        if launch.rollout_gpus:
            yield ConfigError(
                "launch.rollout_gpus is for a vLLM server",
                where=origins.where("launch.rollout_gpus"),
                got=f"{launch.rollout_gpus} with launch.rollout={launch.rollout}",
                expected="0, or a server that runs on them",
                hint="launch.rollout=vllm_server, or launch.rollout_gpus=0",
            )
        return
    named = [f"trainer.args.{name}" for name in NAMES_A_SERVER if args.get(name) is not None]
    if launch.rollout_gpus and named:
        yield ConfigError(
            "there would be two vLLM servers",
            where=origins.where(named[0]),
            got=f"{named[0]}, and launch.rollout_gpus={launch.rollout_gpus} starts one",
            expected="one of them",
            hint=f"launch.rollout_gpus=0, or '~{named[0]}'",
        )
    if not launch.rollout_gpus and not named:
        yield ConfigError(
            "there is no vLLM server to generate",
            where=origins.where("launch.rollout"),
            got="vllm_server with launch.rollout_gpus=0, and no trainer.args.vllm_server_base_url",
            expected="GPUs for a server of this run, or the address of one that runs",
            hint="launch.rollout_gpus=1, or trainer.args.vllm_server_base_url=http://HOST:8000",
        )
    if launch.rollout_gpus and launch.nodes > 1:
        yield ConfigError(
            "a vLLM server of this run's own is for one machine",
            where=origins.where("launch.rollout_gpus"),
            got=f"{launch.rollout_gpus} with launch.nodes={launch.nodes}",
            expected="a server that all machines reach",
            hint="launch.rollout_gpus=0 trainer.args.vllm_server_base_url=http://HOST:8000",
        )


def rollout_warnings(experiment: Experiment) -> list[str]:
    """Return a warning if vLLM's importance ratio is biased: its probabilities are truncated by the sampler, the
    trainer's are not.
    """
    args, trainer = experiment.trainer.args, trl_args.trainer(experiment.trainer.trl)
    if not experiment.launch.rollout.startswith("vllm"):
        return []
    if not trl_args.setting(trainer, args, "vllm_importance_sampling_correction"):
        return []
    neutral: dict[str, tuple[object, ...]] = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}
    cut = [f"{name}={args[name]}" for name, values in neutral.items() if name in args and args[name] not in values]
    if not cut:
        return []
    return [
        f"{', '.join(cut)}: vLLM's probabilities are cut by it and the trainer's are not, so the importance ratio is"
        " biased (github.com/huggingface/trl/issues/6789); it is not with top_p=1, top_k=0 and min_p=0"
    ]


_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+)(?::(?P<day_seconds>\d+))?)?"
    r"|(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)"
    r"|(?P<only_minutes>\d+))"
)
"""The forms of sbatch's --time: D-H, D-H:M, D-H:M:S, H:M:S, M:S and M."""

_HAS_A_KEY = {
    "partition": "launch.slurm.partition",
    "account": "launch.slurm.account",
    "qos": "launch.slurm.qos",
    "time": "launch.slurm.time",
    "gpus-per-node": "launch.slurm.gpus_per_node",
    "cpus-per-task": "launch.slurm.cpus_per_task",
    "mem": "launch.slurm.mem_gb",
    "nodes": "launch.nodes",
    "signal": "launch.grace_s",
}
_OURS = (
    *("array", "comment", "error", "export", "job-name", "no-requeue", "ntasks", "ntasks-per-node", "open-mode"),
    *("output", "parsable", "requeue", "test-only", "wait", "wrap"),
)


def slurm_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `launch.slurm`."""
    launch = experiment.launch
    if launch.slurm is None:
        return
    if launch.slurm.time is not None:
        yield from _time_problems(launch.slurm.time, launch.grace_s, origins)
    for name in launch.slurm.extra:
        option = name.lstrip("-").replace("_", "-")
        where = origins.where(f"launch.slurm.extra.{name}")
        if option in _HAS_A_KEY:
            key = _HAS_A_KEY[option]
            yield ConfigError(f"sbatch's --{option} has a key of its own", where=where, expected=key, hint=f"{key}=...")
        elif option in _OURS:
            yield ConfigError(
                f"sbatch's --{option} is what a run is submitted with",
                where=where,
                expected="an option that says where or as whom a job runs, such as constraint, reservation, nodelist",
                hint=f"~launch.slurm.extra.{name}",
            )


def _time_problems(time: str, grace_s: float, origins: Origins) -> Iterator[UserError]:
    where = origins.where("launch.slurm.time")
    allowed_s = seconds(time)
    if allowed_s is None:
        yield ConfigError(
            "that is no time as sbatch reads it",
            where=where,
            got=time,
            expected="hours:minutes:seconds, days-hours:minutes:seconds, or minutes",
            hint="launch.slurm.time=4:00:00",
        )
    elif allowed_s <= grace_s:
        yield ConfigError(
            "a job would be told to save before it has begun",
            where=where,
            got=f"{time} is {allowed_s:g} s, and launch.grace_s={grace_s:g} of them are for saving",
            expected="a time that is much longer than launch.grace_s",
            hint="launch.slurm.time=4:00:00",
        )


def seconds(time: str) -> int | None:
    """Return the seconds that sbatch's --time means, or None if the text has another form."""
    match = _TIME.fullmatch(time.strip())
    if match is None:
        return None
    part = {name: int(value) for name, value in match.groupdict().items() if value is not None}
    days, hours = part.get("days", 0), part.get("day_hours", part.get("hours", 0))
    minutes = part.get("day_minutes", part.get("minutes", part.get("only_minutes", 0)))
    return ((days * 24 + hours) * 60 + minutes) * 60 + part.get("day_seconds", part.get("seconds", 0))


def strategy_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every feature of the experiment that does not work with its strategy, with an alternative."""
    row = STRATEGIES[experiment.launch.strategy]
    there = features(experiment)
    without_file = "launch.accelerate_config=null " if experiment.launch.accelerate_config is not None else ""
    for conflict in row.conflicts:
        if conflict.feature in there:
            key = there[conflict.feature]
            yield ConfigError(
                f"{conflict.feature} does not work with launch.strategy={row.name}",
                where=origins.where(key),
                got=f"{key} and {origins.where('launch.strategy')}",
                expected=f"something else: {conflict.why}",
                hint=conflict.instead.replace("launch.strategy=", f"{without_file}launch.strategy="),
            )


def features(experiment: Experiment) -> dict[Feature, str]:
    """Return feature -> the key that enables it, for the features that some strategy does not support."""
    there: dict[Feature, str] = {}
    critic = experiment.critic
    if critic is not None and critic.share == "lora":
        there["critic.share=lora"] = "critic.share"
    if critic is not None and critic.warmup_steps:
        there["critic.warmup_steps"] = "critic.warmup_steps"
    if experiment.model.quantize is not None:
        there["model.quantize"] = "model.quantize"
    if experiment.trainer.args.get("sync_ref_model") is True:
        there["sync_ref_model"] = "trainer.args.sync_ref_model"
    if experiment.launch.rollout == "continuous":
        there["rollout=continuous"] = "launch.rollout"
    if experiment.launch.offload:
        there["offload"] = "launch.offload"
    return there
