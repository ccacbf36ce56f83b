"""Evaluate a policy by its rewards, and show pairs while a reward model learns.

TRL's evaluation loop samples `num_generations_eval` answers per prompt and logs means of batches. Here it runs a second
time with greedy decoding, and each answer is kept with its scores, for intervals over prompts, pass@k and maj@k.

A reward model scores the first held-out pairs (of the first set), or the first training pairs without an evaluation
set, after every evaluation and at the end of training. Each is written to samples.jsonl; the caller displays them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import GenerationConfig, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed

from rlhf_cli.evaluation.scored_pairs import ScoredPair, texts_of
from rlhf_cli.models.live_generation import greedy_arguments
from rlhf_cli.process import temporary_attributes
from rlhf_cli.runs.metrics_file import rewind
from rlhf_cli.runs.run_folder import GREEDY, SAMPLED
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.forward_pass import in_evaluation_mode
from rlhf_cli.trainers.reward_mixin import RewardMixin
from rlhf_cli.trainers.trl_protocol import EvaluationOutput, TrlTrainer

if TYPE_CHECKING:
    from rlhf_cli.evaluation.evaluation_results import AnsweredPrompt, PartAnswers


class EvaluationMixin(RewardMixin):
    """For a TRL trainer that samples: evaluate twice; `extensions.rewards.sum_up` is called on every rank."""

    _collected: list[AnsweredPrompt] | None = None

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvaluationOutput:
        """Run TRL's loop and return its output, including the metrics of `sum_up`."""
        from rlhf_cli.evaluation.evaluation_results import PartAnswers

        dataset = cast(Dataset, dataloader.dataset)

        def answered(loader: DataLoader[object]) -> tuple[EvaluationOutput, PartAnswers]:
            collected: list[AnsweredPrompt] = []
            with temporary_attributes(self, _collected=collected):
                output = super(EvaluationMixin, self).evaluation_loop(
                    loader, description, prediction_loss_only, ignore_keys, metric_key_prefix
                )
            each = self._num_generations
            # The last batch repeats the first rows if ranks would otherwise have none.
            return output, PartAnswers(each, collected[: len(dataset) * each])

        assert self.extensions.rewards is not None
        sum_up = self.extensions.rewards.sum_up
        with self._own_randomness():
            output, sampled = answered(dataloader)
            if sum_up is None:
                return output
            with self._greedily():
                _, greedy = answered(self.get_eval_dataloader(dataset))
        state, eval_set = self.state, metric_key_prefix.partition("_")[2]
        # Use the weights at the end of a schedule; otherwise evaluations would compare weights instead of policies.
        weights = self.reward_stack.weights(state.max_steps, state.max_steps)
        measured = sum_up({GREEDY: greedy, SAMPLED: sampled}, weights, state.global_step, self._running, eval_set)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in measured.items()})
        return output

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        matrix = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._collected is not None:
            from rlhf_cli.evaluation.evaluation_results import AnsweredPrompt

            outcomes = [self.reward_stack.outcomes[name] for name in self.reward_stack.names]
            is_truncated = self._endings.is_truncated[self._own_rows].tolist()
            own = [
                AnsweredPrompt(
                    row if set(IMAGES) & set(row) else {**row, "prompt": prompts[index]},  # whose parts are images
                    completions[index],
                    list(completion_ids_list[index]),
                    is_truncated[index],
                    [outcome.raw[index] for outcome in outcomes],
                    [outcome.fixed[index] for outcome in outcomes],
                )
                for index, row in enumerate(inputs)
            ]
            self._collected += gather_object(own)
        return matrix

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return TRL's dataloader with all rows, in the same order each time."""
        # Persistent workers would accumulate, one set per evaluation.
        with temporary_attributes(self.args, dataloader_drop_last=False, dataloader_persistent_workers=False):
            return super().get_eval_dataloader(eval_dataset)

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Use the same random numbers in every evaluation; restore the training's random state afterwards."""
        device = self.accelerator.device
        python, numpy = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            set_seed(self.args.seed + self.accelerator.process_index)
            try:
                yield
            finally:
                random.setstate(python)
                np.random.set_state(numpy)

    @contextlib.contextmanager
    def _greedily(self) -> Iterator[None]:
        """Make TRL give one greedy answer per prompt in this context, without logging it."""
        instead: dict[str, object] = {
            "num_generations_eval": 1,
            "_metrics": {**self._metrics, "eval": defaultdict(list)},
            "_logs": copy.deepcopy(self._logs),  # the table of completions shows the sampled ones
        }
        if self.use_vllm:
            with temporary_attributes(self.vllm_generation, temperature=0.0), temporary_attributes(self, **instead):
                yield
            return
        greedy = greedy_arguments(self.generation_kwargs)
        config = GenerationConfig(**greedy, disable_compile=True)
        with temporary_attributes(self, **instead, generation_kwargs=greedy, generation_config=config):
            yield


