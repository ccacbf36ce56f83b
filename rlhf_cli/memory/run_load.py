"""Says how much goes through the models of a run at a time: rows, tokens, and how often gradients are added up."""

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
    """The tokens of the longest prompt, and of the longest row that is learned from as it is, 0 for unknown. `padded`:
    not all are as long.
    """

    prompt: int
    row: int
    padded: bool = True


@dataclass(frozen=True)
class RunLoad:
    """What one process puts through its models at a time, in rows; `tokens` are those of a row, at most.

    `completions` are generated at once, of `prompt_tokens` and `completion_tokens`; 0 where nothing is generated.
    """

    micro_batch: int
    tokens: int
    accumulation: int
    completions: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    evaluated_at_once: int = 0
    generates_between: bool = False
    """Whether it generates in the middle of an optimizer step, beside gradients."""
    padded: bool = True
    passes: PassMode = "plain"
    """How the rows of a round go through the models (docs/passes.md)."""
    group: int = 1
    """Completions of one prompt, and in an evaluation `evaluated_group`."""
    evaluated_group: int = 1
    prompts: int = 0
    """The most prompts of a micro-batch that is learned from."""

    def learned(self, *, with_last: bool = False) -> Batch:
        """Return a micro-batch that is learned from; `with_last`: what stands behind a row's last token counts."""
        return self._batch(self.micro_batch, self.prompts, with_last=with_last)

    def passed(self) -> Batch:
        """Return what goes through a model at a time without a gradient, before a round is learned from."""
        return self._batch(self.micro_batch, most_prompts(self.micro_batch, self.group))

    def evaluated(self) -> Batch:
        """Return what goes through a model at a time in an evaluation's loss."""
        return self._batch(self.evaluated_at_once, most_prompts(self.evaluated_at_once, self.evaluated_group))

    def _batch(self, rows: int, prompts: int, *, with_last: bool = False) -> Batch:
        if self.passes != "packed":
            return Batch(rows, self.tokens, self.padded)
        return Batch(rows, self.tokens + with_last, self.padded, prompts, self.prompt_tokens)


def run_load(experiment: Experiment, lengths: Lengths, completions: int, passes: PassMode = "plain") -> RunLoad:
    """Return what one process of an experiment puts through its models; `completions` it generates at once, or 0.

    `passes` is how they go through, of a trainer that generates.
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
