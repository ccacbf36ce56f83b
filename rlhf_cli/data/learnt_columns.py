"""Check what the columns that a trainer reads hold, and select those that SFT, DPO, KTO and reward trainers read.

TRL infers the row format from the columns, and an extra column changes its choice: a text `prompt` beside `messages`,
or beside `chosen` as messages, raises a KeyError. So we keep the first complete set of columns and drop the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from rlhf_cli.data.dialogues import ANSWERS, SPEAKERS, as_messages, as_object, plain_messages
from rlhf_cli.data.rows import (
    DIALOGUES,
    TEXT_PARTS,
    Dataset,
    Messages,
    Table,
    at_rows,
    check_rows,
    is_empty,
    kind_of_text,
    refuse_no_text,
    values_of,
)
from rlhf_cli.data.source import typed_rename
from rlhf_cli.errors import DataError
from rlhf_cli.tables.trl_trainers import IMAGES, TEXT, TrainerRow
from rlhf_cli.text.suggest import nearest

_WITH_IDS = ("labels", "completion_mask", "assistant_masks")  # columns that SFT reads beside `input_ids` only
ASKING = ("system", "developer", "user", "tool")  # roles that do not answer
_ANSWERING = ("assistant", "model")
_SWITCHES = ("weight", "train", "training", "train_detail", "loss", "loss_scale", "loss_mask", "step_loss_mask")
"""Keys by which OpenAI, axolotl, ms-swift, verl and slime leave a message, or part of it, out of the loss."""

_BESIDE = ("input", "context")
_OTHER_NAMES = {
    "prompt": "question instruction query input inputs problem task user post text context_messages",
    "completion": "response answer output solution summary reply assistant chosen target targets",
    "chosen": "better preferred accepted winner good positive best response_chosen chosen_response preferred_output",
    "rejected": "worse dispreferred loser bad negative worst response_rejected rejected_response non_preferred_output",
    "label": "good desirable is_good thumb thumbs_up feedback liked is_correct kto_tag",
    "messages": "conversation dialogue dialog chat_messages contents",
    "answer": "ground_truth final_answer solution target label gold expected reference result",
    "solution": "ground_truth answer",
}
OTHER_NAMES = {column: tuple(names.split()) for column, names in _OTHER_NAMES.items()}  # the likeliest first
XLAM = ("query", "answers")  # Salesforce's question, and the calls that answer it, beside the tools


def learnt_columns(
    trainer: TrainerRow,
    columns: Sequence[str],
    *,
    text_field: str = TEXT,
    name: str = "data",
    first: Mapping[str, object] | None = None,
) -> tuple[str, ...]:
    """Return the columns that `trainer` learns from, with those that it reads beside them.

    `text_field` is the column that SFTTrainer reads as plain text. Raise DataError, with the existing columns and those
    inside a column of the `first` row, if no set is complete.
    """
    if names := read_columns(trainer, columns, text_field=text_field):
        return tuple(names)
    sets = [tuple(text_field if name == TEXT else name for name in names) for names in trainer.learns_from]
    # The most complete set; the first of equals.
    wanted = max(sets, key=lambda names: sum(name in columns for name in names) / len(names))
    missing = [name for name in wanted if name not in columns]
    what, got = f"the data has no column {' and no column '.join(map(repr, missing))}", "columns " + ", ".join(columns)
    expected = trainer.expected_columns.replace(TEXT, text_field)
    asked = None if "prompt" in columns else stand_in("prompt", columns, guesses=False, first=first)
    prompt = [] if asked is None else [prompt_hint(name, asked, columns)]
    if {"chosen", "rejected"} <= {*missing} and (twins := _twins(columns, first or {})):
        renames = " ".join([*map(typed_rename, (name, name), ("chosen", "rejected"), twins), *prompt])
        advice = f"write a file with these columns, unless {twins[0]} is the better answer in every row: {renames}"
        raise DataError(what, where=name, got=got, expected=expected, advice=advice)
    near = ((column, stand_in(column, columns)) for column in missing)
    if ids := {f"{column}_ids": found for column, found in near if found is not None and found.endswith("_ids")}:
        is_read, advice = {*ids} in map(set, sets), "write a file with the texts: tokenizer.batch_decode of each column"
        hint = " ".join(typed_rename(name, new, old) for new, old in ids.items()) if is_read else None
        raise DataError(what, where=name, got=got, expected=expected, hint=hint, advice=None if is_read else advice)
    from_dialogue = _from_dialogue(trainer, missing, columns, name, first)
    hints, lacking = list(from_dialogue), list[str]()
    for column in missing:
        found = stand_in(column, columns, first=first)
        if column == "prompt" and found is not None and not from_dialogue:
            hints.append(prompt_hint(name, found, columns))
        elif found is not None and (not from_dialogue or column == "label"):
            hints.append(typed_rename(name, column, found))
        elif not from_dialogue:
            hints.append(typed_rename(name, column, "COLUMN"))
            lacking.append(column)
    hints += prompt if "prompt" in {*trainer.along} - {*missing} and not from_dialogue else []
    hint = " ".join(hints) + (", or trainer.args.dataset_text_field=COLUMN" if (TEXT,) in trainer.learns_from else "")
    hint += _to_add(*lacking) if lacking else ""
    if lacking and "teacher" in trainer.sections and (asked or "prompt" in columns):
        has_answers = {"prompt", "completion"} <= {*columns}
        hint = " ".join(["trainer=gold" if has_answers else "trainer=distillation", *prompt])
    raise DataError(what, where=name, got=got, expected=expected, hint=hint)


def _to_add(*columns: str) -> str:
    return f"  # no column looks like {' and '.join(columns)}: if none holds it, add it to the file"


def rename_hint(name: str, column: str, found: str | None) -> str:
    """Return what to type so that a column that was `found` gets the name `column`; if none was, what is needed."""
    return typed_rename(name, column, found or "COLUMN") + (_to_add(column) if found is None else "")


def _from_dialogue(
    trainer: TrainerRow, missing: Sequence[str], columns: Sequence[str], name: str, first: Mapping[str, object] | None
) -> list[str]:
    """Return what to type so that the missing columns are made of a dialogue; empty if there is none."""
    split, dialogue = ["data.transcripts=true"], next((name for name in DIALOGUES if name in columns), None)
    if {"chosen", "rejected"} <= {*missing} and dialogue and (worse := stand_in("rejected", columns, guesses=False)):
        return [typed_rename(name, "chosen", dialogue), typed_rename(name, "rejected", worse), *split]
    if not {"prompt", "completion"} <= set(missing):
        return []
    if "tools" in trainer.along and {*XLAM, "tools"} <= set(columns):
        question, calls = XLAM
        return [f"data.prompt='[{{role: user, content: \"{{{question}}}\"}}]'", typed_rename(name, "completion", calls)]
    if other := None if dialogue else stand_in("messages", columns, guesses=False, first=first):
        return [typed_rename(name, "messages", other), *(split if ("messages",) not in trainer.learns_from else ())]
    return split if dialogue else []


def _twins(columns: Sequence[str], row: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the first two columns of answers whose names differ in a last 0 and 1, 1 and 2, or a and b."""
    others = ("model", "score", "rating")
    named = [column for column in columns if len(column) > 1 and not column.lower().startswith(others)]
    answers = [column for column in named if _fits("chosen", row.get(column))]
    pairs = ((first, second) for first in answers for second in answers if first[:-1] == second[:-1])
    return next((pair for pair in pairs if (pair[0][-1] + pair[1][-1]).lower() in ("01", "12", "ab")), None)


