r"""Split dialogues in the format of Anthropic's preference data into a prompt and two answers.

    "\n\nHuman: Hello\n\nAssistant: Hi!\n\nHuman: How are you?\n\nAssistant: Fine, thanks."

The two transcripts of a pair share everything up to the last answer, which is the prompt. Works without `datasets`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.data.dialogues import DIALOGUES
from rlhf_cli.data.source import missing_column
from rlhf_cli.errors import DataError

if TYPE_CHECKING:
    import datasets

    Dataset: TypeAlias = datasets.Dataset

_HUMAN = "Human:"
_ASSISTANT = "\n\nAssistant:"
_PAIR = ("chosen", "rejected")


def split_pair(chosen: str, rejected: str) -> tuple[str, str, str] | None:
    """Return `(prompt, chosen, rejected)`: the prompt ends in the last "Assistant:" that both share.

    Return None if a text is not a transcript, or if the dialogues differ before the first answer.
    """
    if not all(text.lstrip().startswith(_HUMAN) for text in (chosen, rejected)):
        return None
    parting = (place for place, (first, second) in enumerate(zip(chosen, rejected, strict=False)) if first != second)
    last = chosen.rfind(_ASSISTANT, 0, next(parting, min(len(chosen), len(rejected))))
    if last < 0:
        return None
    end = last + len(_ASSISTANT)
    return chosen[:end], chosen[end:], rejected[end:]


def made_columns(columns: Sequence[str], *, name: str = "data") -> tuple[str, ...]:
    """Return the columns that are made of dialogues in a source with these columns: none if it has a `prompt`.

    Raise DataError if it has neither a `prompt` nor dialogues.
    """
    if "prompt" in columns:
        return ()
    if set(_PAIR) <= set(columns):
        return ("prompt", *_PAIR)
    if any(column in columns for column in DIALOGUES):
        return ("prompt", "completion")
    missing = next(column for column in _PAIR if column not in columns)
    raise missing_column(
        missing, columns, f"{name} (data.transcripts=true splits `chosen` and `rejected`, or messages)"
    )


def split_transcripts(dataset: Dataset, *, name: str = "data") -> Dataset:
    """Return the dataset with a `prompt` and answers instead of transcripts; unchanged if it has prompts.

    A row without transcripts keeps its texts and gets an empty prompt. Raise DataError if that is every row.
    """
    if not made_columns(dataset.column_names, name=name):
        return dataset
    prepared: Dataset = dataset.map(split_row)
    if len(prepared) and not any(any(batch["prompt"]) for batch in prepared.select_columns(["prompt"]).iter(1000)):
        raise DataError(
            "none of these rows is a pair of transcripts",
            where=name,
            got=f"{dataset[0].get('chosen', dataset[0])!r:.80}",
            expected="texts such as '\\n\\nHuman: Hello\\n\\nAssistant: Hi!', the same in both up to the last answer",
            hint="data.transcripts=false",
        )
    return prepared


def split_row(row: Mapping[str, object]) -> dict[str, object]:
    """Return `prompt` and the answers of a row; of a pair without transcripts, an empty prompt and its texts.

    Of a conversation, the answer is its last message.
    """
    if not set(_PAIR) <= set(row):
        messages = next((row[name] for name in DIALOGUES if row.get(name) is not None), None)
        messages = messages if isinstance(messages, list) else []
        return {"prompt": messages[:-1], "completion": messages[-1:]}
    chosen, rejected = row["chosen"], row["rejected"]
    parts = split_pair(chosen, rejected) if isinstance(chosen, str) and isinstance(rejected, str) else None
    prompt, chosen, rejected = parts or ("", chosen, rejected)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
