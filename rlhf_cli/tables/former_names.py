"""List the names that settings have in other tools or had in older TRL.

Each row gives today's name. Tests check that no row names a field of today's TRL.
"""

from __future__ import annotations

from dataclasses import dataclass

_ARGS = "trainer.args."


@dataclass(frozen=True)
class FormerName:
    """A name, the tool or version it belongs to, and what to type instead.

    `today` is a full key, key=value, or several keys separated by commas; the first key that the trainer has is used.
    It is '' if the setting has no successor; `why` then explains. `with_critic` replaces `today` for a trainer with a
    critic.
    """

    name: str
    whose: str
    today: str
    with_critic: str | None = None
    why: str = ""


TRANSFORMERS, TRL, OTHERS = "transformers before 5", "an older TRL", "other tools"
_PRECISION = "launch.precision"
_DISPATCH = "trainer.args.accelerator_config.dispatch_batches"
_MAX_LENGTH = "trainer.args.max_length,trainer.args.max_completion_length"


def _rows(whose: str, *rows: tuple[str, ...]) -> list[FormerName]:
    """Return rows of (name, today[, with a critic]); a lower-case name without a dot is a TRL argument."""
    return [FormerName(row[0], whose, _full(row[1]), _full(row[2]) if len(row) > 2 else None) for row in rows]


def _full(today: str) -> str:
    return today if "." in today or "=" in today else f"{_ARGS}{today}"