def prompt_hint(name: str, column: str | None, columns: Sequence[str]) -> str:
    """Return what to type so that the prompt is a column's text, with what Alpaca and Dolly put beside it."""
    more = next((other for other in _BESIDE if other in columns and column == "instruction"), None)
    return rename_hint(name, "prompt", column) if more is None else f"data.prompt='{{{column}}} {{{more}}}'"


def stand_in(
    column: str, columns: Sequence[str], *, guesses: bool = True, first: Mapping[str, object] | None = None
) -> str | None:
    """Return the column that probably holds what `column` should: one of a known other name, else of a near one.

    Between these, look for the path of one that lies inside a column of the `first` row, as `body.messages`. Where it
    is given, it holds text or messages there if `column` does.
    """
    names, fitting = OTHER_NAMES.get(column, ()), [name for name in columns if _fits(column, (first or {}).get(name))]
    spelt = {plain_name(name): name for name in reversed(fitting)}
    if known := next((spelt[other] for other in (column, *names) if other in spelt), None):
        return known
    inside = {old: as_object(value) for old, value in (first or {}).items()}
    sought = (column, *(DIALOGUES if column == "messages" else ()), *names)
    if "ground_truth" in names:  # beside it, an answer may be a worked solution, as in verl's rows
        sought = (*names, column)
    parts = [(old, name) for name in sought for old in inside]
    parts += [(old, name) for old in names if old in inside and column not in DIALOGUES for name in TEXT_PARTS]
    found = ((old, name) for old, name in parts if name in inside[old] and _fits(column, inside[old][name]))
    return next(map(".".join, found), None) or (nearest(column, fitting) if guesses else None)


