"""Inspect a file of the user: which trainings it suits, and which columns they read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlhf_cli.data.column_kinds import ColumnKind, kind_of, label
from rlhf_cli.data.learnt_columns import OTHER_NAMES, XLAM, plain_name, stand_in
from rlhf_cli.data.peeking import Preview, peek
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.tables.trl_trainers import TRAINERS, ColumnSet, TrainerRow
from rlhf_cli.text.suggest import nearest

RowKind = Literal["prompts", "pairs", "judged", "demonstrations"]
"""Prompts to answer, pairs of a better and a worse answer, answers judged good or bad, prompts with good answers."""


@dataclass(frozen=True)
class Training:
    """A trainer of conf/trainer, for a new project.

    `trl` is the class of TRL's that it runs. `what` completes the sentence "train ..." of a question. `tiny_rate`
    is the learning rate for the embedded model of 0.15 M parameters, `rate` the initial one for a real model: for
    policies trained on rewards, that of the GRPO paper (arXiv 2402.03300), otherwise that of TRL's examples.
    """

    name: str
    trl: str
    what: str
    rows: RowKind
    tiny_rate: str
    rate: str
    steps: int = 60

    @property
    def row(self) -> TrainerRow:
        """Return the row of TRL's trainer that it runs."""
        return TRAINERS[self.trl]

    @property
    def read_as_they_are(self) -> tuple[ColumnSet, ...]:
        """Return the sets of columns that TRL reads without renaming, if a training reads several kinds of rows."""
        return self.row.learns_from if self.rows in ("judged", "demonstrations") else ()

    @property
    def generates(self) -> bool:
        """Return whether it generates answers, which rewards score."""
        return self.rows == "prompts"


_ROWS = (
    Training("grpo", "GRPOTrainer", "a policy by rewards of yours, compared in groups", "prompts", "1.0e-3", "1.0e-6"),
    Training("rloo", "RLOOTrainer", "a policy by rewards, answers against the others", "prompts", "1.0e-3", "1.0e-6"),
    Training("ppo", "GRPOTrainer", "a policy by rewards, with a critic (PPO)", "prompts", "3.0e-4", "1.0e-6", 160),
    Training("sft", "SFTTrainer", "a model on prompts with good answers", "demonstrations", "6.0e-3", "2.0e-5", 200),
    Training("dpo", "DPOTrainer", "a policy on pairs of a better and a worse answer", "pairs", "5.0e-4", "1.0e-6"),
    Training("orpo", "ORPOTrainer", "the same without a reference model", "pairs", "5.0e-4", "1.0e-6"),
    Training("cpo", "CPOTrainer", "the same with a supervised term", "pairs", "5.0e-4", "1.0e-6"),
    Training("kto", "KTOTrainer", "a policy on single answers, each judged good or bad", "judged", "5.0e-4", "1.0e-6"),
    Training("reward", "RewardTrainer", "a reward model on pairs of two answers", "pairs", "1.0e-3", "1.0e-5"),
)

TRAININGS: dict[str, Training] = {row.name: row for row in _ROWS}  # by name, as in `trainer=NAME`, in display order


def training_named(word: str) -> Training:
    """Return the training for a typed word. Raise ConfigError for an unknown one."""
    if word in TRAININGS:
        return TRAININGS[word]
    close, expected = nearest(word, TRAININGS), f"one of {', '.join(TRAININGS)}"
    hint = f"--trains {close}" if close else "rlhf list trainer"
    raise ConfigError(f"a new project cannot train {word!r}", where="--trains", got=word, expected=expected, hint=hint)


_LOOKED_AT_ROWS = 200
_SUM = re.compile(r"[\d\s+*/=?().-]{1,24}")
_ANSWER = "answer"
_LAST_NUMBER = re.compile(r"\d[\d,]*(\.\d+)?\D{0,3}$")  # at the end of an answer: `22`, `#### 1,234`, `= 5.5 m`


_HOLDS: dict[str, tuple[str, ...]] = {
    _ANSWER: (ColumnKind.TEXT, ColumnKind.INTEGER, ColumnKind.NUMBER),
    "label": (ColumnKind.BOOL,),
}
"""The types that a column may hold; the others hold text or a list of messages."""
COLUMNS: dict[RowKind, dict[str, bool]] = {
    "prompts": {"prompt": True, _ANSWER: False},
    "pairs": {"prompt": False, "chosen": True, "rejected": True},
    "judged": {"prompt": True, "completion": True, "label": True},
    "demonstrations": {"prompt": True, "completion": True},
}
"""Maps a kind of rows to its columns, and each column to whether it is needed."""


