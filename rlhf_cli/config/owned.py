"""Lists the TRL arguments that are set in our own sections instead, so that no setting exists in two places."""

from __future__ import annotations

OWNED: dict[str, str] = {
    "reward_weights": "rewards.NAME.weight",
    "multi_objective_aggregation": "aggregate=sum, or aggregate=normalize_then_sum",
    "mask_truncated_completions": "truncation=exclude",
    "center_rewards_coefficient": "reward_model.center",
    "seed": "seed",
    "data_seed": "seed",
    "output_dir": "run.root, or run.name",
    "run_name": "run.name",
    "resume_from_checkpoint": "run.resume=auto, or rlhf resume RUN",
    "report_to": "track=wandb, or rlhf list track",
    "bf16": "launch.precision",
    "fp16": "launch.precision",
    "use_cpu": "launch.device",
    "fsdp": "launch.strategy=fsdp2",
    "fsdp_config": "launch.strategy=fsdp2, or launch.accelerate_config=FILE",
    "deepspeed": "launch.strategy=zero2, or launch.accelerate_config=FILE",
    "parallelism_config": "launch.accelerate_config=FILE",
    "ddp_backend": "launch.device",
    "use_vllm": "launch.rollout=vllm, or launch.rollout=vllm_server launch.rollout_gpus=1",
    "vllm_mode": "launch.rollout=vllm, or launch.rollout=vllm_server launch.rollout_gpus=1",
    "use_transformers_continuous_batching": "launch.rollout=continuous",
    "use_transformers_paged": "launch.rollout=continuous",
    "model_init_kwargs": "model.dtype, or model.revision",
    "trust_remote_code": "model.trust_remote_code=true",
    "hub_token": "export HF_TOKEN=...",
    "push_to_hub_token": "export HF_TOKEN=...",
}
"""Maps a TRL field to the key that replaces it."""

OWNED_WITH_A_CRITIC = {"beta": "kl.coef"}
"""The same for trainers with a critic (`trainer.baseline`); without a critic these fields stay TRL's."""


def home_of(name: str, *, has_critic: bool) -> str | None:
    """Return the key that replaces a TRL argument, or None if it may be set under `trainer.args`."""
    return OWNED.get(name) or (OWNED_WITH_A_CRITIC.get(name) if has_critic else None)
