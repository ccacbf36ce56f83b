"""Checks generation: `launch.rollout`, its GPUs, and TRL's arguments for a vLLM server."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, Prose, UserError

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
