"""Check the data of a run, training and held-out rows alike."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import cast

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import ENVIRONMENT_COLUMN
from rlhf_cli.data.dialogues import ANSWERS, ROLES, SPEAKERS, SYSTEM
from rlhf_cli.data.learnt_columns import ASKING, check_columns, prompt_hint, read_columns, rename_hint, stand_in
from rlhf_cli.data.peeking import LEFT_OUT, peek, prepare_preview
from rlhf_cli.data.preferences import IDENTICAL, IDS, bad_pairs, check_pair_columns, no_pair_left, sound_pairs
from rlhf_cli.data.preparing import mixed_kinds, template_columns
from rlhf_cli.data.rows import DIALOGUES, RowTable, hold_out_places, is_empty, kind_of_text, values_of
from rlhf_cli.data.source import DataSource, Template, missing_column, typed_rename
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import ConfigError, DataError, RewardError, UserError
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, ReadSource, RewardFacts, Subject
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.sources_and_components import columns_read, eval_sources, preference_rules, training_sources
from rlhf_cli.tables.trl_trainers import IMAGES, TrainerRow

_LOOKED_AT = 50_000  # how many rows of a source are checked: a table of millions would take long, and much memory
_ASKED_ABOUT = 5_000  # how many values a reward looks at: to parse the tests in one takes half a millisecond


def source_problems(subject: Subject) -> Check[DataFacts]:
    """Read every source, and yield an error for each that cannot be read; then columns and counts stay unknown."""
    experiment, data = subject.experiment, subject.experiment.data
    training, prompt = training_sources(experiment), data.model_dump()["prompt"]
    mistakes, read, files = list[tuple[object, ...]](), list[ReadSource](), dict[str, Path]()
    for source in (*training, *eval_sources(experiment)):
        try:
            read.append(_read(source, prompt, experiment.seed))
        except UserError as error:
            if error.where in subject.composed.origins.by_key:
                error.where = subject.where(str(error.where))
            mistake = (error.what, error.got, error.expected)
            if mistake not in mistakes:  # the held-out rows often repeat a value of the training rows
                yield source.with_file(error)
            mistakes.append(mistake)
        else:
            yield from (Notice(source.name, LEFT_OUT.format(column)) for column in read[-1].preview.left_out)
            local = [Path(path).expanduser().resolve() for path in source.paths if Path(path).expanduser().exists()]
            files |= {f"{source.name}[{place}]" if place else source.name: path for place, path in enumerate(local)}
    names = {source.name for source in training}
    trained_on = tuple(one for one in read if one.source.name in names)
    held = tuple(one for one in read if one.source.name not in names)
    facts = DataFacts(trained_on, held, files)
    if mistakes:
        return facts
    tables = {one.source.name: one.rows for one in trained_on if one.rows is not None and len(training) > 1}
    try:
        mixed_kinds([source for source in training if source.name in tables], [*tables.values()])
    except UserError as error:
        yield error
    counts = [one.num_selected for one in held if one.num_selected]
    facts = replace(
        facts,
        described=" + ".join(one.preview.origin for one in trained_on),
        columns=tuple(name for name in trained_on[0].columns if all(name in other.columns for other in trained_on)),
        num_rows=trained_on[0].num_selected if len(training) == 1 else None,
        num_held_out=sum(counts) if counts and len(counts) == len(held) else None,
    )
    if data.fraction is not None:
        table, num_rows = trained_on[0].rows, facts.num_rows
        facts = replace(facts, num_rows=None)
        if table is None or len(table) != num_rows:
            return facts  # not all rows were read
        try:
            kept, split_off = hold_out_places(table, data.fraction, experiment.seed)
            return replace(facts, num_rows=len(kept), num_held_out=len(split_off) + (facts.num_held_out or 0))
        except UserError as error:
            yield error
    return facts


def _read(source: DataSource, prompt: Template | None, seed: int) -> ReadSource:
    preview = peek(source, limit=_LOOKED_AT, seed=seed)
    is_sliced = source.split is not None and "[" in source.split  # `datasets` takes the slice, and counts it
    count, select = None if is_sliced else preview.num_rows, source.select
    if count is not None and select is not None:
        source.check_selection(count)
        count = min(count, select) if isinstance(select, int) else select[1] - select[0]
    names, table = prepare_preview(source, preview, prompt)
    if source.keep is not None:
        count = len(table) if table is not None and len(preview.rows) == preview.num_rows else None
    return ReadSource(source, preview, names, table, count)


def column_problems(subject: Subject, data: DataFacts, rewards: RewardFacts) -> Findings:
    """Yield an error for every column that the trainer or a reward reads and the training or held-out data lacks, and
    for each argument of a reward function that has neither a value nor a column.
    """
    experiment, missing_arguments = subject.experiment, rewards.missing_arguments
    if not experiment.trainer.row.generates:
        return  # the plan of the steps checks the columns
    wanted = {f"trainer={experiment.trainer.name}": ["prompt"]}
    made = experiment.rollout_columns
    for name, needs in rewards.columns.items():
        not_data = {*missing_arguments.get(name, ()), *made}
        wanted[f"rewards.{name}"] = [column for column in needs if column not in not_data]
    if isinstance(experiment.environment, dict):
        wanted["environment"] = [ENVIRONMENT_COLUMN]
    for table, reads in [("data", data.training), *((read.source.name, (read,)) for read in data.held_out)]:
        columns = data.columns if table == "data" else reads[0].columns
        tables = [read.rows for read in reads if read.rows and len(read.rows) == read.num_selected]
        for reader, needs in wanted.items():
            for column in needs if columns else ():
                values = [value for rows in tables if column in columns for value in values_of(rows, column)]
                if column not in columns:
                    yield reads[0].source.with_file(_no_column(subject, data, table, reads[0], reader, column, needs))
                elif column != "prompt" and len(tables) == len(reads) and all(map(is_empty, values)):
                    what, expected = f"the column {column!r} is empty in all rows", f"values, which {reader} reads"
                    yield DataError(what, where=table, got="null or empty texts", expected=expected)
    for name, missing in missing_arguments.items():
        for argument in missing:
            if argument not in (*data.columns, *made):
                reward, key = experiment.rewards[name], f"rewards.{name}.args.{argument}"
                what, where = f"{reward.fn} needs the argument {argument!r}", subject.where(f"rewards.{name}.fn")
                got = ", ".join(f"{given}={value}" for given, value in reward.args.items()) or "no arguments"
                expected = f"{key}, or a column of that name in the data"
                yield RewardError(what, where=where, got=got, expected=expected, hint=f"{key}=VALUE")


def value_problems(data: DataFacts, rewards: RewardFacts) -> Findings:
    """Yield an error for the first value of a column that a ready-made reward refuses, in each source, and a notice for
    values that are empty, or that it reads in another way than was meant.
    """
    asked = [(name, column) for name, needs in rewards.columns.items() for column in needs]
    for read, (name, column) in product(data.sources, asked):
        if read.rows is None or column not in read.columns:
            continue
        check = rewards.checks[name].get(column)
        values, found = list(islice(values_of(read.rows, column), _ASKED_ABOUT)), dict[str, list[int]]()
        for row, value in enumerate(values):
            try:
                fault = "is empty" if is_empty(value) else check(value) if check is not None else None
            except RewardError as error:
                error.where = f"{read.source.name}, column {column}, row {row + 1} (the first row is 1)"
                yield read.source.with_file(error)
                break
            if fault is not None:
                found.setdefault(fault, []).append(row)
        for fault, rows in found.items():
            text = f"in {len(rows)} of {len(values)} rows read, {column}, which rewards.{name} reads, {fault}"
            yield Notice(read.source.name, f"{text}; the first is row {rows[0] + 1}: {values[rows[0]]!r:.60}")


def _no_column(
    subject: Subject, data: DataFacts, table: str, read: ReadSource, reader: str, column: str, needs: list[str]
) -> DataError:
    """Return the error for a column that `table` lacks and `reader` (a trainer or a reward) needs, as all `needs`."""
    new = next((new for read in data.sources if (new := read.source.new_name(column)) is not None), None)
    if new is not None:  # `rename` removes the old name, a template keeps it
        what, where = f"the column {column!r}, which {reader} reads, was renamed to {new!r}", f"{table}.rename.{new}"
        hint = f"'~{where}'" + (f" data.prompt='{{{column}}}'" if new == "prompt" else "")
        return DataError(what, where=subject.where(where), hint=hint)
    worlds = with_columns([needs]) if subject.experiment.data.world is not None and table == "data" else ()
    argument = f"; or, if it is an argument, {reader}.args.{column}=VALUE" if reader.startswith("rewards.") else ""
    columns, first = data.columns if table == "data" else read.columns, read.rows[0] if read.rows is not None else None
    found = stand_in(column, columns, first=first)
    texts = (name for name in columns if first is None or isinstance(first[name], str))
    shown, hint = found or next(texts, columns[0]), rename_hint(table, column, found)
    if column == "prompt" and shown in columns:
        hint = prompt_hint(table, found, columns) + f", or data.prompt='... {{{shown}}} ...'"
    other = stand_in("messages", columns, guesses=False, first=first)
    dialogue = next((name for name in (*DIALOGUES, other) if name in columns and column == "prompt"), None)
    if dialogue is not None and first is not None:
        last = turns[-1] if isinstance(turns := first[dialogue], list) and turns else None
        said_by = last.get("role", last.get("from")) if isinstance(last, dict) else None
        is_answer = SPEAKERS.get(str(said_by).lower()) == "assistant"
        renamed = "" if dialogue in DIALOGUES else f"{table}.rename.messages={dialogue} "
        hint = f"{renamed}data.transcripts=true" if is_answer else f"{table}.rename.prompt={dialogue}"
    hint += "".join(f", or data={world}" for world in worlds)
    what, expected = f"the data has no column {column!r}", f"{column}, which {reader} reads{argument}"
    return DataError(what, where=table, got="columns " + ", ".join(columns), expected=expected, hint=hint)


def row_problems(subject: Subject, data: DataFacts) -> Check[tuple[frozenset[str], DataFacts]]:
    """Yield an error for each source with bad rows: empty prompts, text instead of numbers, unsound pairs. Return the
    columns that the trainer reads, empty if they are not known (the plan of the steps reports missing ones), and the
    facts without the pairs that are dropped.
    """
    experiment, row, used = subject.experiment, subject.experiment.trainer.row, set[str]()
    wanted = preference_rules(experiment).columns if data.columns and experiment.reward_model is not None else ()
    lacks_margin = [name for name in wanted if name not in data.columns]
    yield from (missing_column(name, data.columns, "reward_model.margin") for name in lacks_margin)
    text_field, reads_images = experiment.trainer.text_field, subject.reads_images
    for read in data.sources:
        rows, name, is_training = read.rows, read.source.name, read in data.training
        has_columns = not lacks_margin and read_columns(row, read.columns, text_field=text_field)
        if rows is None or ((is_training or row.generates) and not has_columns):
            continue  # reported elsewhere
        try:
            if row.trains == "reward model":
                check_pair_columns(rows.column_names, rules := preference_rules(experiment), name=name)
                dropped = {} if set(IDS) <= set(rows.column_names) else sound_pairs(rows, rules, name=name)[0]
                if len(dropped) == len(rows) > 0:
                    raise no_pair_left(list(dropped.values()), name=name)
                if dropped:
                    data, why = data.without(read, dropped, experiment), "equal or empty answers, or no margin"
                    yield Notice(name, f"{len(dropped)} of {len(rows)} pairs are left out: {why}")
                    rows = rows.select([place for place in range(len(rows)) if place not in dropped])
            columns = check_columns(rows, row, text_field=text_field, name=name, reads_images=reads_images)
            if is_training:
                used |= set(columns)
                if row.generates and "tools" in read.columns and not experiment.tools:
                    yield Notice(name, f"{row.name} shows no tools of a column: name them in the section tools")
                yield from _unread_settings(subject, columns, kind_of_text(rows[0][columns[0]]), name)
                yield from (Notice(name, text) for text in _remarks(subject, read, read.rows or rows, columns))
                in_prompt = template_columns(experiment.data.model_dump()["prompt"] or "")
                if (system := _system_column(read, used)) is not None and system not in in_prompt:
                    text = f"the text of {system} is the first message of the dialogues"
                    yield Notice(name, f"{text}; {name}.rename.unread={system} leaves it out")
        except UserError as error:
            yield read.source.with_file(error)
    return frozenset(used), data


def _unread_settings(subject: Subject, columns: Sequence[str], kind: str | None, name: str) -> Iterator[ConfigError]:
    """Yield an error for a setting of SFT's that does not fit rows of this kind: TRL passes over it, or raises."""
    trainer = subject.experiment.trainer
    arguments, text_field = trainer.args.get("dataset_kwargs"), trainer.args.get("dataset_text_field")
    whole = "=null trainer.args.assistant_only_loss=true" if kind == "messages" else "=null"
    skips = isinstance(arguments, dict) and bool(arguments.get("skip_prepare_dataset")) and "input_ids" not in columns
    is_part = trainer.setting("completion_only_loss") is True and not {"completion", "completion_mask"} & {*columns}
    other, unread = text_field is not None and text_field not in columns, typed_rename(name, "unread", columns[0])
    of_assistant = trainer.setting("assistant_only_loss") is True and kind == "text"
    for key, is_wrong, what, hint in (
        ("completion_only_loss", is_part, "the rows have no completion: TRL learns all", whole),
        ("assistant_only_loss", of_assistant, "text has no messages of an assistant", "=false"),
        ("dataset_text_field", other, f"{columns[0]!r} is learnt, not {text_field!r}", unread),
        ("dataset_kwargs", skips, "rows without token ids (input_ids) need to be prepared", "=null"),
    ):
        if is_wrong:
            key = f"trainer.args.{key}"
            typed = key + hint if hint.startswith("=") else hint
            yield ConfigError(what, where=subject.where(key), hint=typed)