@dataclass(frozen=True)
class OwnRows:
    """Facts about a file of rows for a training.

    `rename` maps a training's column to the file's. `num_rows` is None if the file does not say. `has_answer`: a column
    allows answers to be checked; `answer_is_number`: it held a number in every inspected row. `columns` have their new
    names. `is_sums`: the prompts are short calculations, which the tiny model can learn. `question` is the column of
    questions beside tools and calls, which the prompt is a message of; None in other files.
    """

    path: str
    rename: dict[str, str]
    num_rows: int | None
    has_answer: bool
    answer_is_number: bool
    is_chat: bool
    columns: tuple[str, ...] = ()
    is_sums: bool = False
    question: str | None = None


def read_own_rows(path: str, training: Training, typed: Mapping[str, str]) -> OwnRows:
    """Inspect a file of rows for a training; `typed` maps its columns to the file's. Raise DataError."""
    preview = _look_at(path, typed)
    roles = COLUMNS[training.rows]
    for role, column in typed.items():
        if role not in roles or column not in preview.columns:
            what = f"there is no column {column!r}" if role in roles else f"{training.name} reads no column {role!r}"
            got, expected = f"columns {', '.join(preview.columns)}", f"ROLE=COLUMN with one of {', '.join(roles)}"
            raise DataError(what, where=f"--column {role}={column}", got=got, expected=expected)
    calls = training.rows == "demonstrations" and not typed and {*XLAM, "tools"} <= {*preview.columns}
    mapped = {"completion": XLAM[1]} if calls else _mapped(preview, training, typed)
    # TRL learns from some rows as they are: messages, pairs.
    is_ready = calls or any(set(columns) <= set(preview.columns) for columns in training.read_as_they_are)
    if missing := [role for role, is_needed in roles.items() if is_needed and not is_ready and role not in mapped]:
        what = f"which column is the {' and which the '.join(missing)}?"
        expected = f"for {training.name}: {', '.join(roles)}"
        got = "columns " + ", ".join(f"{name} ({_holds(preview, name)})" for name in preview.columns)
        hint = _other_training(preview, training) or " ".join(f"--column {role}=NAME" for role in missing)
        raise DataError(what, where="--data", got=got, expected=expected, hint=hint)
    prompts, answers = ([row.get(mapped.get(role, role)) for row in preview.rows] for role in ("prompt", _ANSWER))
    has_answer = training.generates and _ANSWER in mapped
    return OwnRows(
        path=path,
        rename={role: column for role, column in mapped.items() if role != column},
        num_rows=preview.num_rows,
        has_answer=has_answer,
        answer_is_number=has_answer
        and all(
            isinstance(answer, int | float) or (isinstance(answer, str) and _LAST_NUMBER.search(answer) is not None)
            for answer in answers
        ),
        is_chat=any(isinstance(prompt, list) for prompt in prompts),
        columns=tuple({column: role for role, column in mapped.items()}.get(name, name) for name in preview.columns),
        is_sums=all(isinstance(prompt, str) and _SUM.fullmatch(prompt) is not None for prompt in prompts),
        question=XLAM[0] if calls else None,
    )


def _other_training(preview: Preview, training: Training) -> str | None:
    for name, other in TRAININGS.items():
        needed = {role for role, is_needed in COLUMNS[other.rows].items() if is_needed}
        sets = [needed, *map(set, other.read_as_they_are)]
        if other.rows != training.rows and any(columns <= set(preview.columns) for columns in sets):
            return f"--trains {name}"
    return None


def _look_at(path: str, typed: Mapping[str, str]) -> Preview:
    roles = {name for some in COLUMNS.values() for role in some for name in (role, *OTHER_NAMES[role])}
    roles |= {plain_name(column) for column in typed.values()}
    source = DataSource(path=path, name="--data", is_read=lambda column: plain_name(column) in roles)
    if source.is_hub:
        what = "a project is made without a network, so the columns of a dataset on the hub are unknown"
        expected = "sample, or a file: JSONL, JSON, CSV, Parquet"
        advice = f"rlhf init --data sample, then data.path={path} and data.rename in conf/exp/first.yaml"
        raise DataError(what, where="--data", got=path, expected=expected, advice=advice)
    try:
        return peek(source, limit=_LOOKED_AT_ROWS)
    except DataError as error:
        error.where = (error.where or "--data").replace("--data.path", "--data")
        raise


def _mapped(preview: Preview, training: Training, typed: Mapping[str, str]) -> dict[str, str]:
    """Return a map of the training's column -> the file's column: first the typed ones, then equal names or types."""
    mapped = dict(typed)
    for role in [role for role in COLUMNS[training.rows] if role not in typed]:
        holds, taken = _HOLDS.get(role, (ColumnKind.TEXT, "list")), {"chosen", "rejected"} - {role} | {*mapped.values()}
        left = [name for name in preview.columns if name not in taken and _holds(preview, name) in holds]
        found = stand_in(role, left, guesses=False)
        mapped |= {role: found} if found is not None else {}
    return mapped


def _holds(preview: Preview, column: str) -> str:
    """Return the type of a column, by its first value that is not None among the inspected rows."""
    value = next((row[column] for row in preview.rows if row.get(column) is not None), None)
    return label(kind_of(value))
