"""Compute the batch arithmetic of a run: rounds of rollouts, or rows as they are.

In one generation round every process draws `per_device_train_batch_size x steps_per_generation` completions, and all
together hold whole groups of `num_generations` completions of one prompt (with a critic, in PPO, one is enough). A
round has `steps_per_generation x num_iterations` micro-batches, a step `gradient_accumulation_steps` of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError

_BATCH_SIZE, _ROUND_SIZE = "per_device_train_batch_size", "generation_batch_size"
_EVAL_BATCH_SIZE = "per_device_eval_batch_size"


@dataclass(frozen=True)
class BatchPlan:
    """The batches of a run that generates; `completions_a_round` counts all processes, `steps` is None if unknown."""

    per_device: int
    processes: int
    accumulation: int
    steps_per_generation: int
    num_iterations: int
    num_generations: int
    completions_a_round: int
    prompts_a_round: int
    steps: int | None

    def describe(self) -> str:
        """Describe one generation round, for example `4 completions a device x 1 process x 8 micro-batches = 32 a
        round: 8 prompts x 4 generations`, with ` x 4 epochs` appended if it is trained on more than once.
        """
        return (
            f"{count(self.per_device, 'completion')} a device x {count(self.processes, 'process', 'es')}"
            f" x {count(self.steps_per_generation, 'micro-batch', 'es')} = {self.completions_a_round} a round:"
            f" {count(self.prompts_a_round, 'prompt')} x {count(self.num_generations, 'generation')}"
        ) + (f" x {self.num_iterations} epochs" if self.num_iterations > 1 else "")


@dataclass(frozen=True)
class StagePlan:
    """The batches of a run that trains on its rows, `rows` of them in all; `steps` and `epochs` are None if they depend
    on data that is not read yet. The last step of an epoch has the remaining rows, or is dropped if
    `dataloader_drop_last` is set.
    """

    per_device: int
    processes: int
    accumulation: int
    epochs: float | None
    steps: int | None
    rows: int | None = None

    def describe(self) -> str:
        """Describe a step: `16 rows a device x 1 process x 2 accumulated = 32 a step`."""
        parts = [count(self.per_device, "row") + " a device", count(self.processes, "process", "es")]
        if self.accumulation > 1:
            parts.append(f"{self.accumulation} accumulated")
        return " x ".join(parts) + f" = {self.per_device * self.processes * self.accumulation} a step"

    def describe_steps(self) -> str:
        """Describe the length of the run: `63, 1 epoch`, or `unknown until the data is read`."""
        if self.steps is None:
            return "unknown until the data is read"
        return f"{self.steps}" + (f", {count(self.epochs, 'epoch')}" if self.epochs is not None else "")


AnyPlan: TypeAlias = BatchPlan | StagePlan


class RowLengths(NamedTuple):
    """The tokens of the longest prompt and of the longest row that is trained on as it is, 0 for unknown."""

    prompt: int
    row: int


def count(number: float, noun: str, plural: str = "s") -> str:
    """Return a number with its noun: `1 round`, `1.25 rounds`."""
    return f"{round(number, 2):.15g} {noun}{plural if number != 1 else ''}"


def plan_batches(trainer: Trainer, *, processes: int, num_rows: int | None, origins: Origins) -> BatchPlan:
    """Plan the rounds of a trainer that generates answers, for rewards or to learn from; sizes are at least 1. Raise
    ConfigError if the numbers do not divide (naming the nearest values that do), the data has fewer prompts than one
    round takes, or a round is a single completion.
    """
    fields = trl_args.fields_of(trainer.trl)
    least = 2 if trainer.row.generates and not trainer.has_critic else 1
    per_device, accumulation = trainer.whole(_BATCH_SIZE) or 1, trainer.whole("gradient_accumulation_steps") or 1
    group, num_iterations = trainer.whole("num_generations") or 0, trainer.whole("num_iterations") or 1
    group = group if "num_generations" in fields else 1
    # The one of GOLD and IW-OPD counts the prompts of a process, and TRL takes no other than those of a step.
    given = trainer.whole(_ROUND_SIZE) if "steps_per_generation" in fields else None
    if group < least:
        why = " (a completion is compared with the others of its prompt)" if least > 1 else ""
        raise _too_small("num_generations", group, f"at least {least}{why}", origins)
    global_batch = per_device * processes
    round_size = given or global_batch * (trainer.whole("steps_per_generation") or accumulation)
    if round_size % math.lcm(global_batch, group):
        raise _no_whole_groups(per_device, processes, round_size, group, least, origins, is_given=given is not None)
    if "num_generations_eval" in fields:
        _refuse_parts_of_evaluated_groups(trainer, group, processes, origins)
    micro_batches, prompts = round_size // global_batch, round_size // group
    if round_size < 2 and trainer.row.generates:
        what, where = "a round needs at least two completions", origins.where(f"trainer.args.{_BATCH_SIZE}")
        got = "1 a device x 1 process x 1 micro-batch"
        expected = "at least 2 completions a round: TRL needs them, and advantages are whitened over a round"
        hint = f"trainer.args.{_BATCH_SIZE}=2, or trainer.args.gradient_accumulation_steps=2"
        raise ConfigError(what, where=where, got=got, expected=expected, hint=hint)
    if num_rows is not None and num_rows < prompts:
        what, got = f"one round needs {prompts} prompts, but the dataset has {num_rows}", count(num_rows, "row")
        expected = f"at least {prompts} rows ({round_size} completions / {group} generations)"
        advice = f"add rows, or lower trainer.args.{_ROUND_SIZE if given else _BATCH_SIZE}"
        raise ConfigError(what, where="data", got=got, expected=expected, advice=advice)
    max_steps = trainer.whole("max_steps") or 0
    steps = max_steps if max_steps > 0 else None
    if steps is None and num_rows is not None:
        an_epoch = math.ceil(num_rows // prompts * micro_batches * num_iterations / accumulation)
        steps = math.ceil(cast("float", trainer.setting("num_train_epochs")) * an_epoch)
    sizes = (per_device, processes, accumulation, micro_batches, num_iterations, group)
    return BatchPlan(*sizes, completions_a_round=round_size, prompts_a_round=prompts, steps=steps)


def _too_small(name: str, value: int, expected: str, origins: Origins) -> ConfigError:
    key = f"trainer.args.{name}"
    return ConfigError(f"{key} is too small", where=origins.where(key), got=value, expected=expected)


def _no_whole_groups(
    per_device: int, processes: int, round_size: int, group: int, least: int, origins: Origins, *, is_given: bool
) -> ConfigError:
    """Return an error that suggests both the nearest batch size with whole groups and the nearest group size."""
    global_batch, key = per_device * processes, f"trainer.args.{_ROUND_SIZE if is_given else _BATCH_SIZE}"
    if is_given:
        divisor = math.lcm(global_batch, group)
        got, hint = str(round_size), f"{key}={round_size // divisor * divisor + divisor}"
        expected = f"a multiple of {divisor} ({_BATCH_SIZE} x processes = {global_batch}, and num_generations)"
    else:
        passes = round_size // per_device
        divisor = group // math.gcd(group, passes)
        batch = per_device // divisor * divisor + divisor
        groups = [size for size in range(least, round_size + 1) if round_size % size == 0]
        nearest = min(groups, key=lambda size: abs(size - group), default=None)
        got = f"{per_device} a device x {processes} process(es) x {passes // processes} micro-batches = {round_size}"
        expected = f"a multiple of trainer.args.num_generations={group}"
        hint = f"{key}={batch}" + (f" or trainer.args.num_generations={nearest}" if nearest else "")
    what = f"{round_size} completions a round do not divide into groups of {group}"
    return ConfigError(what, where=origins.where(key), got=got, expected=expected, hint=hint)


def _refuse_parts_of_evaluated_groups(trainer: Trainer, group: int, processes: int, origins: Origins) -> None:
    """Raise ConfigError if an evaluation's batch over all processes holds no whole groups; TRL refuses or crashes."""
    per_device, each = trainer.whole(_EVAL_BATCH_SIZE) or 0, trainer.whole("num_generations_eval") or group
    if not trainer.evaluates or per_device * processes % each == 0:
        return
    key, divisor = f"trainer.args.{_EVAL_BATCH_SIZE}", each // math.gcd(each, processes)
    what = f"{per_device * processes} completions of an evaluation's batch do not divide into groups of {each}"
    got = f"{per_device} a device x {count(processes, 'process', 'es')}"
    expected = f"a multiple of {each}: trainer.args.num_generations_eval, else num_generations"
    hint = f"{key}={math.ceil(per_device / divisor) * divisor}"
    raise ConfigError(what, where=origins.where(key), got=got, expected=expected, hint=hint)