def plain_name(column: str) -> str:
    """Normalise a column's name for comparison: `Final Answer` becomes final_answer."""
    return re.sub(r"[\W_]+", "_", column.lower()).strip("_")


def _fits(column: str, value: object) -> bool:
    """Return whether a value is of the kind that a column of this name has: text or messages, a label, anything."""
    if value is None or column not in ("label", "prompt", *ANSWERS, *DIALOGUES):
        return True
    if column == "label":
        return isinstance(value, str | int | float)
    kind = kind_of_text(as_messages(value))
    return kind == "messages" or (kind == "text" and column not in DIALOGUES)


def read_columns(trainer: TrainerRow, columns: Sequence[str], *, text_field: str = TEXT) -> list[str]:
    """Return the columns that TRL reads: the first complete set and those beside it; none if no set is complete."""
    sets = [[text_field if name == TEXT else name for name in names] for names in trainer.learns_from] or [["prompt"]]
    names = next((names for names in sets if set(names) <= set(columns)), [])
    along = [name for name in trainer.along if names and name in columns and name not in names]
    return [*names, *(name for name in along if name not in _WITH_IDS or "input_ids" in names)]


def only_learnt(dataset: Dataset, trainer: TrainerRow, *, text_field: str = TEXT, name: str = "data") -> Dataset:
    """Return the rows with only the columns that `trainer` reads. Raise DataError for what `check_columns` refuses."""
    selected: Dataset = dataset.select_columns(check_columns(dataset, trainer, text_field=text_field, name=name))
    if "conversations" in selected.column_names:  # the name under which TRL expects ShareGPT's keys
        selected = selected.rename_column("conversations", "messages")
    return selected if "tools" in trainer.along else plain_messages(selected)


