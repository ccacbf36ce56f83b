"""Computes how much goes through the models of a run at a time: rows, tokens, gradient accumulation."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.memory.activations import Batch
from rlhf_cli.memory.shared_prompts import most_prompts, prompts_learned_from
from rlhf_cli.tables.pass_modes import PassMode

_PAIRED = ("DPOTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer")
_TRIPLES = ("TPOTrainer",)


@dataclass(frozen=True)
class Lengths:
    """The tokens of the longest prompt and of the longest row that is trained on as it is, 0 for unknown. `padded`: the
    rows differ in length.
    """

    prompt: int
    row: int
    padded: bool = True


@dataclass(frozen=True)
class RunLoad:
    """What one process puts through its models at a time, in rows; `tokens` is the maximum per row.

    `completions` are generated at once, with `prompt_tokens` and `completion_tokens`; 0 for trainers that do not
    generate.
    """

    micro_batch: int
    tokens: int
    accumulation: int
    completions: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    evaluated_at_once: int = 0
    generates_between: bool = False
    """Whether it generates in the middle of an optimizer step, while gradients are held."""
    padded: bool = True
    passes: PassMode = "plain"
    """How the rows of a round go through the models (docs/passes.md)."""
    group: int = 1
    """Completions per prompt; `evaluated_group` in an evaluation."""
    evaluated_group: int = 1
    prompts: int = 0
    """The maximum number of prompts in a training micro-batch."""

    def learned(self, *, with_last: bool = False) -> Batch:
        """Return a training micro-batch; `with_last`: include the position after a row's last token."""
        return self._batch(self.micro_batch, self.prompts, with_last=with_last)

    def passed(self) -> Batch:
        """Return the batch of a pass without a gradient, before a round is trained on."""
        return self._batch(self.micro_batch, most_prompts(self.micro_batch, self.group))

    def evaluated(self) -> Batch:
        """Return the batch of a pass for an evaluation's loss."""
        return self._batch(self.evaluated_at_once, most_prompts(self.evaluated_at_once, self.evaluated_group))

    def _batch(self, rows: int, prompts: int, *, with_last: bool = False) -> Batch:
        if self.passes != "packed":
            return Batch(rows, self.tokens, self.padded)
        return Batch(rows, self.tokens + with_last, self.padded, prompts, self.prompt_tokens)


def run_load(experiment: Experiment, lengths: Lengths, completions: int, passes: PassMode = "plain") -> RunLoad:
    """Return what one process of an experiment puts through its models; it generates `completions` at once, or 0.

    `passes` is how rows go through the models of a trainer that generates.
    """
    row, args = experiment.trainer.row, experiment.trainer.args
    fields = trainer(experiment.trainer.trl)

    def whole(name: str, default: int) -> int:
        value = setting(fields, args, name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    per_device, accumulation = whole("per_device_train_batch_size", 8), whole("gradient_accumulation_steps", 1)
    evaluates = setting(fields, args, "eval_strategy") not in (None, "no")
    at_once = whole("per_device_eval_batch_size", 8) if evaluates else 0
    if row.generates:
        answer = whole("max_completion_length", 256)
        micro_batches = completions // per_device
        is_between = 0 < micro_batches < accumulation
        group = max(1, whole("num_generations", 1))
        return RunLoad(
            per_device,
            lengths.prompt + answer,
            accumulation,
            completions,
            lengths.prompt,
            answer,
            at_once,
            is_between,
            lengths.padded,
            passes,
            group,
            max(1, whole("num_generations_eval", group)),
            prompts_learned_from(experiment, per_device, completions),
        )
    limit = whole("max_length", 0)
    is_packed = setting(fields, args, "packing") is True
    tokens = limit if is_packed or not lengths.row else min(lengths.row, limit or lengths.row)
    name = experiment.trainer.trl
    answers = 2 if name in _PAIRED else 3 if name in _TRIPLES else 1
    return RunLoad(
        per_device * answers,
        tokens,
        accumulation,
        evaluated_at_once=at_once * answers,
        padded=lengths.padded and not is_packed,
    )