def plan_stage(trainer: Trainer, *, processes: int, num_rows: int | None, origins: Origins) -> StagePlan:
    """Plan a run that trains on its rows; `num_rows` is None if a hub dataset decides. Raise ConfigError if the only
    batch is dropped, and for answers that the trainer generates, as `plan_batches` does.
    """
    per_device, accumulation = trainer.whole(_BATCH_SIZE) or 1, trainer.whole("gradient_accumulation_steps") or 1
    rounds = None
    if trainer.row.answers_up_to == "max_completion_length":  # by GRPO's sampler; GKD, with max_new_tokens, takes rows
        rounds = plan_batches(trainer, processes=processes, num_rows=num_rows, origins=origins)
    if trainer.setting("loss_type") == "kto" and per_device < 2:
        why = "at least 2: KTO compares an answer with another row's prompt"
        raise _too_small(_BATCH_SIZE, per_device, why, origins)
    max_steps, epochs = trainer.whole("max_steps") or 0, cast("float", trainer.setting("num_train_epochs"))
    a_batch = per_device * processes
    if num_rows is None or trainer.setting("packing"):  # the number of packed rows is known only after packing
        steps = max_steps if max_steps > 0 else None
        rows = steps * a_batch * accumulation if steps else None
        return StagePlan(per_device, processes, accumulation, None, steps, rows)
    num_batches = math.ceil(num_rows / a_batch)
    if rounds is not None:
        num_batches = num_rows // rounds.prompts_a_round * rounds.steps_per_generation * rounds.num_iterations
        num_rows = num_batches * a_batch
    elif trainer.setting("dataloader_drop_last"):
        num_batches = num_rows // a_batch
        if num_batches == 0:
            key, got = "trainer.args.dataloader_drop_last", f"{count(num_rows, 'row')}, {a_batch} to a batch"
            what, expected = "the rows make no whole batch, so nothing would be trained", f"at least {a_batch} rows"
            raise ConfigError(what, where=origins.where(key), got=got, expected=expected, hint=f"{key}=false")
    an_epoch = max(1, math.ceil(num_batches / accumulation))
    steps = max_steps if max_steps > 0 else math.ceil(epochs * an_epoch)
    rows_an_epoch = min(num_rows, num_batches * a_batch)
    whole, rest = divmod(steps, an_epoch)
    rows = whole * rows_an_epoch + rest * a_batch * accumulation
    return StagePlan(per_device, processes, accumulation, steps / an_epoch if max_steps > 0 else epochs, steps, rows)
