"""Define the sections `launch` and `sweep`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rlhf_cli.config.schema.section import Section, seconds_or_off


def _job_time(value: object) -> object:
    """Return how long a job may take as sbatch reads it. A number is refused: YAML reads 4:00:00 as 14400."""
    if isinstance(value, int | float):
        raise ValueError("hours:minutes:seconds, in quotes: YAML reads 4:00:00 without them as the number 14400")
    return value


class Slurm(Section):
    """What is asked of Slurm for one run: sbatch's own words, null for the cluster's default.

    `partition`, `account` and `qos` are the cluster's names. `gpus_per_node`, `cpus_per_task` (a task is a node) and
    `mem_gb` (of a node) are what a job gets. `time` is the longest that a job may take, as sbatch reads it (`4:00:00`,
    `2-00:00:00`); a run that needs longer is saved, requeued and goes on. `setup` are lines of shell that run before
    ours on every node (`module load cuda`). `extra` are options of sbatch that have no key here, `true` for one without
    a value. `max_parallel` is how many jobs of a sweep's array run at once. `shared_folder` says that the nodes see
    `run.root` although its file system looks like one of this machine alone.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: Annotated[str | None, BeforeValidator(_job_time)] = None
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    cpus_per_task: Annotated[int, Field(gt=0)] | None = None
    mem_gb: Annotated[float, Field(gt=0)] | None = None
    max_parallel: Annotated[int, Field(gt=0)] = 16
    setup: list[str] = Field(default_factory=list)
    extra: dict[str, str | int | bool] = Field(default_factory=dict)
    shared_folder: bool = False


class Launch(Section):
    """The processes of a run and what they run on.

    `processes` are those of one machine: a number, or `auto` for a process on each GPU. `nodes` is the number of
    machines; the first is where `rlhf train` was typed, it waits at `rdzv` (HOST:PORT) for the others, where
    `rlhf join HOST:PORT` is typed. `device: auto` takes the GPU where there is one. `precision: auto` is bf16 on a GPU
    that supports it, else float32.

    `strategy` says what of the model every process holds: all of it (`ddp`), a shard of weights, gradients and
    optimizer (`fsdp2`, `zero3`), of gradients and optimizer (`zero2`) or of the optimizer (`zero1`); `offload` keeps in
    the host's memory what is not being used. `accelerate_config` is a file that `accelerate config` wrote, null for
    none: it decides whatever is not said here.

    `rollout` is who generates: the model itself (`hf`), itself in continuous batches (`continuous`), vLLM in every
    process (`vllm`), or a vLLM server on `rollout_gpus` GPUs of its own (`vllm_server`).

    `slurm` sends the run to Slurm, null for here. A run that is asked to stop (SIGTERM, SIGUSR1, Ctrl-C, or that it has
    to be saved by `must_save_by`, an ISO time) has `grace_s` seconds to come to the end of its step and save. A run in
    which nothing happens for `hang_timeout_s` seconds is ended, with the stack of the process that hangs; off: never.
    """

    processes: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    nodes: int = Field(default=1, gt=0)
    rdzv: str | None = Field(default=None, pattern=r"^[^\s:/]+:\d{1,5}$")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    strategy: Literal["ddp", "fsdp2", "zero1", "zero2", "zero3"] = "ddp"
    offload: bool = False
    accelerate_config: str | None = None
    rollout: Literal["hf", "continuous", "vllm", "vllm_server"] = "hf"
    rollout_gpus: int = Field(default=0, ge=0)
    slurm: Slurm | None = None
    grace_s: float = Field(default=120, gt=0)
    must_save_by: str | None = None
    hang_timeout_s: Annotated[float | Literal["off"], BeforeValidator(seconds_or_off)] = 1800.0


def _several(value: object) -> object:
    """Return a single objective as a list of one."""
    return [value] if isinstance(value, str) else value


def _off(value: object) -> object:
    """Return `off`, which YAML reads as false where a file has it without quotes, as the text."""
    return "off" if value is False else value


class Sweep(Section):
    """A search over settings, which `rlhf train -m` makes in the place of a grid.

    `objective` names metrics of metrics.jsonl; a `-` in front means less is better, several give a front instead of a
    best. `space` maps a key, in which `rewards.*.weight` stands for every reward's, to what it may be:
    `interval(0, 1)`, `tag(log, interval(1e-6, 1e-4))`, `range(1, 9)` or `choice(a, b)`; what is typed on the command
    line in these words is searched as well. `sampler` proposes `trials` of them: `tpe` (Optuna's default), `random`,
    or `nsga2` for fronts. `prune` stops trials that do worse than others at the same step: `median`, or `halving`,
    which lets a third of them go on at every rung; `off` lets all run to their end.
    """

    objective: Annotated[list[str], BeforeValidator(_several), Field(min_length=1)]
    space: dict[str, str] = Field(default_factory=dict)
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    trials: int = Field(default=40, gt=0)
    prune: Annotated[Literal["off", "median", "halving"], BeforeValidator(_off)] = "off"