def _remarks(subject: Subject, read: ReadSource, rows: RowTable, columns: list[str]) -> Iterator[str]:
    """Yield a text for each thing in the rows that may be meant in another way.

    Such as texts read as messages, answers that begin with their prompt, and unanswered questions.
    """
    trainer, talks = subject.experiment.trainer, dict[str, list[list[dict[str, object]]]]()
    for column in columns:
        messages = (talk for talk in values_of(rows, column) if kind_of_text(talk) == "messages")
        talks[column] = said = cast("list[list[dict[str, object]]]", list(messages))
        stored = read.preview.rows[0].get(read.source.rename.get(column, column))
        form = "ShareGPT's turns" if "'from': '" in str(stored) else "JSON text" if str(stored).startswith("[") else ""
        if kind_of_text(rows[0][column]) == "messages" and form and (isinstance(stored, str) == (form == "JSON text")):
            by = dict.fromkeys(str(message["role"]) for message in said[0])
            yield f"{column}: read {form} as messages by {', '.join(by)}"
    roles = dict.fromkeys(str(message["role"]) for said in talks.values() for talk in said for message in talk)
    if others := [role for role in roles if role not in ROLES]:
        yield f"messages by {', '.join(others)}: most chat templates know only {', '.join(ROLES)}"
    first = [rows[place] for place in range(min(200, len(rows)))]
    written = [name for name in columns if name not in IMAGES]
    if placed := sum(any("<image>" in str(row[name]) for name in written) for row in first):
        text = f"{placed} of the first {len(first)} rows hold the text <image>, which nothing replaces: take it out"
        yield f"{text}; a part {{type: image}} of the content marks the place of an image"
    answers = [column for column in columns if column in ANSWERS and "prompt" in columns]
    if answers and all(_begins_with(row[column], row["prompt"]) for row in first for column in answers):
        more = ". Of transcripts: data.rename.old_prompt=prompt data.transcripts=true" * ("chosen" in answers)
        yield f"every answer begins with its prompt, which TRL writes before it: the model reads it twice{more}"
    if {"chosen", "rejected"} <= set(columns):
        yield from _remarks_on_pairs(read, rows, columns, trainer.row)
    labels = set(values_of(rows, "label")) if "label" in columns and not subject.experiment.data.mix else ()
    if len(labels) == 1 < len(rows):
        label = str(bool(*labels)).lower()
        yield f"all {len(rows)} rows read have the label {label}, but KTO weighs good answers against bad ones"
    learns_all = trainer.setting("assistant_only_loss") is not True
    for column in answers if learns_all and trainer.row.trains != "reward model" else ():
        asked = [[role for message in talk[1:] if (role := str(message["role"])) in ASKING] for talk in talks[column]]
        if by := dict.fromkeys(role for some in asked for role in some):
            text = f"messages by {', '.join(by)} in {sum(map(bool, asked))} of {len(rows)} answers are learnt like the"
            only = "; trainer.args.assistant_only_loss=true leaves them out" * (trainer.row.name == "SFTTrainer")
            yield f"{column}: {text} model's own{only}"
    for said in (said for column, said in talks.items() if column in DIALOGUES and learns_all):
        if unanswered := [number for number, talk in enumerate(said, 1) if talk[-1]["role"] in ASKING]:
            text = f"{len(unanswered)} of {len(said)} conversations end without an answer, first row {unanswered[0]}"
            yield f"{text}; trainer.args.assistant_only_loss=true does not learn their last message"


