"""Check the data of a run, training and held-out rows alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.rules.trainer_rules import class_file
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.learnt_columns import check_columns, read_columns
from rlhf_cli.data.peeking import peek, prepare_preview
from rlhf_cli.data.preparing import template_columns
from rlhf_cli.data.rows import DIALOGUES, RowTable, hold_out_places, kind_of_text
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import DataError, RewardError, UserError
from rlhf_cli.plan.checks.check_context import CheckContext, ReadSource
from rlhf_cli.plan.data_sources import eval_sources, margin_problems, preference_rules, training_sources
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.tables.trl_trainers import TEXT
from rlhf_cli.text.suggest import nearest

_LOOKED_AT = 50_000
"""How many rows of a source are checked, so that a table of millions takes no long wait and fits into memory."""


def source_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Check every source, and note the columns that the trainer will see and the number of training rows.

    Also note the file of a trainer class that the user wrote.
    """
    data = experiment.data
    if experiment.trainer.own_class is not None and (file := class_file(experiment.trainer.own_class)) is not None:
        context.files["trainer.class"] = file.resolve()
    prompt = data.model_dump()["prompt"]
    training = training_sources(experiment)
    mistakes: list[tuple[object, ...]] = []
    for source in [*training, *eval_sources(experiment)]:
        try:
            preview = peek(source, limit=_LOOKED_AT, seed=experiment.seed)
            is_sliced = source.split is not None and "[" in source.split  # `datasets` takes the slice, and counts it
            count, select = None if is_sliced else preview.num_rows, source.select
            if count is not None and select is not None:
                source.check_selection(count)
                count = min(count, select) if isinstance(select, int) else select[1] - select[0]
            names, table = prepare_preview(source, preview, prompt)
            read = ReadSource(source, preview, names, table, count)
            context.sources.append(read)
            context.held_out += [read] if source not in training else []
        except UserError as error:
            error.where = composed.origins.where(error.where) if error.where in composed.origins.by_key else error.where
            mistake = (error.what, error.got, error.expected)
            if mistake not in mistakes:  # the held-out rows often repeat a value of the training rows
                yield source.with_file(error)
            mistakes.append(mistake)
            continue
        local = [Path(path).expanduser().resolve() for path in source.paths if Path(path).expanduser().exists()]
        context.files |= {f"{source.name}[{place}]" if place else source.name: path for place, path in enumerate(local)}
    if mistakes:
        return
    trained_on = context.sources[: len(training)]
    shared = [read.columns for read in trained_on]
    context.columns = tuple(name for name in shared[0] if all(name in other for other in shared))
    context.num_rows = trained_on[0].num_selected if len(training) == 1 else None
    for held_out in context.held_out:
        context.num_held_out = held_out.num_selected
    if data.eval is not None and data.eval.fraction is not None:
        yield from _split_off(data.eval.fraction, experiment.seed, context)
    context.data = " + ".join(read.preview.origin for read in trained_on)