def check_columns(
    dataset: Table, trainer: TrainerRow, *, text_field: str = TEXT, name: str = "data", reads_images: bool | None = None
) -> list[str]:
    """Check what the columns hold that `trainer` reads, and return these columns.

    `reads_images` says whether the model does, None if that is not known. Raise DataError for missing columns, empty
    values and the first row with a value that the trainer does not take.
    """
    if trainer.learns_from:
        first_row = dataset[0] if len(dataset) else None
        learnt_columns(trainer, dataset.column_names, text_field=text_field, name=name, first=first_row)
    columns = read_columns(trainer, dataset.column_names, text_field=text_field) or ["prompt"]
    texts = [column for column in columns if column in ("prompt", text_field, *DIALOGUES, *ANSWERS)]
    check_rows(dataset, [column for column in texts if column != "prompt" or "chosen" not in columns], name)
    if reads_images is False and (images := [column for column in IMAGES if column in dataset.column_names]):
        what = f"TRL reads the column {images[0]!r} as pictures, and this model reads only text"
        advice = "name a model that reads images, such as model.path=HuggingFaceTB/SmolVLM-256M-Instruct"
        advice += f"; {name}.rename.picture={images[0]} reads the texts alone"
        raise DataError(what, where=name, expected="a model with a vision_config", advice=advice)
    if text_field in columns and "role" in dataset.column_names and str(dataset[0]["role"]).lower() in SPEAKERS:
        what, hint = "every row is one message of a dialogue", f"{name}.rename.speaker=role  # learns each text alone"
        got, expected = f"the columns {text_field!r} and 'role'", "a dialogue in each row: [{role: user, content: ...}]"
        raise DataError(what, where=name, got=got, expected=expected, hint=hint)
    given = () if trainer.learns_from else ("prompts", "completions")
    if (other := next((column for column in given if column in dataset.column_names), None)) is not None:
        what = f"a reward gets the {other} of this training under the name of the column {other!r}"
        hint = f"{name}.rename.data_{other}={other}"
        raise DataError(what, where=name, expected="another name for the column", hint=hint)
    kinds = {column: refuse_no_text(column, dataset[0][column], name) for column in texts}
    if "chosen" in columns and not _has_prompt(dataset, columns, name):
        columns.remove("prompt")
        del kinds["prompt"]
    if len(set(kinds.values())) > 1:
        what, got = "some of these columns hold text, the others messages", ", ".join(map(" is ".join, kinds.items()))
        expected = "all of them text, or all of them messages: TRL concatenates prompt and answer"
        if kinds.get("prompt") == "text":
            as_message = "data.prompt='[{role: user, content: \"{prompt}\"}]'"
            raise DataError(what, where=name, got=got, expected=expected, hint=as_message)
        raise DataError(what, where=name, got=got, expected=expected, advice="write them alike, in the file")
    kinds |= dict.fromkeys(DIALOGUES, "messages") | ({} if text_field in DIALOGUES else {text_field: "text"})
    reads = {"images": reads_images, "tools": not trainer.learns_from or "tools" in trainer.along}
    reads["answer"] = trainer.answers_up_to is not None  # it takes the last message for the answer
    for column in columns:
        for number, value in enumerate(values_of(dataset, column) if column not in IMAGES else (), 1):
            if (wrong := _wrong(column, value, kinds.get(column), reads)) is not None:
                what = f"the trainer cannot read the column {column!r}"
                raise DataError(what, where=at_rows(name, number), got=f"{value!r:.160}", expected=wrong)
    return columns


def _wrong(column: str, value: object, kind: str | None, reads: Mapping[str, bool | None]) -> str | None:
    """Return what a column of this kind has to hold, or None if this value is right."""
    if column == "label":
        return None if value in (True, False) else "true for a good answer, false for a bad one (1 and 0 will do)"
    if column == "chat_template_kwargs":
        return None if isinstance(value, Mapping) else "an object: the template's variables and their values"
    if column == "tools":
        is_right = value is None or (isinstance(value, list) and all(isinstance(tool, Mapping) for tool in value))
        return None if is_right else "a list of functions, or JSON text of such a list"
    if column == "privileged_context":
        return None if value and isinstance(value, str | list) else "a text, or messages"
    if column in ("input_ids", "chosen_ids", "rejected_ids"):
        is_right = isinstance(value, list) and bool(value) and all(isinstance(token, int) for token in value)
        return None if is_right else "a list of token ids"
    if kind is not None and kind_of_text(value) != kind:
        return f"{kind} in every row"
    return _wrong_messages(column, cast("Messages", value), reads) if kind == "messages" else None