def _remarks_on_pairs(read: ReadSource, rows: RowTable, columns: list[str], trainer: TrainerRow) -> Iterator[str]:
    """Yield a text for pairs without a prompt (TRL takes what both answers begin with for it), and for equal ones."""
    row = rows[0]
    shared = os.path.commonprefix((str(row["chosen"]), str(row["rejected"]))).split()  # noqa: RUF071
    if "prompt" not in columns and isinstance(row["chosen"], str) and len(shared) < 2:
        others = [other for other in read.columns if " " in str(row.get(other) or "").strip()]
        asked = next((other for other in others if other not in ("chosen", "rejected")), None)
        where = f"; if {asked} holds it: {typed_rename(read.source.name, 'prompt', asked)}" if asked else ""
        yield f"the pairs have no prompt, neither in a column 'prompt' nor at the beginning of both answers{where}"
    equal = list(bad_pairs(rows).values()).count(IDENTICAL) if trainer.trains != "reward model" else 0
    if equal:
        yield f"{equal} of {len(rows)} pairs have the same chosen and rejected answer. Are the columns right?"


def _begins_with(answer: object, prompt: object) -> bool:
    """Return whether an answer begins with its prompt, or with other messages of those who ask."""
    if kind_of_text(answer) == "messages":
        return cast("list[dict[str, object]]", answer)[0]["role"] in ASKING[:3]
    return isinstance(prompt, str) and bool(prompt) and str(answer).startswith(prompt)


