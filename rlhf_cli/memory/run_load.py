"""Says how much goes through the models of a run at a time: rows, tokens, and how often gradients are added up."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting, trainer

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


def run_load(experiment: Experiment, lengths: Lengths, completions: int) -> RunLoad:
    """Return what one process of an experiment puts through its models; `completions` it generates at once, or 0."""
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