_ROWS = [
    *_rows(
        TRANSFORMERS,
        ("no_cuda", "launch.device=cpu"),
        ("use_mps_device", "launch.device=auto"),
        ("xpu_backend", "launch.device=auto"),
        ("overwrite_output_dir", "run.name"),
        ("evaluation_strategy", "eval_strategy"),
        ("evaluate_during_training", "eval_strategy"),
        ("dispatch_batches", _DISPATCH),
        ("split_batches", "trainer.args.accelerator_config.split_batches"),
        ("per_gpu_train_batch_size", "per_device_train_batch_size"),
        ("per_gpu_eval_batch_size", "per_device_eval_batch_size"),
        ("fp16_backend", _PRECISION),
        ("half_precision_backend", _PRECISION),
        ("fp16_opt_level", _PRECISION),
        ("sharded_ddp", "launch.strategy=fsdp2"),
        ("fsdp_min_num_params", "launch.strategy=fsdp2"),
        ("fsdp_transformer_layer_cls_to_wrap", "launch.strategy=fsdp2"),
        ("push_to_hub_model_id", "hub_model_id"),
        ("push_to_hub_organization", "hub_model_id"),
        ("include_inputs_for_metrics", "include_for_metrics"),
        ("include_tokens_per_second", "include_num_input_tokens_seen"),
        ("adafactor", "trainer.args.optim=adafactor"),
        ("group_by_length", "trainer.args.train_sampling_strategy=group_by_length"),
        ("warmup_ratio", "warmup_steps"),
        ("logging_dir", "run.root"),
        ("torchdynamo", "torch_compile_backend"),
        ("processing_class", "model.tokenizer"),
        ("tokenizer", "model.tokenizer"),
    ),
    *_rows(
        TRL,
        ("max_prompt_length", "data.overlong_prompts"),
        ("max_target_length", _MAX_LENGTH),
        ("max_seq_length", _MAX_LENGTH),
        ("response_length", "max_completion_length"),
        ("kl_coef", "beta", "kl.coef"),
        ("init_kl_coef", "beta", "kl.coef"),
        ("kl", "beta", "kl.coef"),
        ("adap_kl_ctrl", "beta", "kl.controller"),
        ("kl_estimator", "beta", "kl.where"),
        ("kl_penalty", "beta", "kl.where"),
        ("cliprange", "epsilon"),
        ("cliprange_value", "critic.value_clip"),
        ("vf_coef", "critic.loss_coef"),
        ("lam", "gae_lambda"),
        ("whiten_rewards", "rewards.NAME.normalize=batch"),
        ("use_score_scaling", "rewards.NAME.normalize=running"),
        ("use_score_norm", "rewards.NAME.normalize=running"),
        ("normalize_reward", "rewards.NAME.normalize=batch"),
        ("score_clip", "rewards.NAME.clip"),
        ("num_ppo_epochs", "num_iterations"),
        ("ppo_epochs", "num_iterations"),
        ("num_mini_batches", "steps_per_generation"),
        ("mini_batch_size", "per_device_train_batch_size"),
        ("total_episodes", "max_steps"),
        ("missing_eos_penalty", "truncation=eos_penalty"),
        ("num_sample_generations", "run.keep_completions.last"),
        ("stop_token", "generation_kwargs"),
        ("stop_token_id", "generation_kwargs"),
        ("reward_model_path", "rewards.NAME.model"),
        ("sft_model_path", "model.path"),
        ("model_name", "model.path"),
        ("model_name_or_path", "model.path"),
        ("rloo_k", "num_generations"),
        ("target_kl", "stop.when", "kl.controller.target"),
        ("log_with", "track.tracker"),
        ("tracker_project_name", "track.project"),
        ("exp_name", "run.name"),
        ("world_size", "launch.processes"),
        ("vllm_device", "launch.rollout_gpus"),
        ("vllm_dtype", "model.dtype"),
        ("vllm_max_model_len", "vllm_max_model_length"),
        ("vllm_guided_decoding_regex", "vllm_structured_outputs_regex"),
        ("wandb_log_unique_prompts", "log_unique_prompts"),
        ("rpo_alpha", "loss_weights"),
        ("dataset_num_process", "dataset_num_proc"),
        ("model_adapter_name", "model.lora"),
        ("peft_config", "model.lora"),
        ("load_in_4bit", "model.quantize=4bit"),
        ("load_in_8bit", "model.quantize=8bit"),
        ("torch_dtype", "model.dtype"),
        ("reward_funcs", "rewards.NAME.fn"),
    ),
    *_rows(
        OTHERS,
        ("lr", "learning_rate"),
        ("actor_learning_rate", "learning_rate"),
        ("critic_learning_rate", "critic.learning_rate"),
        ("critic_lr", "critic.learning_rate"),
        ("epochs", "num_train_epochs"),
        ("num_epochs", "num_train_epochs"),
        ("max_epochs", "num_train_epochs"),
        ("total_epochs", "num_train_epochs"),
        ("steps", "max_steps"),
        ("num_steps", "max_steps"),
        ("total_steps", "max_steps"),
        ("total_training_steps", "max_steps"),
        ("batch_size", "per_device_train_batch_size"),
        ("train_batch_size", "per_device_train_batch_size"),
        ("micro_train_batch_size", "per_device_train_batch_size"),
        ("ppo_mini_batch_size", "per_device_train_batch_size"),
        ("grad_accum", "gradient_accumulation_steps"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
        ("accumulate_grad_batches", "gradient_accumulation_steps"),
        ("n_samples_per_prompt", "num_generations"),
        ("group_size", "num_generations"),
        ("rollout_n", "num_generations"),
        ("clip_range", "epsilon"),
        ("clip_ratio", "epsilon"),
        ("eps_clip", "epsilon"),
        ("clip_ratio_low", "epsilon"),
        ("epsilon_low", "epsilon"),
        ("clip_ratio_high", "epsilon_high"),
        ("eps_clip_low_high", "epsilon_high"),
        ("kl_loss_coef", "beta", "kl.coef"),
        ("lambd", "gae_lambda"),
        ("entropy_coeff", "entropy_coef"),
        ("ent_coef", "entropy_coef"),
        ("optimizer", "optim"),
        ("scheduler", "lr_scheduler_type"),
        ("lr_scheduler", "lr_scheduler_type"),
        ("max_new_tokens", "max_completion_length"),
        ("max_tokens", _MAX_LENGTH),
        ("max_response_length", "max_completion_length"),
        ("generate_max_len", "max_completion_length"),
        ("prompt_max_len", "data.overlong_prompts"),
        ("max_len", _MAX_LENGTH),
        ("lora_rank", "model.lora.r"),
        ("lora_r", "model.lora.r"),
        ("pretrain", "model.path"),
        ("reward_pretrain", "rewards.NAME.model"),
        ("reward_fn", "rewards.NAME.fn"),
        ("num_processes", "launch.processes"),
        ("nproc_per_node", "launch.processes"),
        ("n_gpus_per_node", "launch.processes"),
        ("num_gpus", "launch.processes"),
        ("gpus", "launch.processes"),
        ("num_machines", "launch.nodes"),
        ("nnodes", "launch.nodes"),
        ("zero_stage", "launch.strategy=zero2"),
        ("mixed_precision", "launch.precision"),
        ("wandb_project", "track.project"),
        ("project_name", "track.project"),
        ("use_wandb", "track=wandb"),
        ("experiment_name", "run.name"),
        ("save_path", "run.root"),
        ("ckpt_path", "run.root"),
        ("default_local_dir", "run.root"),
        ("dataset", "data.path"),
        ("dataset_name", "data.path"),
        ("train_file", "data.path"),
        ("train_files", "data.path"),
        ("prompt_data", "data.path"),
        ("val_files", "data.eval.path"),
        ("eval_dataset", "data.eval.path"),
        ("dataset_split", "data.split"),
        ("dataset_config", "data.subset"),
        ("max_samples", "data.select"),
        ("input_key", "data.rename.prompt"),
        ("system_prompt", "data.prompt"),
        ("resume", "run.resume=auto"),
    ),
    *(
        FormerName(name, whose, "", why=why)
        for name, whose, why in (
            ("save_safetensors", TRANSFORMERS, "weights are always saved as safetensors: leave it out"),
            ("use_ipex", TRANSFORMERS, "there is no such switch any more: leave it out"),
            ("jit_mode_eval", TRANSFORMERS, "there is no such switch any more: leave it out"),
            ("mp_parameters", TRANSFORMERS, "there is no such argument any more: leave it out"),
            ("past_index", TRANSFORMERS, "there is no such argument any more: leave it out"),
            ("ray_scope", TRANSFORMERS, "searches are `rlhf train -m`: leave it out"),
            ("use_liger_loss", TRL, "TRL deprecates use_liger_kernel, which it became: leave it out"),
            ("use_logits_to_keep", TRL, "it is always so now: leave it out"),
            ("label_pad_token_id", TRL, "labels are padded by the collator: leave it out"),
            ("vllm_enable_prefix_caching", TRL, "vLLM does so by itself: leave it out"),
            ("local_rollout_forward_batch_size", TRL, "rollouts are read in micro-batches of training: leave it out"),
            ("chars_per_token", TRL, "packing needs no estimate any more: leave it out"),
            ("num_of_sequences", TRL, "packing needs no estimate any more: leave it out"),
        )
    ),
]

FORMER_NAMES: dict[str, FormerName] = {row.name: row for row in _ROWS}
"""Name -> row."""

SPOKEN_VALUES: dict[str, dict[str, str]] = {
    "device": {"gpu": "cuda", "cuda:0": "cuda", "mps": "auto", "none": "auto"},
    "precision": {
        "fp32": "float32",
        "full": "float32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
        **{"no": "float32", "none": "float32", "off": "float32", "false": "float32", "32": "float32", "16": "fp16"},
    },
    "dtype": {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"},
    "strategy": {"fsdp": "fsdp2", "fsdp1": "fsdp2", "dp": "ddp", "deepspeed": "zero2", "zero": "zero2"},
    "quantize": {"int4": "4bit", "nf4": "4bit", "int8": "8bit", "4": "4bit", "8": "8bit"},
    "mode": {"disabled": "none", "off": "none"},
    "rollout": {"transformers": "hf", "colocate": "vllm", "server": "vllm_server"},
    "optim": {"adam": "adamw_torch", "adamw": "adamw_torch", "adamw_hf": "adamw_torch", "adam8bit": "adamw_8bit"},
    "overlong_prompts": {"filter": "drop", "cut": "truncate", "left": "truncate"},
    "on_error": {"drop": "exclude", "skip": "exclude", "ignore": "exclude", "zero": "0"},
    "track": {
        **dict.fromkeys(("off", "disabled", "null", "false", "no"), "none"),
        **{"offline": "wandb_offline", "online": "wandb", "tb": "tensorboard"},
    },
    "truncation": {"off": "none", "null": "none", "mask": "exclude", "drop": "exclude"},
    "launch": {"gpu": "auto", "cuda": "auto", "fsdp": "fsdp2", "deepspeed": "zero2", "local": "auto"},
}
"""Last part of a key, or group -> {common synonym: the value that is meant}."""

SPOKEN_KEYS: dict[str, dict[str, str]] = {
    "gate": {
        **dict.fromkeys(("min", "minimum", "threshold", "above", "ge", "gte", "over"), "at_least"),
        **dict.fromkeys(("max", "maximum", "below", "le", "lte", "under"), "at_most"),
        **{"eq": "equals", "equal": "equals", "is": "equals", "range": "between"},
        **{"on": "by", "reward": "by", "name": "by", "else": "otherwise", "default": "otherwise"},
    },
    "weight": {
        **{"from": "start", "begin": "start", "initial": "start", "to": "end", "final": "end", "until": "end"},
        **{"over": "steps", "num_steps": "steps", "schedule": "shape", "type": "shape", "kind": "shape"},
    },
}
"""Section -> {common synonym of a key: the key}."""

SPOKEN_SECTIONS: dict[str, str] = {
    **dict.fromkeys(("wandb", "tensorboard", "mlflow", "trackio", "tracking", "logging", "logger"), "track"),
    **{"lora": "model.lora", "peft": "model.lora", "policy": "model", "dataset": "data", "slurm": "launch.slurm"},
}
"""Common synonym of a section -> the section."""


HYDRA_INSTEAD: dict[str, str] = {
    "sweeper": "a grid is what -m makes of the values",
    "launcher": "-j N runs N at a time on this machine, launch=slurm makes an array",
    "sweep": "run.root and run.name say where a sweep lies",
    "run": "run.root and run.name say where a run lies",
    "job": "run.name says what a run is called",
    "mode": "-m makes a sweep of it",
    "searchpath": "files in ./conf win over what is shipped",
    "verbose": "log.txt in the run folder has what libraries said",
    "job_logging": "log.txt in the run folder has what libraries said",
}
"""A part of Hydra's own section -> what replaces it here: Hydra only composes and does not run anything."""

VERBS_OF_OTHERS: dict[str, str] = {
    "run": "train",
    "start": "train",
    "fit": "train",
    "launch": "train",
    "sweep": "train -m",
    "multirun": "train -m",
    "grpo": "train +exp=NAME trainer=grpo",
    "ppo": "train +exp=NAME trainer=ppo",
    "dpo": "train +exp=NAME trainer=dpo",
    "kto": "train +exp=NAME trainer=kto",
    "sft": "train +exp=NAME trainer=sft",
    "rloo": "train +exp=NAME trainer=rloo",
    "reward": "list reward",
    "rewards": "list reward",
    "ls": "list",
    "options": "list",
    "config": "show",
    "cfg": "show",
    "print": "show",
    "diff": "show +exp=ONE --against ANOTHER",
    "validate": "check",
    "lint": "check",
    "plan": "check",
    "test": "audit",
    "attack": "audit",
    "evaluate": "eval",
    "bench": "score",
    "plot": "report",
    "html": "report",
    "table": "compare",
    "continue": "resume",
    "restart": "resume",
    "rerun": "reproduce",
    "logs": "why",
    "diagnose": "why",
    "ps": "status",
    "jobs": "status",
    "new": "init",
    "create": "init",
    "env": "doctor",
    "info": "doctor",
    "sample": "generate",
    "infer": "generate",
    "publish": "export",
    "push": "export RUN --push",
    "merge": "export",
    "version": "--version",
}
"""A verb of other tools -> what to type after `rlhf` instead."""

MEANT_FLAGS: dict[str, dict[str, str]] = {
    "generate": dict.fromkeys(
        (
            *("--num", "--n", "--count", "--samples", "--num-samples", "--num_samples", "--best-of", "--completions"),
            *("--num-generations", "--num_generations", "--num-completions", "--num_completions"),
            "--num_return_sequences",
        ),
        "-n",
    ),
    "train": dict.fromkeys(("--parallel", "--workers", "--n_jobs", "--n-jobs"), "-j"),
    "eval": {"--num": "--samples", "--n": "--samples", "-n": "--samples", "--limit": "--rows"},
    "score": {"--file": "--completions", "--input": "--completions"},
    "export": {"--output": "--out", "--to": "--out", "--hub": "--push", "--repo": "--push"},
}
"""A verb -> a flag that users may type -> the verb's own flag for it."""

FLAGS_OF_OTHERS: dict[str, str] = {
    # Hydra's
    "--cfg": "rlhf show {words}",
    "--info": "rlhf show {words}",
    "--resolve": "rlhf show {words}",
    "--package": "rlhf show {words} KEY",
    "--config-name": "+exp={value}",
    "--config-path": "rlhf list",
    "--config-dir": "rlhf list",
    "--hydra-help": "rlhf --help",
    "--shell-completion": "rlhf completion bash",
    "--multirun": "rlhf train -m {words}",
    "-m": "rlhf train -m {words}",
    # flags that users may expect
    "--dry-run": "rlhf train --dry-run {words}",
    "--dryrun": "rlhf train --dry-run {words}",
    "--config": "+exp=NAME",
    "--exp": "+exp={value}",
    "--seed": "seed={value}",
    "--name": "run.name={value}",
    "--resume": "rlhf resume RUN",
    "--sweep": "rlhf train -m {words}",
    "--wandb": "track=wandb",
    # from TRL's scripts, transformers and accelerate, unless it is an argument of the trainer here
    "--config_file": "launch.accelerate_config={value}",
    "--num_processes": "launch.processes={value}",
    "--nproc_per_node": "launch.processes={value}",
    "--num_machines": "launch.nodes={value}",
    "--model_name_or_path": "model=local model.path={value}",
    "--model": "model=local model.path={value}",
    "--dataset_name": "data=file data.path={value}",
    "--dataset": "data=file data.path={value}",
    "--dataset_train_split": "data.split={value}",
    "--reward_funcs": "reward@rewards.NAME=OPTION, or rlhf list reward",
    "--reward_model_name_or_path": "rewards.NAME.model={value}",
    "--reward_model_path": "rewards.NAME.model={value}",
    "--output_dir": "run.root={value}",
    "--output-dir": "run.root={value}",
    "--run_name": "run.name={value}",
    "--report_to": "track={value}",
    "--resume_from_checkpoint": "rlhf resume RUN",
    "--bf16": "launch.precision=bf16",
    "--fp16": "launch.precision=fp16",
    "--use_cpu": "launch.device=cpu",
    "--use_vllm": "launch.rollout=vllm",
    "--use_peft": "model.lora.r=16",
    "--lora_r": "model.lora.r={value}",
    "--lora_alpha": "model.lora.lora_alpha={value}",
    "--load_in_4bit": "model.quantize=4bit",
    "--trust_remote_code": "model.trust_remote_code=true",
    "--deepspeed": "launch.strategy=zero2, or launch.strategy=zero3",
    "--fsdp": "launch.strategy=fsdp2",
}
"""A flag of other tools -> what to type instead. `{words}` are the other words of the command, `{value}` its value."""