def _system_column(read: ReadSource, used: Collection[str]) -> str | None:
    """Return the column whose text `with_system` has put before the dialogues of the first row, None if it did not."""
    row = read.rows[0] if read.rows else {}
    talks = [cast("list[dict[str, object]]", row[name]) for name in used if kind_of_text(row.get(name)) == "messages"]
    first = [talk[0].get("content") for talk in talks]
    return next((name for name in SYSTEM if row.get(name) and row[name] in first), None)


def unread_columns(experiment: Experiment, data: DataFacts, used: frozenset[str]) -> tuple[str, ...]:
    """Return the columns of the training data that neither the trainer, which reads `used`, nor a reward nor the prompt
    reads; none if that is unknown: a reward with `**columns` reads all, and a trainer class of the user's may read any.
    """
    trainer = experiment.trainer
    is_known, read = bool(used) and not (trainer.row.generates and trainer.own_class), columns_read(experiment)
    if not is_known or None in read or experiment.environment is not None:
        return ()
    read |= used - {"margin"}
    read |= {_system_column(source, used) for source in data.training}
    old_names = [old for source in data.training for old in source.source.rename.values()]
    read |= {old.partition(".")[0] for old in old_names if "." in old}
    return tuple(dict.fromkeys(name for source in data.training for name in source.columns if name not in read))
