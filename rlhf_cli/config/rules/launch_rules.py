"""Check the sections that say where a run runs: rollout engine, Slurm, strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError
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
    launch, args, engine, key = experiment.launch, experiment.trainer.args, "launch.rollout", "launch.rollout_gpus"
    if not experiment.trainer.row.generates:
        return
    gpus, start, url = launch.rollout_gpus, f"{key}=1", "trainer.args.vllm_server_base_url=http://HOST:8000"
    named = next((f"trainer.args.{name}" for name in NAMES_A_SERVER if args.get(name) is not None), None)
    if launch.rollout != "vllm_server":
        if gpus:
            yield origins.error(key, f"{key} needs {engine}=vllm_server", gpus, f"{engine}=vllm_server, or {key}=0")
    elif gpus and named:
        got, hint = f"{named}, and {key}={gpus} starts one", f"{key}=0, or '~{named}'"
        yield origins.error(named, "the run would have two vLLM servers", got, hint)
    elif not gpus and not named:
        what, hint = f"{engine}=vllm_server needs a vLLM server", f"{start}, or {url}"
        expected = "GPUs for a server of this run, or the address of a running server"
        yield origins.error(engine, what, hint=hint, expected=expected)
    elif gpus and launch.nodes > 1:
        what, got = "a run on several machines cannot start a vLLM server", f"launch.nodes={launch.nodes}"
        yield origins.error(key, what, got, f"{key}=0 {url}")
    if launch.vllm.args and not gpus:
        what, got = "launch.vllm.args needs a vLLM server that the run starts", f"{engine}={launch.rollout} {key}=0"
        yield origins.error("launch.vllm.args", what, got, f"{engine}=vllm_server {start}, or '~launch.vllm.args'")
        return
    for name in launch.vllm.args:
        option = name.lstrip("-").replace("_", "-").removeprefix("no-")
        if option in _KEY_OF_SERVER_OPTION:
            ours, where = _KEY_OF_SERVER_OPTION[option], f"launch.vllm.args.{name}"
            expected = f"{ours}, which sets it" if ours else "no value: TRL's client needs its own"
            yield origins.error(where, f"rlhf itself sets vLLM's --{option}", hint=f"'~{where}'", expected=expected)


def rollout_warnings(experiment: Experiment) -> Iterator[str]:
    """Yield a warning if vLLM rounds more than float32, or truncates sampling, which biases the importance ratio."""
    args, launch = experiment.trainer.args, experiment.launch
    if (launch.rollout, launch.precision) == ("vllm", "float32"):
        yield (
            "launch.rollout=vllm computes in 16 bits even with launch.precision=float32: its log-probabilities are off"
            " by some hundredths per token; launch.rollout=vllm_server follows launch.precision"
        )
    neutral: dict[str, tuple[object, ...]] = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}
    given = args.get("generation_kwargs")
    drawn = {**args, **(given if isinstance(given, dict) else {})}
    cut = [f"{name}={drawn[name]}" for name, values in neutral.items() if name in drawn and drawn[name] not in values]
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
        too_short = f"a job of {allowed_s} s has no time to train: launch.grace_s={grace_s:g} is reserved for saving"
        what, hint = "sbatch cannot read this time" if allowed_s is None else too_short, "launch.slurm.time=4:00:00"
        expected = "hours:minutes:seconds, days-hours:minutes:seconds, or minutes"
        yield origins.error("launch.slurm.time", what, slurm.time, hint, expected=expected)
    for name in slurm.extra:
        option, key = name.lstrip("-").replace("_", "-"), f"launch.slurm.extra.{name}"
        if option in _SET_BY_US:
            expected = "an option without a key of its own under launch, such as constraint, reservation"
            yield origins.error(key, f"rlhf itself sets sbatch's --{option}", hint=f"'~{key}'", expected=expected)


def seconds(time: str) -> int | None:
    """Return the seconds of sbatch's --time: D-H, D-H:M, D-H:M:S, H:M:S, M:S or M. Return None for any other text."""
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
    without_file = "launch.accelerate_config=null " if launch.accelerate_config is not None else ""
    for feature, key, is_used in known:
        if is_used and feature in row.conflicts:
            (why, instead), got = row.conflicts[feature], f"{key} and {origins.where('launch.strategy')}"
            what = f"{feature} does not work with {_STRATEGY}{row.name}"
            hint = instead.replace(_STRATEGY, without_file + _STRATEGY)
            yield origins.error(key, what, got, hint, expected=f"another setting: {why}")