def column_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for every column that the trainer or a reward reads and the training or held-out data lacks.

    Also yield one for each argument of a reward function that has neither a value nor a column.
    """
    wanted = {
        f"trainer={experiment.trainer.name}": ["prompt"],
        **{
            f"rewards.{name}": [one for one in needs if one not in context.missing_arguments.get(name, ())]
            for name, needs in context.reward_columns.items()
        },
    }
    tables = [("data", context.columns), *((read.source.name, read.columns) for read in context.held_out)]
    is_world = experiment.data.world is not None
    missing_ones = [
        (table, columns, who, column)
        for table, columns in tables
        for who, needs in wanted.items()
        for column in needs
        if columns and column not in columns
    ]
    for table, columns, who, column in missing_ones:
        worlds = with_columns([wanted[who]]) if is_world and table == "data" else ()
        asks = f" (or is it an argument? {who}.args.{column}=VALUE)" if who.startswith("rewards.") else ""
        new = next((new for read in context.sources if (new := read.source.new_name(column)) is not None), None)
        if new is not None:  # `rename` takes a name away, a template keeps it
            yield DataError(
                f"the column {column!r}, which {who} reads, is called {new!r} here",
                where=composed.origins.where(f"{table}.rename.{new}"),
                hint=f"'~{table}.rename.{new}' " + (f"data.prompt='{{{column}}}'" if new == "prompt" else ""),
            )
            continue
        template = f", or data.prompt='... {{{columns[0]}}} ...'" if column == "prompt" else ""
        yield DataError(
            f"the data has no column {column!r}",
            where=table,
            got="columns " + ", ".join(columns),
            expected=f"{column}, which {who} reads{asks}",
            hint=f"{table}.rename.{column}={nearest(column, columns) or 'EXISTING_COLUMN'}{template}"
            + "".join(f", or data={world}" for world in worlds),
        )
    for name, missing in context.missing_arguments.items():
        for argument in missing:
            if argument not in context.columns:
                reward, key = experiment.rewards[name], f"rewards.{name}.args"
                yield RewardError(
                    f"{reward.fn} needs the argument {argument!r}",
                    where=composed.origins.where(f"rewards.{name}.fn"),
                    got=", ".join(f"{given}={value}" for given, value in reward.args.items()) or "no arguments",
                    expected=f"{key}.{argument}, or a column of that name in the data",
                    hint=f"{key}.{argument}=VALUE",
                )


def _split_off(fraction: float, seed: int, context: CheckContext) -> Iterator[UserError]:
    """Hold out the same rows as the run will, and count both parts. The counts stay None if not all rows were read."""
    count, context.num_rows = context.num_rows, None
    table = context.sources[0].rows
    if count is None or table is None or len(table) != count:
        return
    try:
        train, held = hold_out_places(table, fraction, seed)
    except UserError as error:
        yield error
        return
    context.num_rows, context.num_held_out = len(train), len(held)


def row_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield what is wrong with the rows of each source: empty prompts, text instead of numbers, unsound pairs.

    Note the columns that nobody reads. Missing columns are reported by the plan of the steps for the training rows.
    """
    row = experiment.trainer.row
    lacks_margin = margin_problems(experiment, context.columns) if experiment.reward_model is not None else []
    yield from lacks_margin
    text_field = str(experiment.trainer.setting("dataset_text_field") or TEXT)
    config = context.config_of(experiment.model.path)
    reads_images = "vision_config" in config if config or experiment.model.build is not None else None
    for read in context.sources:
        rows, name, is_training = read.rows, read.source.name, read not in context.held_out
        is_told = is_training and (lacks_margin or not read_columns(row, read.columns, text_field=text_field))
        if rows is None or is_told:
            continue
        try:
            if row.trains == "reward model":
                rows = _sound_pairs(rows, experiment, name)
            used = check_columns(rows, row, text_field=text_field, name=name, reads_images=reads_images)
            if is_training:
                context.used_columns |= set(used)
                context.notices += _conversions(read, used)
        except UserError as error:
            yield read.source.with_file(error)


def _conversions(read: ReadSource, columns: list[str]) -> Iterator[Notice]:
    """Yield a notice for each column whose first row is ShareGPT's turns or JSON text and is read as messages."""
    for column in columns:
        stored = read.preview.rows[0].get(read.source.rename.get(column, column))
        value = read.rows[0][column] if read.rows is not None else None
        form = "ShareGPT's turns" if "'from': '" in str(stored) else "JSON text" if str(stored).startswith("[") else ""
        if kind_of_text(value) == "messages" and form and (isinstance(stored, str) == (form == "JSON text")):
            roles = dict.fromkeys(str(message["role"]) for message in cast("list[dict[str, object]]", value))
            yield Notice(read.source.name, f"{column}: {form} are read as messages by {', '.join(roles)}")


def unread_columns(experiment: Experiment, context: CheckContext) -> tuple[str, ...]:
    """Return the columns of the training data that neither the trainer nor a reward nor the prompt reads.

    A reward with `**columns` reads all of them. Empty if the columns are not known, or a trainer class of the user's
    may read any.
    """
    data, trainer = experiment.data, experiment.trainer
    is_known = bool(context.used_columns) and not (trainer.row.generates and trainer.own_class is not None)
    if not is_known or None in context.read_by_rewards:
        return ()
    read = context.used_columns - {"margin"} | set(context.read_by_rewards) | set(preference_rules(experiment).columns)
    if (prompt := data.model_dump()["prompt"]) is not None:
        read |= template_columns(prompt)
    if data.transcripts:
        read |= set(DIALOGUES)
    training = [source for source in context.sources if source not in context.held_out]
    read |= {old.partition(".")[0] for source in training for old in source.source.rename.values() if "." in old}
    return tuple(dict.fromkeys(name for source in training for name in source.columns if name not in read))


def _sound_pairs(rows: RowTable, experiment: Experiment, name: str) -> RowTable:
    """Return the pairs of a reward model without those that the rules drop."""
    from rlhf_cli.data.preferences import IDS, check_pair_columns, no_pair_left, sound_pairs

    rules = preference_rules(experiment)
    check_pair_columns(rows.column_names, rules, name=name)
    if set(IDS) <= set(rows.column_names):
        return rows
    left_out, _ = sound_pairs(rows, rules, name=name)
    sound = rows.select([row for row in range(len(rows)) if row not in left_out])
    if len(sound) == 0:
        raise no_pair_left(list(left_out.values()), name=name)
    return sound