def _wrong_messages(column: str, messages: Messages, reads: Mapping[str, bool | None]) -> str | None:
    for place, message in enumerate(messages, 1):
        content, who = message.get("content"), f"message {place} ({message['role']})"
        is_blank = content is None or (column != "prompt" and message["role"] in _ANSWERING and is_empty(content))
        if (set(message) <= {"role", "content"}) if is_blank else not isinstance(content, str | list):
            return f"messages with text; {who} has {content!r:.60}"
        parts = [part.get("type") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
        if reads["images"] is False and (other := next((kind for kind in parts if kind != "text"), None)) is not None:
            return f"text; {who} has a part of the type {other}, which this model does not read"
        if message.get("tool_calls") and not reads["tools"]:
            return f"messages of text; {who} calls a tool, which this trainer does not read"
        unlearned = _unlearned(message)
        if unlearned and column != "prompt" and not reads["answer"] and message["role"] in _ANSWERING:
            what = f"{who} has {unlearned}: {message[unlearned]}, and TRL learns every message of the assistant"
            ends_learnt = column in DIALOGUES and _unlearned(messages[-1]) is None
            return what + ("; data.transcripts=true learns the last one only" if ends_learnt else "; leave out the row")
    last = str(messages[-1]["role"])
    if column == "prompt" and last in _ANSWERING:
        return "a prompt that ends before the answer; its last message is the assistant's"
    if column in DIALOGUES and reads["answer"] and last in ASKING:
        return f"a conversation that ends with the assistant's answer; its last message is by {last}"
    if column in ANSWERS and last in ASKING:
        return f"an answer that ends with the assistant's message; its last message is by {last}"
    if column in DIALOGUES and all(message["role"] in ASKING for message in messages):
        return "at least one message by the assistant"
    return None


def _unlearned(message: Mapping[str, object]) -> str | None:
    """Return the first switch that leaves a message, or part of it, out of the loss."""
    return next((key for key in _SWITCHES if key in message and not _is_learnt(message[key])), None)


def _is_learnt(switch: object) -> bool:
    """Return whether a message with this value of a switch is learnt whole, with its full weight."""
    if isinstance(switch, list):  # axolotl's spans of a text
        return all(not isinstance(span, Mapping) or span.get("train", True) for span in switch)
    if isinstance(switch, str):
        return switch.lower() not in ("", "false", "no", "0")
    return switch == 1 if isinstance(switch, int | float) else bool(switch)


def _has_prompt(dataset: Table, columns: Sequence[str], name: str) -> bool:
    """Return whether TRL should read the column `prompt` of pairs, or find their prompt in both answers.

    False if both answers repeat it and the column is text. Raise DataError for pairs without a prompt: TRL would take
    the letters that both answers begin with.
    """
    first, pairs = dataset[0], zip(*(values_of(dataset, column) for column in ("chosen", "rejected")), strict=True)
    is_whole = all(
        kind_of_text(answer) == "messages" and cast("Messages", answer)[0]["role"] not in _ANSWERING
        for pair in pairs
        for answer in pair
    )
    if "prompt" in columns and not (is_whole and isinstance(first["prompt"], str)):
        return True
    if is_whole:
        both = zip(values_of(dataset, "chosen"), values_of(dataset, "rejected"), strict=True)
        for number, (chosen, rejected) in enumerate(cast("Iterable[tuple[Messages, Messages]]", both), 1):
            if chosen[0] != rejected[0]:
                what, got = "the two dialogues of a pair begin differently", f"{chosen[0]} and {rejected[0]}"[:160]
                expected = "the same prompt in both, and another answer: TRL takes the messages that both begin with"
                raise DataError(what, where=at_rows(name, number), got=got, expected=expected)
        return "prompt" not in columns
    is_text = isinstance(first["chosen"], str)
    dialogue = next((column for column in DIALOGUES if column in dataset.column_names), None)
    named = {column: first[column] for column in OTHER_NAMES["prompt"] if column in dataset.column_names}
    question = stand_in("prompt", [*named], guesses=False, first=named) or dialogue
    column, _, part = (question or "").rpartition(".")
    asked = first.get(question or "", as_object(first.get(column)).get(part, ""))
    if is_text and all(str(asked).strip() in str(first[answer]) for answer in ("chosen", "rejected")):
        return True
    hint = prompt_hint(name, question, dataset.column_names)
    if question is not None and isinstance(asked, str) and not is_text:
        renames, asked = ("", question) if question in first else (f"{hint} ", "prompt")
        hint = f"{renames}data.prompt='[{{role: user, content: \"{{{asked}}}\"}}]'"
    what = "the pairs have no prompt, neither in a column 'prompt' nor at the beginning of both answers"
    expected = "the question in the column prompt" + (f"; it may be in {question}" if question else "")
    raise DataError(what, where=name, got="columns " + ", ".join(dataset.column_names), expected=expected, hint=hint)
