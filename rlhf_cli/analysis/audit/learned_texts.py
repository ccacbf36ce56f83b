"""Show the first rows as SFT, DPO, KTO and reward trainers read them: every text whole, and what of it is trained on.

The steps are those of TRL's trainers: plain answers end with the EOS token, conversations are rendered by the chat
template. What differs from the prompt rendered alone is trained on; a reward model scores a whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, cast

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.learnt_columns import check_learnt
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import Row
from rlhf_cli.tables.trl_trainers import TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LEARNED = ("completion", "chosen", "rejected", "reference", "messages", "conversations")


@dataclass(frozen=True)
class Span:
    """A part of a text; `is_learned` says whether its tokens are trained on."""

    text: str
    is_learned: bool


@dataclass(frozen=True)
class LearnedText:
    """A text of one row, with its prompt: its column, its parts, its tokens, and how many of these are trained on."""

    column: str
    spans: list[Span]
    tokens: int
    learned_tokens: int


def learned_texts(
    experiment: Experiment, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> list[list[LearnedText]]:
    """Return the texts of each row that the trainer learns from. Raise DataError if it cannot read the rows."""
    trainer = experiment.trainer
    args = trl_args.trainer(trainer.trl)

    def setting(name: str) -> object:
        return trl_args.setting(args, trainer.trl_args, name)

    field = str(setting("dataset_text_field") or TEXT)
    names = list(dict.fromkeys(name for row in rows for name in row))
    read = check_learnt(RowTable(rows, names), trainer.row, text_field=field)
    columns = [name for name in read if name in (*_LEARNED, field)]
    reads_whole = trainer.row.trains == "reward model" or setting("completion_only_loss") is False
    reader = _Reader(tokenizer, reads_whole=reads_whole, only_assistant=setting("assistant_only_loss") is True)
    return [[reader.read(row, name) for name in columns] for row in rows]


class _Reader:
    """Tokenise a text with its prompt as TRL does, and mark the tokens that are trained on."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, reads_whole: bool, only_assistant: bool) -> None:
        self._tokenizer = tokenizer
        self._reads_whole = reads_whole
        self._only_assistant = only_assistant

    def read(self, row: Row, column: str) -> LearnedText:
        prompt, answer = _prompt_and_answer(row, column)
        if isinstance(answer, list):
            ids, marks = self._conversation(prompt, answer)
        else:
            ids, marks = self._plain(str(prompt or ""), str(answer))
        spans = []
        for is_learned, part in groupby(zip(ids, marks, strict=True), key=lambda pair: pair[1]):
            spans.append(Span(str(self._tokenizer.decode([token for token, _ in part])), is_learned))
        return LearnedText(column, spans, len(ids), sum(marks))

    def _plain(self, prompt: str, answer: str) -> tuple[list[int], list[bool]]:
        eos = str(self._tokenizer.eos_token)
        whole = prompt + (answer if answer.endswith(eos) else answer + eos)
        ids, before = (list(self._tokenizer(text, verbose=False)["input_ids"]) for text in (whole, prompt))
        return ids, self._after(before if prompt else [], ids)

    def _conversation(self, prompt: object, answer: list[object]) -> tuple[list[int], list[bool]]:
        asked = [_message(one) for one in (prompt if isinstance(prompt, list) else [])]
        whole = [*asked, *(_message(one) for one in answer)]
        render: Callable[..., object] = self._tokenizer.apply_chat_template  # its return type depends on the arguments
        settings = {"tokenize": True, "return_dict": True}
        if self._only_assistant:
            found = cast("Mapping[str, list[int]]", render(whole, return_assistant_tokens_mask=True, **settings))
            return list(found["input_ids"]), [bool(one) for one in found["assistant_masks"]]
        ids = cast("Mapping[str, list[int]]", render(whole, **settings))["input_ids"]
        before: list[int] = []
        if asked:
            before = cast("Mapping[str, list[int]]", render(asked, add_generation_prompt=True, **settings))["input_ids"]
        return list(ids), self._after(before, ids)

    def _after(self, prompt: Sequence[int], ids: Sequence[int]) -> list[bool]:
        same = 0 if self._reads_whole else _shared(prompt, ids)
        return [place >= same for place in range(len(ids))]


def _prompt_and_answer(row: Row, column: str) -> tuple[object, object]:
    """Return the row's prompt and the answer; of a pair without a prompt, what both begin with is the prompt."""
    answer, pair = row[column], [row.get(name) for name in ("chosen", "rejected")]
    if row.get("prompt") is not None or column not in ("chosen", "rejected") or None in pair:
        return row.get("prompt"), answer
    if isinstance(answer, str):
        shared = answer[: _shared(*cast("list[str]", pair))].removesuffix(" ")
        return shared, answer.removeprefix(shared)
    messages, first, second = cast("list[list[object]]", [answer, *pair])
    count = _shared(first, second)
    return messages[:count], messages[count:]


def _shared(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many items both begin with."""
    return sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(first, second, strict=False)))


def _message(message: object) -> dict[str, object]:
    """Return a message in OpenAI's form; ShareGPT writes `from` and `value`."""
    given = cast("Mapping[str, object]", message)
    if "from" in given:
        return {"role": given["from"], "content": given["value"]}
    return dict(given)
