"""Checks the training and held-out rows with the same functions that check them in a run."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting
from rlhf_cli.data.learnt_columns import check_learnt, learnt_columns
from rlhf_cli.data.preferences import check_pair_columns, no_pair_left, sound_pairs
from rlhf_cli.data.row_table import RowTable
from rlhf_cli.data.rows import check_prompts
from rlhf_cli.data.tokenised import is_tokenised
from rlhf_cli.errors import UserError
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.pair_rules import margin_problems, preference_rules
from rlhf_cli.tables.trl_trainers import TEXT


def row_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield what is wrong with the rows of each source: empty prompts, text instead of numbers, unsound pairs."""
    row = experiment.trainer.row
    yield from margin_problems(experiment, known.columns)
    text_field = str(setting(known.trainer, experiment.trainer.args, "dataset_text_field") or TEXT)
    for seen in known.sources:
        if seen.rows is None:
            continue
        name = seen.source.name
        try:
            if row.generates and "prompt" in seen.columns:
                check_prompts(seen.rows, name)
            if row.trains == "reward model":
                _look_through_pairs(seen.rows, experiment, name)
            elif row.learns_from and (seen in known.held_out or _is_complete(experiment, seen.columns, text_field)):
                check_learnt(seen.rows, row, text_field=text_field, name=name)
        except UserError as error:
            yield error


def _look_through_pairs(rows: RowTable, experiment: Experiment, name: str) -> None:
    """Check the pairs of a reward model. Missing columns were already reported."""
    rules = preference_rules(experiment)
    try:
        check_pair_columns(rows.column_names, rules, name=name)
    except UserError:
        return
    if not is_tokenised(rows.column_names):  # token ids are first renamed to TRL's column names
        left_out, _ = sound_pairs(rows, rules, name=name)
        sound = rows.select([row for row in range(len(rows)) if row not in left_out])
        if len(sound) == 0:
            raise no_pair_left(list(left_out.values()), name=name)
        check_learnt(sound, experiment.trainer.row, name=name)


def _is_complete(experiment: Experiment, columns: tuple[str, ...], text_field: str) -> bool:
    try:
        learnt_columns(experiment.trainer.row, columns, text_field=text_field)
    except UserError:
        return False  # the plan of the steps reports this for training rows
    return True
