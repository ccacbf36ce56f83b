"""Declare what our mixins read, call and override of the TRL trainer below them, for type checking.

A mixin inherits from `TrlTrainer`. For mypy it is a trainer with the attributes and methods below; at run time it is
`object`, so it adds no code between a mixin and TRL. tests/trainers/test_contract.py compares every name below with TRL
and transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

TrlBatch: TypeAlias = dict[str, Any]
"""A dictionary that TRL's trainers pass on: rows, a scored generation batch, a micro-batch.

Nearly all values are tensors per row or per token; others are images, counts and None. The contents depend on the
trainer and its arguments, and TRL does not type them, so neither do we.
"""

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Literal

    import torch
    from accelerate import Accelerator
    from datasets import Dataset
    from peft import PeftModel
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader
    from transformers import (
        GenerationConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from trl.trainer.utils import RepeatSampler

    class TrlArguments(TrainingArguments):
        """The fields of TRL's configs that are read beside those of transformers."""

        disable_dropout: bool
        activation_checkpointing_kwargs: dict[str, Any] | None  # a text has been parsed by the time it is read
        log_completions: bool
        lr_scheduler_kwargs: dict[str, Any] | None
        max_length: int | None  # of trainers that learn from rows
        num_generations: int
        output_dir: str
        packing_strategy: str  # of SFTTrainer
        pad_token: str | None  # of RewardTrainer
        steps_per_generation: int

    class EvaluationOutput:
        """The result of transformers' evaluation; a metric is None if no row was scored."""

        metrics: dict[str, float | None]

    class TrlTrainer:
        """A TRL trainer; from `aux_loss_enabled` on, attributes only of trainers that generate."""

        args: TrlArguments
        state: TrainerState
        model: PreTrainedModel | PeftModel
        ref_model: PreTrainedModel | None
        accelerator: Accelerator
        processing_class: PreTrainedTokenizerBase
        train_dataset: Dataset
        eval_dataset: Dataset | None
        data_collator: Callable[[list[dict[str, Any]]], dict[str, Tensor]]
        optimizer: Optimizer
        lr_scheduler: LRScheduler
        control: TrainerControl
        is_deepspeed_enabled: bool
        is_fsdp_enabled: bool
        current_gradient_accumulation_steps: int
        _tr_loss: Tensor
        _total_loss_scalar: float
        _globalstep_last_logged: int

        aux_loss_enabled: bool
        beta: float
        eos_token_ids: list[int]
        entropy_coef: float
        epsilon_high: float
        epsilon_low: float
        generation_config: GenerationConfig
        generation_kwargs: dict[str, Any]
        importance_sampling_level: str
        loss_type: str
        max_completion_length: int
        num_generations: int
        num_generations_eval: int
        num_iterations: int
        reward_clip_range: tuple[float, float] | None
        normalize_advantages: bool  # RLOO
        reward_func_names: list[str]
        reward_weights: Tensor
        temperature: float
        scale_rewards: Literal["group", "batch", "none"]
        top_entropy_quantile: float
        use_adaptive_entropy: bool
        use_transformers_continuous_batching: bool
        use_vllm: bool
        vllm_generation: Any
        _buffered_inputs: list[TrlBatch] | None
        _entropy_bonus_enabled: bool
        _logs: dict[str, Any]
        _metrics: dict[str, dict[str, list[float]]]
        _pending_extra_logs: dict[str, list[Any]]
        _step: int
        _tokenizer: PreTrainedTokenizerBase

        def __init__(self, *args: Any, **named: Any) -> None: ...
        def add_callback(self, callback: TrainerCallback) -> None: ...
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any: ...
        def compute_loss_context_manager(self) -> AbstractContextManager[Any]: ...
        def create_optimizer(self, model: Any = None) -> Optimizer: ...
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any: ...
        def evaluation_loop(
            self,
            dataloader: DataLoader[Any],
            description: str,
            prediction_loss_only: bool | None = None,
            ignore_keys: list[str] | None = None,
            metric_key_prefix: str = "eval",
        ) -> EvaluationOutput: ...
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any: ...
        def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]: ...
        def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]: ...
        def is_world_process_zero(self) -> bool: ...
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None: ...
        def remove_callback(self, callback: type[TrainerCallback]) -> None: ...
        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...
        def train(self, resume_from_checkpoint: str | None = None) -> object: ...
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor: ...
        def _clip_grad_norm(self, model: Any) -> Any: ...
        def _determine_best_metric(self, metrics: dict[str, Any], trial: Any) -> bool: ...
        def _get_output_dir(self, trial: Any) -> str: ...
        def _get_train_sampler(self, dataset: Any = None) -> RepeatSampler | None: ...
        def _load_best_model(self) -> None: ...
        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...
        def _load_rng_state(self, checkpoint: str | None) -> None: ...
        def _maybe_log_save_evaluate(self, *args: Any, **named: Any) -> None: ...
        def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *others: Any) -> Dataset: ...
        def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...
        def _run_epoch(self, *args: Any, **named: Any) -> None: ...
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None: ...
        def _save_checkpoint(self, model: Any, trial: Any) -> None: ...

        def _calculate_rewards(
            self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
        ) -> Tensor: ...
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor: ...
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]: ...
        def _generate_single_turn(self, *args: Any, **named: Any) -> Any: ...
        def _get_per_token_logps_and_entropies(
            self,
            model: Any,
            input_ids: Tensor,
            attention_mask: Tensor,
            logits_to_keep: int,
            batch_size: int | None = None,
            compute_entropy: bool = False,
            **others: Any,
        ) -> tuple[Tensor, Tensor | None, Tensor | None]: ...
        def _log_completion_extra(self, column: str, values: list[Any]) -> None: ...
        def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]: ...
