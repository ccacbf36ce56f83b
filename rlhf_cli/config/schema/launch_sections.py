"""The sections `launch` and `sweep`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from rlhf_cli.config.schema.section import OFF, Seconds, Section
from rlhf_cli.tables.strategies import STRATEGIES

if TYPE_CHECKING:
    StrategyName: TypeAlias = str
else:  # the words come from the table
    StrategyName = Literal[tuple(STRATEGIES)]


def _job_time(value: object) -> object:
    """Refuse a number: YAML reads 4:00:00 without quotes as 14400, which sbatch would take for minutes."""
    if isinstance(value, int | float):
        raise ValueError("hours:minutes:seconds, in quotes: YAML reads 4:00:00 without them as the number 14400")
    return value


def _iso_time(value: str) -> str:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("an ISO time such as 2026-12-01T06:00, in this machine's zone unless it names one") from None
    return value


class Slurm(Section):
    """What a run requests from Slurm, in sbatch's words; null leaves a setting to the cluster.

    `partition`, `account` and `qos` are names that the cluster defines. `gpus_per_node`, `cpus_per_task` (one task a
    node) and `mem_gb` (a node) are what a job gets. `time` is the time limit of a job as sbatch reads it (`4:00:00`,
    `2-00:00:00`); a run that needs longer saves, is requeued and continues. `setup` holds shell lines to run first on
    every node (`module load cuda`). `extra` holds sbatch options that have no key here, `true` for one without a value.
    `max_parallel` is the number of jobs of a sweep's array that run at once.
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


class Vllm(Section):
    """The vLLM server that a run starts. `args` holds options of `vllm serve` that have no key elsewhere.

    `enforce_eager: true` becomes `--enforce-eager`, `false` becomes `--no-...`, and a mapping becomes JSON.
    """

    args: dict[str, JsonValue] = Field(default_factory=dict)


class Launch(Section):
    """The processes of a run and the hardware they use.

    `processes` is the number of processes on one machine; `auto` starts one for each GPU. `nodes` is the number of
    machines; torchrun or another launcher starts `rlhf train` on each, and sets both numbers. `device: auto` uses the
    GPU if there is one. `precision: auto` is bf16 on a GPU that supports it, else float32.

    `strategy` says how the model is sharded: not at all (`ddp`), weights, gradients and optimizer (`fsdp2`, `zero3`),
    gradients and optimizer (`zero2`), or the optimizer only (`zero1`). `offload` keeps in host memory what is not in
    use. `accelerate_config` is a file written by `accelerate config`; it supplies every setting of this section that is
    left unset.

    `rollout` chooses what generates: the model itself (`hf`), the model with continuous batching (`continuous`), vLLM
    inside each process (`vllm`), or a vLLM server (`vllm_server`). `rollout_gpus` is the number of GPUs of that server,
    and `vllm` holds its options.

    `slurm` submits the run to Slurm; null runs it here. `grace_s` is how many seconds a run that has to stop (SIGTERM,
    SIGUSR1, Ctrl-C) may take to finish its step and save. `must_save_by` is an ISO time by which the run has to be
    saved. `hang_timeout_s` is the number of seconds without progress after which a run is ended, with the stack of the
    process that hangs; `off` disables this.
    """

    processes: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    nodes: int = Field(default=1, gt=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    strategy: StrategyName = "ddp"
    offload: bool = False
    accelerate_config: str | None = None
    rollout: Literal["hf", "continuous", "vllm", "vllm_server"] = "hf"
    rollout_gpus: int = Field(default=0, ge=0)
    vllm: Vllm = Field(default_factory=Vllm)
    slurm: Slurm | None = None
    grace_s: float = Field(default=120, gt=0)
    must_save_by: Annotated[str, AfterValidator(_iso_time)] | None = None
    hang_timeout_s: Annotated[Seconds | Literal["off"], OFF] = 1800.0


class Sweep(Section):
    """A search over settings, which `rlhf train -m` runs instead of a grid.

    `objective` names the metrics of metrics.jsonl to maximise; a `-` in front minimises, and several objectives give a
    Pareto front. `space` maps a key, in which `rewards.*.weight` means the weight of every reward, to its values:
    `interval(0, 1)`, `tag(log, interval(1e-6, 1e-4))`, `range(1, 9)` or `choice(a, b)`; the same expressions typed on
    the command line are searched as well. `sampler` proposes settings: `tpe` (Optuna's default), `random`, or `nsga2`
    for Pareto fronts. `trials` is the number of runs. `prune` stops trials that do worse than others at the same step:
    `median`, or `halving`, which keeps a third of them at every rung; `off` lets all run to their end.
    """

    objective: Annotated[
        list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value), Field(min_length=1)
    ]
    space: dict[str, str] = Field(default_factory=dict)
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    trials: int = Field(default=40, gt=0)
    prune: Annotated[Literal["off", "median", "halving"], OFF] = "off"
