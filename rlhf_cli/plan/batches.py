"""Compute the batch arithmetic of a run: rounds of rollouts, or rows as they are.

In one generation round every process draws `per_device_train_batch_size x steps_per_generation` completions. All
processes together must hold whole groups of `num_generations` completions of one prompt. A round consists of
`steps_per_generation x num_iterations` micro-batches; an optimizer step uses `gradient_accumulation_steps` of them.
With a critic instead of the group baseline (PPO), one completion per prompt is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import TrainerFields, real_number, setting, whole_number, whole_number_or_none
from rlhf_cli.data.learnt_columns import learnt_columns
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import ConfigError, DataError, Prose, UserError

_MORE = Prose("more rows")


@dataclass(frozen=True)
class BatchPlan:
    """The batch sizes and step counts of a run whose trainer generates.

    `completions_a_round` counts all processes; `steps` are optimizer steps, None if the data decides.
    """

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
        """Describe one generation round in a line.

        Example: `4 completions a device x 1 process x 8 micro-batches = 32 a round: 8 prompts x 4 generations`, with `
        x 4 epochs` appended if a round is trained on more than once.
        """
        return (
            f"{_count(self.per_device, 'completion')} a device x {_count(self.processes, 'process', 'es')}"
            f" x {_count(self.steps_per_generation, 'micro-batch', 'es')} = {self.completions_a_round} a round:"
            f" {_count(self.prompts_a_round, 'prompt')} x {_count(self.num_generations, 'generation')}"
        ) + (f" x {self.num_iterations} epochs" if self.num_iterations > 1 else "")


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def plan_batches(
    trainer: TrainerFields,
    args: Mapping[str, object],
    *,
    processes: int,
    num_rows: int | None,
    origins: Origins,
    baseline: str = "group",
) -> BatchPlan:
    """Compute the numbers for a trainer that generates. `num_rows` is None if the dataset is not known yet.

    `baseline` is `group` or `critic`. Raise ConfigError if the numbers do not divide (naming the nearest values that
    do), the dataset holds fewer prompts than one round takes, or a round is a single completion.
    """
    least = 1 if baseline == "critic" else 2
    per_device = whole_number(trainer, args, "per_device_train_batch_size")
    accumulation = whole_number(trainer, args, "gradient_accumulation_steps")
    num_generations = whole_number_or_none(trainer, args, "num_generations") or 0
    num_iterations = whole_number_or_none(trainer, args, "num_iterations") or 1
    round_size = whole_number_or_none(trainer, args, "generation_batch_size")
    steps_per_generation = whole_number_or_none(trainer, args, "steps_per_generation")
    for name, value in (
        ("per_device_train_batch_size", per_device),
        ("gradient_accumulation_steps", accumulation),
        ("num_iterations", num_iterations),
        ("generation_batch_size", round_size),
        ("steps_per_generation", steps_per_generation),
    ):
        if value is not None:
            _require_at_least(1, name, value, origins)
    _require_at_least(least, "num_generations", num_generations, origins)
    if round_size is not None and steps_per_generation is not None:
        raise ConfigError(
            "generation_batch_size and steps_per_generation say the same thing twice",
            where=origins.where("trainer.args.generation_batch_size"),
            expected="one of them",
            hint="'~trainer.args.generation_batch_size'",
        )
    global_batch = per_device * processes
    is_round_given = round_size is not None
    if round_size is None:
        round_size = global_batch * (steps_per_generation or accumulation)
    elif round_size % (divisor := math.lcm(global_batch, num_generations)):
        meaning = f"of per_device_train_batch_size x processes = {global_batch} and of num_generations"
        raise _does_not_divide("generation_batch_size", round_size, divisor, meaning, origins)
    if round_size % num_generations:
        raise _no_whole_groups(per_device, processes, round_size // global_batch, num_generations, least, origins)
    if round_size < 2:
        raise _round_of_one(origins)
    prompts = round_size // num_generations
    if num_rows is not None and num_rows < prompts:
        raise ConfigError(
            f"one round takes {prompts} prompts and the dataset has {num_rows}",
            where="data",
            got=f"{num_rows} rows",
            expected=f"at least {prompts} rows ({round_size} completions / {num_generations} generations)",
            hint=_smaller_round(math.lcm(global_batch, num_generations), num_rows * num_generations)
            if is_round_given
            else _smaller_batch(global_batch, round_size // global_batch, processes, num_generations, num_rows),
        )
    micro_batches = round_size // global_batch
    return BatchPlan(
        per_device=per_device,
        processes=processes,
        accumulation=accumulation,
        steps_per_generation=micro_batches,
        num_iterations=num_iterations,
        num_generations=num_generations,
        completions_a_round=round_size,
        prompts_a_round=prompts,
        steps=_steps(trainer, args, num_rows, prompts, micro_batches * num_iterations, accumulation),
    )


def _steps(
    trainer: TrainerFields,
    args: Mapping[str, object],
    num_rows: int | None,
    prompts: int,
    micro_batches: int,
    accumulation: int,
) -> int | None:
    max_steps = whole_number(trainer, args, "max_steps")
    if max_steps > 0:
        return max_steps
    if num_rows is None:
        return None
    an_epoch = max(1, math.ceil((num_rows // prompts) * micro_batches / accumulation))
    return math.ceil(real_number(trainer, args, "num_train_epochs") * an_epoch)


def _smaller_batch(global_batch: int, micro_batches: int, processes: int, num_generations: int, num_rows: int) -> str:
    """Suggest the largest batch size whose round has whole groups and no more prompts than the dataset."""
    for per_device in range(global_batch // processes - 1, 0, -1):
        prompts, rest = divmod(per_device * processes * micro_batches, num_generations)
        if not rest and prompts <= num_rows:
            return f"trainer.args.per_device_train_batch_size={per_device}"
    return _MORE


def _smaller_round(divisor: int, most: int) -> str:
    size = most // divisor * divisor
    return f"trainer.args.generation_batch_size={size}" if size else _MORE


def _require_at_least(least: int, name: str, value: int, origins: Origins) -> None:
    if value < least:
        key = f"trainer.args.{name}"
        is_group = name == "num_generations" and least > 1
        why = " (a completion is judged against the others of its prompt)" if is_group else ""
        raise ConfigError(f"{key} is too small", where=origins.where(key), got=value, expected=f"at least {least}{why}")


def _round_of_one(origins: Origins) -> UserError:
    """Return an error that only PPO can have: TRL needs two completions per round, and PPO has no groups."""
    key = "trainer.args.per_device_train_batch_size"
    return ConfigError(
        "one completion a round is too few",
        where=origins.where(key),
        got="1 a device x 1 process x 1 micro-batch",
        expected="2 completions a round and more: TRL takes no fewer, and advantages are whitened over a round",
        hint=f"{key}=2, or trainer.args.gradient_accumulation_steps=2",
    )


def _does_not_divide(name: str, value: int, divisor: int, meaning: str, origins: Origins) -> UserError:
    below, above = value // divisor * divisor, (value // divisor + 1) * divisor
    key = f"trainer.args.{name}"
    return ConfigError(
        f"{key} does not divide",
        where=origins.where(key),
        got=value,
        expected=f"a multiple of {divisor} ({meaning})",
        hint=f"{key}={above}" + (f" or {key}={below}" if below else ""),
    )


def _no_whole_groups(
    per_device: int, processes: int, micro_batches: int, num_generations: int, least: int, origins: Origins
) -> UserError:
    """Return an error that suggests both the nearest batch size with whole groups and the nearest group size."""
    round_size = per_device * processes * micro_batches
    batch = next(
        size
        for size in range(per_device + 1, per_device + num_generations + 1)
        if size * processes * micro_batches % num_generations == 0
    )
    groups = [size for size in range(least, round_size + 1) if round_size % size == 0]
    nearest = min(groups, key=lambda size: abs(size - num_generations)) if groups else None
    key = "trainer.args.per_device_train_batch_size"
    return ConfigError(
        f"{round_size} completions a round are no whole groups of {num_generations}",
        where=origins.where(key),
        got=f"{per_device} a device x {processes} process(es) x {micro_batches} micro-batches = {round_size}",
        expected=f"a multiple of trainer.args.num_generations={num_generations}",
        hint=f"{key}={batch}" + (f" or trainer.args.num_generations={nearest}" if nearest else ""),
    )


@dataclass(frozen=True)
class StagePlan:
    """The batch sizes and step counts of a run that trains on its rows.

    `steps` and `epochs` are None if they depend on data that is not read yet. `rows` is the total number of rows
    trained on. The last step of an epoch has the remaining rows, or is dropped if `dataloader_drop_last` is set.
    """

    per_device: int
    processes: int
    accumulation: int
    epochs: float | None
    steps: int | None
    rows: int | None = None

    def describe(self) -> str:
        """Describe a step: `16 rows a device x 1 process x 2 accumulated = 32 a step`."""
        parts = [_count_rows(self.per_device, "row") + " a device", _count_rows(self.processes, "process", "es")]
        if self.accumulation > 1:
            parts.append(f"{self.accumulation} accumulated")
        return " x ".join(parts) + f" = {self.per_device * self.processes * self.accumulation} a step"

    def describe_steps(self) -> str:
        """Describe the length of the run: `63, 1 epoch`, or `known when the data is read`."""
        if self.steps is None:
            return "known when the data is read"
        return f"{self.steps}" + (f", {_count_rows(self.epochs, 'epoch')}" if self.epochs is not None else "")


def check_stage(
    experiment: Experiment,
    trainer: TrainerFields,
    columns: Sequence[str],
    *,
    processes: int,
    num_rows: int | None,
    origins: Origins,
) -> tuple[StagePlan | None, list[UserError]]:
    """Return the plan of a run that trains on its rows, and every problem with it.

    `columns` is empty and `num_rows` None if a hub dataset decides. The plan is None if a problem prevents it. For
    other trainers return (None, []).
    """
    row = experiment.trainer.row
    if not row.learns_from:
        return None, []
    args, problems = experiment.trainer.args, list[UserError]()
    used: tuple[str, ...] = ()
    if columns:
        try:
            used = learnt_columns(row, columns, text_field=str(setting(trainer, args, "dataset_text_field") or "text"))
        except DataError as error:
            if experiment.data.world is not None:
                error.hint = " or ".join(f"data={world}" for world in with_columns(row.learns_from))
            problems.append(error)
    if row.splits_pairs and "chosen" in used and num_rows is not None:
        num_rows *= 2
    try:
        return _plan(trainer, args, processes, num_rows, origins), problems
    except UserError as error:
        return None, [*problems, error]


def _plan(
    trainer: TrainerFields, args: Mapping[str, object], processes: int, num_rows: int | None, origins: Origins
) -> StagePlan:
    per_device = whole_number(trainer, args, "per_device_train_batch_size")
    accumulation = whole_number(trainer, args, "gradient_accumulation_steps")
    least = 2 if setting(trainer, args, "loss_type") == "kto" else 1
    for name, value, at_least, why in (
        ("per_device_train_batch_size", per_device, least, ": KTO holds an answer against another row's prompt"),
        ("gradient_accumulation_steps", accumulation, 1, ""),
    ):
        if value < at_least:
            key = f"trainer.args.{name}"
            expected = f"at least {at_least}" + (why if at_least > 1 else "")
            raise ConfigError(f"{key} is too small", where=origins.where(key), got=value, expected=expected)
    max_steps = whole_number(trainer, args, "max_steps")
    epochs = real_number(trainer, args, "num_train_epochs")
    a_batch = per_device * processes
    if num_rows is None or setting(trainer, args, "packing"):  # the number of packed rows is known only after packing
        steps = max_steps if max_steps > 0 else None
        return StagePlan(
            per_device, processes, accumulation, None, steps, steps * a_batch * accumulation if steps else None
        )
    num_batches = (
        num_rows // a_batch if setting(trainer, args, "dataloader_drop_last") else math.ceil(num_rows / a_batch)
    )
    an_epoch = max(1, math.ceil(num_batches / accumulation))
    steps = max_steps if max_steps > 0 else math.ceil(epochs * an_epoch)
    rows_an_epoch = min(num_rows, num_batches * a_batch)
    whole, rest = divmod(steps, an_epoch)
    rows = whole * rows_an_epoch + min(rest * a_batch * accumulation, rows_an_epoch)
    return StagePlan(per_device, processes, accumulation, steps / an_epoch if max_steps > 0 else epochs, steps, rows)


def _count_rows(number: float, noun: str, plural: str = "s") -> str:
    return f"{round(number, 2):g} {noun}{plural if number != 1 else ''}"
