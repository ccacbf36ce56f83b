"""List the names that settings have in other tools or had in older TRL, and what to type instead today.
Tests check that no name is a field of today's TRL, and that what to type exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FormerName:
    """A name, the tool or version it belongs to, and what to type instead. `today` is a full key, key=value, or several
    keys separated by commas; the first key that the trainer has is used. `with_critic` replaces `today` for a trainer
    with a critic.
    """

    name: str
    whose: str
    today: str
    with_critic: str | None = None


TRANSFORMERS, TRL, OTHERS = "transformers before 5", "an older TRL", "other tools"

_TODAY: dict[str, dict[str, str]] = {
    TRANSFORMERS: {
        "launch.device=cpu": "no_cuda",
        "launch.device=auto": "use_mps_device xpu_backend",
        "run.name=NAME": "overwrite_output_dir",
        "eval_strategy": "evaluation_strategy evaluate_during_training",
        "trainer.args.accelerator_config.dispatch_batches": "dispatch_batches",
        "trainer.args.accelerator_config.split_batches": "split_batches",
        "per_device_train_batch_size": "per_gpu_train_batch_size",
        "per_device_eval_batch_size": "per_gpu_eval_batch_size",
        "launch.precision": "fp16_backend half_precision_backend fp16_opt_level",
        "launch.strategy=fsdp2": "sharded_ddp fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap",
        "hub_model_id": "push_to_hub_model_id push_to_hub_organization",
        "include_for_metrics": "include_inputs_for_metrics",
        "include_num_input_tokens_seen": "include_tokens_per_second",
        "trainer.args.optim=adafactor": "adafactor",
        "trainer.args.train_sampling_strategy=group_by_length": "group_by_length",
        "warmup_steps": "warmup_ratio",
        "run.root": "logging_dir",
        "torch_compile_backend": "torchdynamo",
        "model.tokenizer": "processing_class tokenizer",
    },
    TRL: {
        "data.overlong_prompts=drop": "max_prompt_length",
        "max_length,max_completion_length": "max_target_length max_seq_length",
        "max_completion_length": "response_length",
        "beta | kl.coef": "kl_coef init_kl_coef kl",
        "beta | kl.controller": "adap_kl_ctrl",
        "beta | kl.where=loss": "use_kl_loss",
        "epsilon": "cliprange",
        "critic.value_clip": "cliprange_value",
        "critic.loss_coef": "vf_coef",
        "gae_lambda": "lam",
        "rewards.NAME.normalize=batch": "whiten_rewards normalize_reward",
        "rewards.NAME.normalize=running": "use_score_scaling use_score_norm",
        "rewards.NAME.clip": "score_clip",
        "num_iterations": "num_ppo_epochs ppo_epochs",
        "steps_per_generation": "num_mini_batches",
        "per_device_train_batch_size": "mini_batch_size",
        "truncation=eos_penalty": "missing_eos_penalty",
        "run.keep_completions.last": "num_sample_generations",
        "generation_kwargs": "stop_token stop_token_id",
        "rewards.NAME.model": "reward_model_path",
        "model.path": "sft_model_path model_name model_name_or_path",
        "num_generations": "rloo_k",
        "stop.when | kl.controller.target": "target_kl",
        "track.tracker": "log_with",
        "track.project": "tracker_project_name",
        "run.name": "exp_name",
        "launch.processes": "world_size",
        "launch.rollout_gpus": "vllm_device",
        "model.dtype": "vllm_dtype torch_dtype",
        "vllm_max_model_length": "vllm_max_model_len",
        "vllm_structured_outputs_regex": "vllm_guided_decoding_regex",
        "log_unique_prompts": "wandb_log_unique_prompts",
        "dataset_num_proc": "dataset_num_process",
        "model.lora": "model_adapter_name peft_config",
        "model.quantize=4bit": "load_in_4bit",
        "model.quantize=8bit": "load_in_8bit",
        "rewards.NAME.fn": "reward_funcs",
    },
    OTHERS: {
        "learning_rate": "lr actor_learning_rate",
        "critic.learning_rate": "critic_learning_rate critic_lr",
        "critic.init": "critic_pretrain",
        "num_train_epochs": "epochs num_epochs total_epochs num_episodes",
        "num_train_epochs | num_iterations": "max_epochs",
        "max_steps": "steps num_steps total_steps total_training_steps",
        "per_device_train_batch_size": "batch_size micro_batch_size micro_train_batch_size",
        "gradient_accumulation_steps": "grad_accum gradient_accumulation accumulate_grad_batches",
        "num_generations": "n_samples_per_prompt group_size rollout_n n",
        "epsilon": "clip_range clip_ratio eps_clip clip_ratio_low epsilon_low",
        "epsilon_high": "clip_ratio_high eps_clip_low_high",
        "beta | kl.coef": "kl_loss_coef dpo_beta rl_beta pref_beta",
        "gae_lambda": "lambd",
        "entropy_coef": "entropy_coeff ent_coef",
        "optim": "optimizer",
        "lr_scheduler_type": "scheduler lr_scheduler",
        "max_completion_length": "max_new_tokens max_response_length generate_max_len",
        "trainer.args.generation_kwargs.stop_strings": "stop_strings stop_sequences vllm_stop_sequences stop_words",
        "max_length,max_completion_length": "max_tokens max_len sequence_len cutoff_len",
        "data.overlong_prompts=drop": "prompt_max_len filter_overlong_prompts",
        "model.lora.r": "lora_rank lora_r peft_r",
        "model.chat_template": "chat_template chat_template_jinja custom_chat_template template",
        "model.path": "pretrain base_model model.name model.id model.pretrained model.hub",
        "model.revision": "model_revision",
        "data.eval.fraction": "val_set_size val_size",
        "loss_type": "pref_loss",
        "packing": "sample_packing",
        "rewards.NAME.model": "reward_pretrain",
        "rewards.NAME.fn": "reward_fn custom_reward_function",
        "launch.processes": "num_processes nproc_per_node n_gpus_per_node num_gpus gpus devices num_devices",
        "launch.nodes": "num_machines nnodes",
        "launch.strategy=zero2": "zero_stage",
        "launch.precision": "mixed_precision",
        "track.project": "wandb_project project_name",
        "track=wandb": "use_wandb",
        "run.name": "experiment_name wandb_name",
        "run.root": "save_path ckpt_path default_local_dir out_dir save_dir run.dir",
        "data.path": "dataset dataset_name train_file train_files prompt_data datasets data.name data.file data.id",
        "data.eval.path": "val_files eval_dataset",
        "data.split": "dataset_split",
        "save_steps": "save_freq save_every save_interval",
        "eval_steps": "test_freq eval_every eval_interval eval_freq",
        "eval_on_start": "val_before_train",
        "data.overlong_prompts": "data.truncation",
        "logging_steps": "log_every log_freq log_interval log_every_n_steps",
        "shuffle_dataset": "data.shuffle",
        "max_completion_length,max_length": "data.max_length",
        "model.lora.r=16": "use_peft use_lora adapter finetuning_type train_type peft lora",
        "model.lora.target_modules": "lora_target lora_target_modules",
        "model.lora.target_modules=all-linear": "lora_target_linear",
        "model.quantize": "quantization quantization_bit",
        "launch=slurm": "slurm",
        "launch.slurm.extra.gres": "gres",
        "launch.device=cpu": "cpu",
        "launch.rollout=vllm": "vllm",
        "data.subset": "dataset_config dataset_configs",
        "data.select": "max_samples max_train_samples num_samples limit",
        "data.rename.prompt": "input_key dataset_prompt_column",
        "data.rename.answer": "label_key",
        "launch.offload": "adam_offload",
        "use_liger_kernel": "enable_liger_kernel",
        "sampling.keep_groups.by=NAME": "dynamic_filtering",
        "data.prompt=VALUE": "system_prompt system",
        "run.resume=auto": "resume",
    },
}
"""Whose names -> what to type today (behind `|` with a critic) -> the names. A lower-case word without a dot is an
argument of TRL's, a name with dots a whole key.
"""


def _full(today: str) -> str:
    return re.sub(r"(?<![\w.=-])(\w+)(?=,|$)", r"trainer.args.\1", today)


FORMER_NAMES: dict[str, FormerName] = {
    name: FormerName(name, whose, _full(today.partition(" | ")[0]), _full(today.partition(" | ")[2]) or None)
    for whose, by_today in _TODAY.items()
    for today, names in by_today.items()
    for name in names.split()
}
"""Name -> row."""

SECTIONS_OFF = {"guards": "guards.no_signal=off guards.max_error_share=1"}  # a section that cannot be null -> its off

UNSAYABLE = {
    **dict.fromkeys(
        ("attn_implementation", "attn_impl", "flash_attn", "flash_attention", "use_flash_attn"),
        "leave it out: transformers takes sdpa where a model has it, which packed rows need",
    ),
    **dict.fromkeys(("kl_estimator", "kl_penalty"), "leave it out: a loss takes k3, a penalty in the reward takes k1"),
    **dict.fromkeys(
        ("rollout_batch_size", "data.train_batch_size"),
        "it counts prompts; here a device's round has trainer.args.per_device_train_batch_size times "
        "trainer.args.steps_per_generation completions, num_generations of each prompt",
    ),
    "total_episodes": "it counts completions, and trainer.args.max_steps optimizer steps; `rlhf check` says both",
    "rpo_alpha": "trainer.args.loss_type=[sigmoid,sft] trainer.args.loss_weights=[1.0,ALPHA] adds the same loss",
    "train_on_inputs": "the opposite, to learn the answers alone, is trainer.args.assistant_only_loss=true for "
    "messages, and trainer.args.completion_only_loss=true for prompt and completion",
    **dict.fromkeys(
        ("train_batch_size", "ppo_mini_batch_size"),
        "it counts the rows or prompts of all devices; "
        "trainer.args.per_device_train_batch_size those of a device, times trainer.args.gradient_accumulation_steps",
    ),
    "tools.args": "write a function that calls yours with these arguments, and name it: tools.NAME.fn=./tools.py:NAME",
}
"""Last part of a key that does not exist, or its first and last -> what to do instead."""

GROUPS_OF_OTHERS = {
    **dict.fromkeys(["algorithm", "algo", "rl", "rlhf_type", "advantage_estimator", "stage"], "trainer"),
    **dict.fromkeys(["experiment", "recipe", "config"], "exp"),
}
"""A key of other tools -> the group whose options are its values."""

VALUE_SYNONYMS: dict[str, dict[str, str]] = {
    "device": {"gpu": "cuda", "cuda:0": "cuda", "mps": "auto", "none": "auto"},
    "precision": {
        **dict.fromkeys(("fp32", "full", "no", "none", "off", "false", "32"), "float32"),
        **{"float16": "fp16", "half": "fp16", "16": "fp16", "bfloat16": "bf16"},
    },
    "dtype": {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"},
    "strategy": {"fsdp": "fsdp2", "fsdp1": "fsdp2", "dp": "ddp", "deepspeed": "zero2", "zero": "zero2"},
    "quantize": {"int4": "4bit", "nf4": "4bit", "int8": "8bit", "4": "4bit", "8": "8bit"},
    "mode": {"disabled": "none", "off": "none"},
    "rollout": {"transformers": "hf", "colocate": "vllm", "server": "vllm_server"},
    "optim": {"adam": "adamw_torch", "adamw": "adamw_torch", "adamw_hf": "adamw_torch", "adam8bit": "adamw_8bit"},
    "overlong_prompts": {"filter": "drop", "cut": "truncate", "left": "truncate"},
    "on_error": {"drop": "exclude", "skip": "exclude", "ignore": "exclude"},
    "track": {
        **dict.fromkeys(("off", "disabled", "null", "false", "no"), "none"),
        **{"offline": "wandb_offline", "online": "wandb", "tb": "tensorboard"},
    },
    "truncation": {"off": "none", "null": "none", "mask": "exclude", "drop": "exclude"},
    "launch": {"gpu": "auto", "cuda": "auto", "fsdp": "fsdp2", "deepspeed": "zero2", "local": "auto"},
}
"""Last part of a key, or group -> {common synonym: the value that is meant}."""

_VERBS = {
    "train": "run start fit launch",
    "train -m": "sweep multirun",
    **{f"train +exp=NAME trainer={name}": name for name in ("grpo", "ppo", "dpo", "kto", "sft", "rloo")},
    "list reward": "reward rewards",
    "list": "ls options",
    "show": "config cfg print",
    "check": "validate lint plan",
    "audit": "test attack",
    "eval": "evaluate",
    "score": "bench",
    "report": "plot html",
    "compare": "table",
    "resume": "continue restart",
    "reproduce": "rerun",
    "why": "logs diagnose",
    "status": "ps jobs",
    "init": "new create",
    "doctor": "env info",
    "generate": "sample infer",
    "export": "publish merge push",
    "--version": "version",
}
VERBS_OF_OTHERS = {name: today for today, names in _VERBS.items() for name in names.split()}
"""A verb of other tools -> what to type after `rlhf` instead."""
