"""Check the sections that say where a run runs: rollout engine, Slurm, strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables.strategies import STRATEGIES, Feature

NAMES_A_SERVER = ("vllm_server_base_url", "vllm_server_host")
"""TRL's arguments that give the address of an external vLLM server."""


_KEY_OF_SERVER_OPTION = {
    "model": "model.path",
    "revision": "model.revision",
    "tokenizer": "model.tokenizer",
    "trust-remote-code": "model.trust_remote_code",
    "dtype": "launch.precision",
    "tensor-parallel-size": "launch.rollout_gpus",
    "port": "trainer.args.vllm_server_port",
    "max-model-len": "trainer.args.vllm_max_model_length",
    "gpu-memory-utilization": "trainer.args.vllm_gpu_memory_utilization",
    "model-impl": "trainer.args.vllm_model_impl",
    **dict.fromkeys(("host", "enable-scale-out", "weight-transfer-config", "logprobs-mode", "max-logprobs")),
}
"""Options of `vllm serve` that a run sets -> the key for it; None if TRL's client needs a fixed value."""


def rollout_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with generation."""
    launch, args, trainer = experiment.launch, experiment.trainer.args, experiment.trainer
    if not trainer.row.generates:
        for key, value, usual in (
            ("data.overlong_prompts", experiment.data.overlong_prompts, "error"),
            ("launch.rollout", launch.rollout, "hf"),
            ("launch.rollout_gpus", launch.rollout_gpus, 0),
            ("launch.vllm.args", launch.vllm.args, {}),
        ):
            if value != usual and (key != "data.overlong_prompts" or not trainer.row.reads_prompts):
                what = f"trainer={trainer.name} does not use {key}"
                hint = f"{key}={usual}" if usual != {} else f"'~{key}'"
                yield ConfigError(what, where=origins.where(key), got=f"{key}={value}", hint=hint)
        return
    gpus, where = launch.rollout_gpus, origins.where("launch.rollout_gpus")
    named = next((f"trainer.args.{name}" for name in NAMES_A_SERVER if args.get(name) is not None), None)
    if launch.rollout != "vllm_server":
        if gpus:
            hint = "launch.rollout=vllm_server, or launch.rollout_gpus=0"
            yield ConfigError("launch.rollout_gpus needs launch.rollout=vllm_server", where=where, got=gpus, hint=hint)
    elif gpus and named:
        got, hint = f"{named}, and launch.rollout_gpus={gpus} starts one", f"launch.rollout_gpus=0, or '~{named}'"
        yield ConfigError("the run would have two vLLM servers", where=origins.where(named), got=got, hint=hint)
    elif not gpus and not named:
        what = "launch.rollout=vllm_server needs a vLLM server"
        expected = "GPUs for a server of this run, or the address of a running server"
        hint = "launch.rollout_gpus=1, or trainer.args.vllm_server_base_url=http://HOST:8000"
        yield ConfigError(what, where=origins.where("launch.rollout"), expected=expected, hint=hint)
    elif gpus and launch.nodes > 1:
        what, got = "a run on several machines cannot start a vLLM server", f"launch.nodes={launch.nodes}"
        hint = "launch.rollout_gpus=0 trainer.args.vllm_server_base_url=http://HOST:8000"
        yield ConfigError(what, where=where, got=got, hint=hint)
    if launch.vllm.args and not launch.rollout_gpus:
        what = "launch.vllm.args needs a vLLM server that the run starts"
        got = f"launch.rollout={launch.rollout} launch.rollout_gpus=0"
        hint = "launch.rollout=vllm_server launch.rollout_gpus=1, or '~launch.vllm.args'"
        yield ConfigError(what, where=origins.where("launch.vllm.args"), got=got, hint=hint)
        return
    for name in launch.vllm.args:
        option = name.lstrip("-").replace("_", "-").removeprefix("no-")
        if option in _KEY_OF_SERVER_OPTION:
            ours = _KEY_OF_SERVER_OPTION[option]
            what, hint = f"rlhf itself sets vLLM's --{option}", f"'~launch.vllm.args.{name}'"
            expected = f"{ours}, which sets it" if ours else "no value: TRL's client needs its own"
            yield ConfigError(what, where=origins.where(f"launch.vllm.args.{name}"), expected=expected, hint=hint)


def rollout_warnings(experiment: Experiment) -> Iterator[str]:
    """Yield a warning if vLLM's importance ratio is biased because its sampler truncates probabilities, or if vLLM
    rounds more than a float32 run does.
    """
    args, launch = experiment.trainer.args, experiment.launch
    if (launch.rollout, launch.precision) == ("vllm", "float32"):
        yield (
            "launch.rollout=vllm computes in 16 bits even with launch.precision=float32: its log-probabilities are off"
            " by some hundredths per token; launch.rollout=vllm_server follows launch.precision"
        )
    neutral: dict[str, tuple[object, ...]] = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}
    cut = [f"{name}={args[name]}" for name, values in neutral.items() if name in args and args[name] not in values]
    is_corrected = experiment.trainer.setting("vllm_importance_sampling_correction")
    if cut and is_corrected and launch.rollout.startswith("vllm"):
        yield (
            f"{', '.join(cut)}: vLLM truncates its probabilities and the trainer does not, so the importance ratio is"
            " biased (github.com/huggingface/trl/issues/6789); top_p=1, top_k=0 and min_p=0 avoid that"
        )


_SET_BY_US = (
    *("array", "comment", "error", "export", "job-name", "no-requeue", "ntasks", "ntasks-per-node", "open-mode"),
    *("output", "parsable", "requeue", "test-only", "wait", "wrap", "mem", "nodes", "signal", "partition", "account"),
    *("qos", "time", "gpus-per-node", "cpus-per-task"),
)
"""Options of sbatch that rlhf sets itself."""


def slurm_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `launch.slurm`."""
    slurm, grace_s = experiment.launch.slurm, experiment.launch.grace_s
    if slurm is None:
        return
    allowed_s = seconds(slurm.time) if slurm.time is not None else None
    if slurm.time is not None and (allowed_s is None or allowed_s <= grace_s):
        yield ConfigError(
            "sbatch cannot read this time"
            if allowed_s is None
            else f"a job of {allowed_s:g} s has no time to train: launch.grace_s={grace_s:g} is reserved for saving",
            where=origins.where("launch.slurm.time"),
            got=slurm.time,
            expected="hours:minutes:seconds, days-hours:minutes:seconds, or minutes",
            hint="launch.slurm.time=4:00:00",
        )
    for name in slurm.extra:
        option = name.lstrip("-").replace("_", "-")
        where = origins.where(f"launch.slurm.extra.{name}")
        if option in _SET_BY_US:
            what = f"rlhf itself sets sbatch's --{option}"
            expected = "an option without a key of its own under launch, such as constraint, reservation"
            yield ConfigError(what, where=where, expected=expected, hint=f"'~launch.slurm.extra.{name}'")


