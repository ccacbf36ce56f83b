"""Tell how long the rows of an experiment are, and which a trainer leaves out because they are too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError
from rlhf_cli.models.tokenizer_files import TokenizerFiles
from rlhf_cli.plan.checks.facts import DataFacts, Findings, ModelFolders, Subject
from rlhf_cli.plan.row_tokens import ASKING, characters_of, counter_of
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.tables.trl_trainers import TEXT, too_short_for_all

if TYPE_CHECKING:
    from rlhf_cli.plan.memory_estimate import RowLengths

_COUNTED = 64
"""How many rows are counted, those with the most characters: tokenizing a hundred thousand rows would take seconds."""
_DROP_LONG_ROWS = ("SFTTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer")


def _rows(experiment: Experiment, table: RowTable | None) -> list[Row]:
    """Return the rows of a source, with the text that SFT learns in the column TEXT."""
    rows = [table[number] for number in range(len(table))] if table is not None else []
    field = experiment.trainer.setting("dataset_text_field")
    return [row | {TEXT: row[str(field)]} if field in row else row for row in rows]


def _largest(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=characters_of, reverse=True)[:_COUNTED]


def longest_rows(
    experiment: Experiment,
    data: DataFacts,
    folders: ModelFolders,
    tokenizer: TokenizerFiles | None,
    most_prompt_tokens: int | None,
) -> RowLengths | None:
    """Return the longest prompt and row of all sources, in tokens, of those with the most characters.

    Return None if the rows or the policy's tokenizer are not on this machine. Prompts with more than
    `most_prompt_tokens` are dropped or cut.
    """
    from rlhf_cli.plan.memory_estimate import RowLengths

    rows = [row for read in data.sources for row in _rows(experiment, read.rows)]
    counter = counter_of(experiment, tokenizer, folders)
    if not rows or counter is None:
        return None
    prompt = max(counter.prompts(_largest([{name: row.get(name) for name in ASKING} for row in rows])))
    if experiment.trainer.row.generates:
        return RowLengths(min(prompt, most_prompt_tokens or prompt), 0)
    return RowLengths(prompt, max(counter.wholes(_largest(rows))))


def length_problems(
    subject: Subject, data: DataFacts, folders: ModelFolders, tokenizer: TokenizerFiles | None
) -> Findings:
    """Yield an error if `max_length` leaves no row of a source, and a notice if it leaves less than half of them.

    TRL drops a pair of a reward model with a longer text, and a row of other trainers whose prompt fills it.
    """
    trainer, counter = subject.experiment.trainer, counter_of(subject.experiment, tokenizer, folders)
    limit, is_pair = trainer.whole("max_length"), trainer.row.trains == "reward model"
    is_kept = trainer.setting("packing") is True or trainer.setting("truncation_mode") == "keep_end"
    if limit is None or counter is None or is_kept or trainer.row.name not in _DROP_LONG_ROWS:
        return
    count, most = (counter.wholes, limit) if is_pair else (counter.prompts, limit - 1)
    for read in data.sources:
        rows = _rows(subject.experiment, read.rows)
        long = [tokens for tokens in count(rows, most) if tokens > most]
        if long and len(long) == len(rows) == read.num_selected:
            longest = max(counter.wholes(rows))
            yield DataError(**too_short_for_all(len(rows), limit, min(long), longest), where=read.source.name)
        elif len(long) * 2 > len(rows):
            text = f"trainer.args.max_length={limit} leaves out {len(long)} of {len(rows)} rows"
            yield Notice(read.source.name, f"{text}; the longest has {max(long)} tokens")
