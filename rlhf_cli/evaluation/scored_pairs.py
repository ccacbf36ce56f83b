"""Hold preference pairs and the scores they get.

Supported are TRL's formats: prompt, chosen, rejected; or chosen and rejected that both include the prompt.

The names are those in the JSON of `rlhf eval`, except `from` and `to`, which are `start` and `end` here: `from` is a
Python keyword.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.rewards.completion_text import Completion
from rlhf_cli.runs.run_folder import REWARD_MODEL
from rlhf_cli.text.json_values import is_none
from rlhf_cli.text.suggest import nearest


@dataclass(frozen=True)
class ScoredPair:
    """A scored pair. `margin` is None if not configured; the verdict ignores it."""

    step: int
    row: int
    prompt: str
    chosen: str
    rejected: str
    score_chosen: float
    score_rejected: float
    margin: float | None

    @property
    def verdict(self) -> str:
        """Return `right` if the chosen answer scores higher, `tie` if both are equal, else `wrong` (also for NaN)."""
        if self.score_chosen == self.score_rejected:
            return "tie"
        return "right" if self.score_chosen > self.score_rejected else "wrong"


def texts_of(row: Mapping[str, object], decode: Callable[..., object]) -> tuple[str, str, str]:
    """Return `(prompt, chosen, rejected)` of a row. Without a prompt column, split where the two answers diverge.

    For conversations, return the last messages. Otherwise decode the token ids even if texts exist, because the ids are
    what is scored.
    """
    asked, chosen, rejected = (
        value if isinstance(value, list) and value and isinstance(value[0], Mapping) else []
        for value in map(row.get, ("prompt", "chosen", "rejected"))
    )
    if chosen and rejected:
        before = [*asked, *chosen[:-1]]
        return _content(before[-1]) if before else "", _content(chosen[-1]), _content(rejected[-1])
    texts = [str(decode(row[ids], skip_special_tokens=True)) for ids in ("chosen_ids", "rejected_ids")]
    prompt = row.get("prompt")
    if not (isinstance(prompt, str) and all(text.startswith(prompt) for text in texts)):
        prompt = os.path.commonprefix(texts)  # noqa: RUF071
    chosen_text, rejected_text = (text.removeprefix(prompt) for text in texts)
    return prompt, chosen_text, rejected_text


def _content(message: Mapping[str, object]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


Pair = tuple[Completion, Completion, Completion]
"""The prompt (the shared beginning, empty if the row does not separate it), the chosen and the rejected answer."""


def pairs_of(rows: list[Row], *, as_chat: bool = False) -> list[Pair]:
    """Return the pairs of preference rows. `as_chat` turns plain texts into a user and an assistant message.

    Raise DataError for a missing column, or for a row that mixes texts and messages.
    """
    for column in ("chosen", "rejected"):
        if column not in rows[0]:
            what = f"a reward model needs pairs, and there is no column {column!r}"
            got, hint = "columns " + ", ".join(rows[0]), nearest(column, rows[0])
            expected = "prompt, chosen, rejected; or chosen and rejected with the prompt in both"
            raise DataError(what, where="the evaluation rows", got=got, expected=expected, hint=hint)
    return [_parted(row, number, as_chat) for number, row in enumerate(rows, 1)]


def _parted(row: Row, number: int, as_chat: bool) -> Pair:
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if not chosen or not rejected:
        raise _odd(row, number, "an answer on both sides")
    if isinstance(prompt, str) and isinstance(chosen, list) and isinstance(rejected, list):
        prompt = None  # as in training: both answers repeat it
    if isinstance(chosen, str) and isinstance(rejected, str) and isinstance(prompt, str | list | None):
        if not as_chat and not isinstance(prompt, list):
            return prompt or "", chosen, rejected
        if prompt is None:
            raise _odd(row, number, "a prompt column, for the user's message of --chat")
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return asked, [{"role": "assistant", "content": chosen}], [{"role": "assistant", "content": rejected}]
    has_prompt = isinstance(prompt, list) and bool(prompt)
    if not (isinstance(chosen, list) and isinstance(rejected, list) and (prompt is None or has_prompt)):
        raise _odd(row, number, "text on both sides, or a list of messages on both")
    if isinstance(prompt, list):
        return prompt, chosen, rejected
    # Both sides hold the whole transcript. The prompt is what they share at the beginning, at least the first message.
    shared = 1
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    if chosen[:shared] != rejected[:shared]:
        raise _odd(row, number, "transcripts that begin with the same message, or a column `prompt`")
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _odd(row: Row, number: int, expected: str) -> DataError:
    got = ", ".join(f"{name}: {type(row.get(name)).__name__}" for name in ("prompt", "chosen", "rejected"))
    return DataError("this is not a pair", where=f"the evaluation rows, row {number}", got=got, expected=expected)


SUBSET = "subset"
"""The column of RewardBench (arXiv 2403.13787). If it exists, it is always a slice."""


@dataclass(frozen=True)
class SliceAccuracy(Estimate):
    """The accuracy on some of the pairs; `margin` is their mean reward difference, chosen minus rejected."""

    margin: float


@dataclass(frozen=True)
class ConfidenceBin:
    """The pairs in a confidence range: their mean `confidence` (None if the bin is empty) and accuracy."""

    start: Annotated[float, Field(alias="from")]
    end: Annotated[float, Field(alias="to")]
    confidence: float | None
    accuracy: Estimate


@dataclass(frozen=True)
class Calibration:
    """How well confidence matches accuracy: expected calibration error, Brier score, log loss in nats."""

    ece: float
    brier: float
    log_loss: float
    bins: list[ConfidenceBin]


@dataclass(frozen=True)
class RewardDistribution:
    """The rewards of all completions. `deviation` is None if it is not finite.

    `margin` is the mean of chosen minus rejected. All intervals are over pairs, because the two rewards of a pair are
    not independent.
    """

    mean: Estimate
    deviation: float | None
    chosen: Estimate
    rejected: Estimate
    margin: Estimate
    min: float
    max: float


@dataclass(frozen=True)
class LengthBias:
    """How much a model prefers length: it is then right if the chosen answer is longer, and wrong if it is shorter.

    A slice is None if it has no pairs; a correlation is None if rewards or lengths are constant. `longer_wins` is the
    accuracy of always choosing the longer answer, which is the bias of the data itself.
    """

    unit: str
    chosen_longer: SliceAccuracy | None
    same: SliceAccuracy | None
    chosen_shorter: SliceAccuracy | None
    pearson: float | None
    spearman: float | None
    longer_wins: Estimate


@dataclass(frozen=True)
class Disagreement:
    """A pair on which the model prefers the rejected answer; `confidence` is its probability for that answer.

    `row` counts from 0; a text is a string or a list of messages. `subset` is left out if the data has none.
    """

    row: int
    prompt: object
    chosen: object
    rejected: object
    reward_chosen: float
    reward_rejected: float
    confidence: float
    subset: Annotated[object, Field(exclude_if=is_none)] = None


@dataclass(frozen=True)
class RewardModelEvaluation:
    """All results of evaluating a reward model on preference pairs.

    `rows` counts pairs, `truncated` completions longer than the model's limit, and `ties` pairs with equal rewards.
    `slices` is keyed by column and value. `with_eos` says that plain texts ended with the end-of-sequence token.
    """

    kind: ClassVar[str] = REWARD_MODEL

    rows: int
    pairs_per_second: float
    truncated: int
    accuracy: Estimate
    ties: int
    calibration: Calibration
    rewards: RewardDistribution
    length: LengthBias
    slices: dict[str, dict[str, SliceAccuracy]]
    worst: list[Disagreement]
    with_eos: bool = False