def seconds(time: str) -> int | None:
    """Return the seconds that sbatch's --time means, or None if the text has another form.

    The forms are D-H, D-H:M, D-H:M:S, H:M:S, M:S and M.
    """
    days, dash, clock = time.strip().rpartition("-")
    parts = clock.split(":")
    if len(parts) > 3 or not all(re.fullmatch(r"\d+", part) for part in (*parts, *([days] if dash else []))):
        return None
    numbers = [int(part) for part in parts]
    if dash:  # hours come first
        hours, minutes, rest = [*numbers, 0, 0][:3]
    else:  # a single number is minutes
        hours, minutes, rest = [0, *numbers, 0] if len(numbers) == 1 else [0, *numbers][-3:]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest


_STRATEGY = "launch.strategy="


def strategy_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every feature of the experiment that does not work with its strategy, with an alternative."""
    row, critic, launch = STRATEGIES[experiment.launch.strategy], experiment.critic, experiment.launch
    known: tuple[tuple[Feature, str, object], ...] = (
        ("critic.share=lora", "critic.share", critic is not None and critic.share == "lora"),
        ("critic.warmup_steps", "critic.warmup_steps", critic is not None and critic.warmup_steps),
        ("model.quantize", "model.quantize", experiment.model.quantize),
        ("sync_ref_model", "trainer.args.sync_ref_model", experiment.trainer.args.get("sync_ref_model") is True),
        ("rollout=continuous", "launch.rollout", launch.rollout == "continuous"),
        ("offload", "launch.offload", launch.offload),
        ("teacher", "teacher.path", experiment.teacher),
    )
    used = {feature: key for feature, key, is_used in known if is_used}
    without_file = "launch.accelerate_config=null " if launch.accelerate_config is not None else ""
    for feature in [feature for feature in row.conflicts if feature in used]:
        key, (why, instead) = used[feature], row.conflicts[feature]
        what, expected = f"{feature} does not work with launch.strategy={row.name}", f"another setting: {why}"
        got, hint = (
            f"{key} and {origins.where('launch.strategy')}",
            instead.replace(_STRATEGY, without_file + _STRATEGY),
        )
        yield ConfigError(what, where=origins.where(key), got=got, expected=expected, hint=hint)
