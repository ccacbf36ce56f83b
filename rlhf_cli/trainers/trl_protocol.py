"""Declare the TRL trainer below our mixins, for type checking.

A mixin inherits from `TrlTrainer`. For mypy it is GRPOTrainer, with our types where TRL has none or wider ones; at run
time it is `object`, so it adds no code between a mixin and TRL. tests/trainers/test_contract.py compares every name
that the mixins use with TRL and transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

TrlBatch: TypeAlias = dict[str, Any]
"""A dictionary that TRL's trainers pass on: rows, a scored generation batch, a micro-batch; most values are tensors per
row or token. What it holds depends on the trainer and its arguments, and TRL does not type it, so neither do we."""

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftModel
    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.trainer_utils import EvalLoopOutput
    from trl import GRPOConfig, GRPOTrainer

    class TrlArguments(GRPOConfig):
        """The fields of TRL's configs that are read beside those of GRPO."""

        activation_checkpointing_kwargs: dict[str, Any] | None  # a text has been parsed by the time it is read
        lr_scheduler_kwargs: dict[str, Any] | None
        max_length: int | None  # of trainers that learn from rows
        num_generations: int
        output_dir: str
        packing_strategy: str  # of SFTTrainer
        pad_token: str | None  # of RewardTrainer
        steps_per_generation: int

    class EvaluationOutput(EvalLoopOutput):
        """The result of transformers' evaluation; a metric is None if no row was scored."""

        metrics: dict[str, float | None]

    class TrlTrainer(GRPOTrainer):
        """A TRL trainer; those that do not generate lack what GRPO adds to transformers' trainer."""

        args: TrlArguments
        model: PreTrainedModel | PeftModel
        processing_class: PreTrainedTokenizerBase
        train_dataset: Dataset
        eval_dataset: Dataset | dict[str, Dataset] | None
        optimizer: Optimizer
        max_completion_length: int
        num_generations: int
        num_generations_eval: int
        vllm_generation: Any
        _buffered_inputs: list[TrlBatch] | None
        _logs: dict[str, Any]

        def __init__(self, *args: Any, **named: Any) -> None: ...
        def evaluation_loop(self, *args: Any, **named: Any) -> EvaluationOutput: ...
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor: ...
        def _get_train_sampler(self, dataset: Any = None) -> Any: ...
        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...
        def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *others: Any) -> Dataset: ...
        def _run_epoch(self, *args: Any, **named: Any) -> None: ...
        def _save_checkpoint(self, model: Any, trial: Any) -> None: ...

        def _calculate_rewards(self, *args: Any) -> Tensor: ...
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor: ...
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]: ...
        def _generate_single_turn(self, *args: Any, **named: Any) -> Any: ...
        def _get_per_token_logps_and_entropies(
            self, *args: Any, **named: Any
        ) -> tuple[Tensor, Tensor | None, Tensor | None]: ...
        def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]: ...

else:
    TrlTrainer = object  # nothing stands between a mixin and TRL
    EvaluationOutput = TrlArguments = Any
