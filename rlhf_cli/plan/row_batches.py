"""Plans a run that trains on its rows as they are: its columns and its number of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.config.argument_numbers import real_number, whole_number
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import TrainerFields, setting
from rlhf_cli.data.learnt_columns import learnt_columns
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import ConfigError, DataError, UserError


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
        parts = [_count(self.per_device, "row") + " a device", _count(self.processes, "process", "es")]
        if self.accumulation > 1:
            parts.append(f"{self.accumulation} accumulated")
        return " x ".join(parts) + f" = {self.per_device * self.processes * self.accumulation} a step"

    def describe_steps(self) -> str:
        """Describe the length of the run: `63, 1 epoch`, or `known when the data is read`."""
        if self.steps is None:
            return "known when the data is read"
        return f"{self.steps}" + (f", {_count(self.epochs, 'epoch')}" if self.epochs is not None else "")


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


def _count(number: float, noun: str, plural: str = "s") -> str:
    return f"{round(number, 2):g} {noun}{plural if number != 1 else ''}"