class RewardSamples(TrainerCallback):
    """Score the first `num_samples` pairs (-1: all) on all ranks, as a sharded model needs; the first shows them."""

    def __init__(
        self, trainer: TrlTrainer, num_samples: int, *, file: Path, on_pairs: Callable[[list[ScoredPair]], None]
    ) -> None:
        self._trainer = trainer
        self._file = file
        self._on_pairs = on_pairs
        dataset = trainer.train_dataset if trainer.eval_dataset is None else trainer.eval_dataset
        dataset = next(iter(dataset.values())) if isinstance(dataset, dict) else dataset
        self._rows = dataset.select(range(len(dataset) if num_samples < 0 else min(num_samples, len(dataset))))
        self._shown_at: int | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Remove rows that a resumed run will write again."""
        if state.is_world_process_zero:
            rewind(self._file, state.global_step)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show the pairs with the model's current scores, after the first of several sets."""
        if self._shown_at != state.global_step:
            self._show(state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show them once more, unless that has just been done."""
        # The best model, loaded at the end, may differ from the last evaluated one.
        if self._shown_at != state.global_step or args.load_best_model_at_end:
            self._show(state)

    def _show(self, state: TrainerState) -> None:
        self._shown_at = state.global_step
        if len(self._rows) == 0:
            return
        scores = score_pairs(self._trainer, self._rows)
        if not state.is_world_process_zero:
            return
        decode = self._trainer.processing_class.decode
        pairs = [
            ScoredPair(state.global_step, number, *texts_of(row, decode), *score, margin=row.get("margin"))
            for number, (row, score) in enumerate(zip(self._rows, scores, strict=True), 1)
        ]
        with self._file.open("a", encoding="utf-8") as stream:
            for pair in pairs:
                row = {key: finite_or_none(value) for key, value in (asdict(pair) | {"verdict": pair.verdict}).items()}
                stream.write(json.dumps(redacted_tree(row, values_only=True), ensure_ascii=False) + "\n")
        self._on_pairs(pairs)


def score_pairs(trainer: TrlTrainer, rows: Dataset) -> list[tuple[float, float]]:
    """Return `(chosen, rejected)` scores of a trainer's tokenised rows; the model's mode is restored."""
    model, size = trainer.model, trainer.args.per_device_eval_batch_size
    scores: list[tuple[float, float]] = []
    pairs = rows.select_columns(["chosen_ids", "rejected_ids"])
    with in_evaluation_mode(model), torch.no_grad():
        for start in range(0, len(rows), size):
            inputs = trainer.data_collator(list(pairs.select(range(start, min(start + size, len(rows))))))
            inputs = {name: tensor.to(trainer.args.device) for name, tensor in inputs.items()}
            with trainer.compute_loss_context_manager():
                logits = model(**inputs, use_cache=False).logits
            chosen, rejected = logits.float().squeeze(-1).chunk(2)
            scores += zip(chosen.tolist(), rejected.tolist(), strict=True)
    return scores
