"""Count the tokens of rows as TRL makes them, with the files of the policy's tokenizer and its chat template."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.images import in_parts
from rlhf_cli.data.rendering import TEMPLATE_ERRORS, Messages
from rlhf_cli.data.rows import DIALOGUES, RowTable, values_of
from rlhf_cli.data.source import Row
from rlhf_cli.models.tokenizer_files import TokenizerFiles, render_chat
from rlhf_cli.plan.checks.facts import ModelFolders
from rlhf_cli.tables.trl_trainers import TEXT, ColumnSet

ASKING = ("prompt", "tools", "chat_template_kwargs")
"""The columns that make a prompt."""
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_ANSWERS = ("completion", "chosen", "rejected", "reference")
_WHOLE = (*DIALOGUES, TEXT)
_IDS = ("input_ids", "chosen_ids", "rejected_ids")
_ADDED = 8
"""Upper bound on the special tokens added to a plain text."""


class _Text(NamedTuple):
    """What is tokenized: a dialogue that the chat template wrote, or a plain text, which gets special tokens."""

    text: str
    is_chat: bool = False
    ends: bool = False  # TRL ends a plain text that is learnt with a token


@dataclass(frozen=True)
class RowCounter:
    """Count the tokens of rows; `settings` are the template's variables for all of them.

    `columns` are those that the trainer reads beside the texts, `more_tokens` those that it adds to a row; `in_parts`:
    the template gets contents in parts.
    """

    tokenizer: TokenizerFiles
    settings: Mapping[str, object]
    columns: ColumnSet = ()
    more_tokens: int = 0
    in_parts: bool = False

    def prompts(self, rows: Sequence[Row], least: int = 0) -> list[int]:
        """Return the tokens of the rows' prompts, 0 without one; any number up to `least` may be 0."""
        return self._longest([[self._text(row, row.get("prompt") or "", asks=True)] for row in rows], least)

    def wholes(self, rows: Sequence[Row], least: int = 0) -> list[int]:
        """Return the tokens of rows that are trained on: the prompt with its longest answer, or the whole text."""
        counts = self._longest([[self._text(row, text, asks=False) for text in _wholes(row)] for row in rows], least)
        return [max(count + self.more_tokens, _ids(row)) for count, row in zip(counts, rows, strict=True)]

    def _text(self, row: Row, text: object, *, asks: bool) -> _Text:
        if not isinstance(text, list):
            return _Text(str(text), ends=not asks)
        read = {name: row.get(name) for name in self.columns}
        given = read.get("chat_template_kwargs")
        own = {"tools": read.get("tools") or None} | (given if isinstance(given, dict) else {})
        written = "".join(_contents(text))
        # The run reports a template that is missing, or fails on this conversation.
        with contextlib.suppress(*TEMPLATE_ERRORS):
            settings = {**self.settings, **own, "add_generation_prompt": asks}
            if self.tokenizer.chat_template is not None:
                written = rendered(in_parts(text) if self.in_parts else text, self.tokenizer, settings)
        return _Text(written, is_chat=True)

    def _longest(self, texts: Sequence[Sequence[_Text]], least: int) -> list[int]:
        """Return the tokens of each row's longest text, 0 for a text of at most `least` bytes."""
        longest = [0] * len(texts)
        for is_chat in (True, False):
            # A token is at least a byte, so most texts need no count.
            counted = [
                (row, text)
                for row, own in enumerate(texts)
                for text in own
                if text.is_chat is is_chat and len(text.text.encode()) + _ADDED > least
            ]
            lengths = self.tokenizer.lengths([text.text for _, text in counted], special_tokens=not is_chat) or ()
            for (row, text), tokens in zip(counted, lengths, strict=True):
                longest[row] = max(longest[row], tokens + text.ends)
        return longest


def _wholes(row: Row) -> list[object]:
    """Return the texts and dialogues of a row that are trained on, each answer after the prompt."""
    asked = row.get("prompt") or ""
    answers = [answer for name in _ANSWERS if (answer := row.get(name))]
    joined = [
        [*(asked if isinstance(asked, list) else ()), *answer] if isinstance(answer, list) else f"{asked}{answer}"
        for answer in answers
    ]
    return [*(row[name] for name in _WHOLE if row.get(name)), *joined]


def _contents(text: object) -> list[str]:
    if not isinstance(text, list):
        return [str(text)]
    return [str(message.get("content")) for message in text if isinstance(message, Mapping)]


def _ids(row: Row) -> int:
    """Return the number of token ids in a row, 0 for texts."""
    return max((len(value) for name in _IDS if isinstance(value := row.get(name), list)), default=0)


def characters_of(row: Row) -> int:
    """Return the size of a row in characters, and of token ids in tokens."""
    texts = (row.get("prompt") or "", *_wholes(row))
    return max(_ids(row), *(sum(map(len, _contents(text))) for text in texts))


def counter_of(experiment: Experiment, tokenizer: TokenizerFiles | None, folders: ModelFolders) -> RowCounter | None:
    """Return what counts an experiment's rows, None if only transformers can read the policy's tokenizer."""
    if tokenizer is None or tokenizer.lengths([""], special_tokens=False) is None:
        return None
    given, row = experiment.trainer.args.get("chat_template_kwargs"), experiment.trainer.row
    settings = given if isinstance(given, Mapping) else {}
    return RowCounter(tokenizer, settings, row.along, row.more_tokens, in_parts=bool(folders.reads_images))


def asking_columns(rows: RowTable) -> list[Row]:
    """Return what rows have in the columns ASKING."""
    named = {name: values_of(rows, name) for name in ASKING if name in rows.column_names}
    return [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]


def rendered(messages: Messages, tokenizer: TokenizerFiles, settings: Mapping[str, object]) -> str:
    """Return a prompt's messages as the chat template writes them. Raise one of TEMPLATE_ERRORS."""
    special = {name: token for name in SPECIAL if (token := tokenizer.special(name)) is not None}
    return render_chat(tokenizer.chat_template or "", messages, special, settings)
