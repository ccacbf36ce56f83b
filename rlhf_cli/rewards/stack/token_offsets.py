"""Map characters to sampled tokens, name the parts of a completion, and place the rewards of turns on tokens.

The text is never tokenised again: the result could differ from the tokens that the policy sampled.

A part is a span that the reward returned or, for one value per token, a run of tokens with equal values. The parts'
rewards sum to the row's score, which hides them: -1 and +1 make 0.

A rollout of several turns is a conversation with calls of tools and their results, or the text of a rollout function,
whose mask says which tokens the policy chose. Turn k is the k-th run of such tokens. A reward function sees the turns
before the mask is known, so its numbers are counted when it is called and placed when the advantages are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, cast

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, as_completion, calls_text, content_text, text_of
from rlhf_cli.rewards.stack.component import Batch, RewardOutcome, by_row
from rlhf_cli.rewards.stack.returned_scores import Offset, Spread, TokenValues, as_numbers
from rlhf_cli.tables.trl_values import TURN_TEXTS

if TYPE_CHECKING:
    from rlhf_cli.rewards.dense import Span

Decode = Callable[[Sequence[int]], str]

_UNKNOWN = "\ufffd"  # a decoder writes this for bytes that are no character (yet)


def token_ids(batch: Batch, row: int) -> Sequence[int]:
    """Return the token ids of a row's completion. Raise TypeError if they are not a sequence."""
    ids = by_row(batch, "completion_ids")[row]
    if not isinstance(ids, Sequence):
        raise TypeError(f"`completion_ids` of row {row} is not a list: {type(ids).__name__}")
    return ids


def token_offsets(
    ids: Sequence[int], decode: Decode, *, pieces: MutableMapping[int, str] | None = None
) -> list[tuple[int, int]]:
    """Return (start, end) of every token in decode(ids): together they cover the text, in order.

    Tokens are taken in groups that end with a whole character, mostly of one token. A token begins where the common
    prefix of its group's text and the text of the tokens before it ends; one that is not the last of its group also
    covers the character that it leaves unfinished. A token without text has an empty range. What no group reproduces at
    the end of the text is one more group.

    `decode` has the options that produced the text which the reward function saw. `pieces`, id -> own text, is filled
    here: keep one per `decode` to reuse it for later rows.
    """
    text = decode(ids) if ids else ""
    known = {} if pieces is None else pieces
    # Any token with visible text works as context: after it, decoders strip no leading space.
    seen = (([token], decode([token])) for token in dict.fromkeys(ids))
    context, before = next((pair for pair in seen if pair[1].strip() and _UNKNOWN not in pair[1]), ([], ""))

    def added(some: Sequence[int]) -> str:
        both = decode([*context, *some])
        return both[len(before) :] if both.startswith(before) else _UNKNOWN

    offsets, group, reached = [(0, 0)] * len(ids), list[int](), 0

    def decoded(places: Sequence[int]) -> str:
        some = [ids[place] for place in places]
        return decode(some) if reached == 0 else known[some[0]] if len(some) == 1 else added(some)

    def place_group(own: str) -> None:
        start = 0
        for number, place in enumerate(group, 1):
            read = own if number == len(group) else decoded(group[:number]).rstrip(_UNKNOWN)
            stop = max(start, len(os.path.commonprefix([own, read])))  # noqa: RUF071
            offsets[place] = (reached + start, reached + (stop if number == len(group) else stop + 1))
            start = stop

    for place, token in enumerate(ids):
        if token not in known:
            known[token] = added([token])
        if not known[token]:
            offsets[place] = (reached, reached)
            continue
        group.append(place)
        own = decoded(group)
        if own and not own.endswith(_UNKNOWN) and text.startswith(own, reached):
            place_group(own)
            group, reached = [], reached + len(own)
    place_group(text[reached:])
    return offsets


def offsets_in(completion: Completion, decoded: str, offsets: Sequence[Offset]) -> Sequence[Offset]:
    """Return ranges of the decoded tokens as ranges of the text that authors read, `text_of(completion)`.

    In a conversation that is the contents of the assistant's messages; the decoded text also has calls of tools and
    their results, whose tokens get an empty range. Raise ValueError if the contents are not found there in order.
    """
    if text_of(completion) == decoded or isinstance(completion, str):
        return offsets
    shifts: list[tuple[int, int, int]] = []  # (begin, end) in the decoded text, begin in the author's
    places, end = [], len(decoded)
    # Backwards: the answer is the last text there, and a tool's result may hold the same.
    for message in reversed(completion):
        content = content_text(message)
        begin = decoded.rfind(content, 0, end) if content else end
        if begin < 0:
            raise ValueError(f"the message {content[:50]!r} is not among the completion's tokens: {decoded[:100]!r}")
        places.append((message, content, begin))
        end = begin
    at = reached = 0
    for message, content, last in reversed(places):
        if content and message.get("role", "assistant") == "assistant":
            # A call of a tool follows the content that it came with, and may repeat it.
            begin = decoded.find(content, reached) if message.get("tool_calls") else last
            shifts.append((begin, begin + len(content), at))
            at += len(content) + 1  # joined by newlines
        reached = last + len(content)
    shifted: list[Offset] = []
    for start, stop in offsets:  # keep the part of each range that lies within contents
        inside = [
            (max(start, begin) - begin + at, min(stop, end) - begin + at)
            for begin, end, at in shifts
            if start < end and begin < stop
        ]
        shifted.append((inside[0][0], inside[-1][1]) if inside and start < stop else (0, 0))
    return shifted


def offsets_of(batch: Batch, row: int, decode: Decode, pieces: MutableMapping[int, str]) -> Sequence[Offset]:
    """Return the ranges of a row's tokens in the text that authors read; `pieces` as for `token_offsets`."""
    ids, completion = token_ids(batch, row), as_completion(by_row(batch, "completions")[row])
    offsets = token_offsets(ids, decode, pieces=pieces)
    return offsets_in(completion, decode(ids) if ids else "", offsets)


def characters(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every character; without tokens, each character counts as one."""
    return [(place, place + 1) for place in range(len(text))]


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """A scored stretch of a completion: its characters [start, end), text, the reward given to it alone, its tokens."""

    start: int
    end: int
    text: str
    reward: float
    tokens: tuple[int, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return a JSON object without the tokens."""
        return {"start": self.start, "end": self.end, "text": self.text, "reward": self.reward}


def parts_of(
    text: str, values: TokenValues, offsets: Sequence[Offset], spans: Sequence[Span] | None
) -> list[ScoredPart]:
    """Return the parts of one row in order: the spans, or runs of adjacent tokens with equal values (not None)."""
    parts = []
    for start, end, reward in sorted(spans or ()):
        touched = (token for token, (first, last) in enumerate(offsets) if max(first, start) < min(last, end))
        parts.append(ScoredPart(start, end, text[start:end], reward, tuple(touched)))
    if spans is not None:
        return parts
    for value, run in groupby(range(len(values)), key=values.__getitem__):
        if value is not None:
            tokens = tuple(run)
            start, end = offsets[tokens[0]][0], max(offsets[token][1] for token in tokens)
            parts.append(ScoredPart(start, end, text[start:end], value * len(tokens), tokens))
    return parts


def turns_of(batch: Batch, row: int) -> list[tuple[int, int, str]]:
    """Return (start, end, text) of each turn of a row; the characters are those of `text_of(completion)`.

    They are the assistant's messages, or the texts in the column TURN_TEXTS; any other text is one turn. A message that
    only calls tools has no characters there, and its calls as text.
    """
    completion = as_completion(by_row(batch, "completions")[row])
    given = by_row(batch, TURN_TEXTS)[row] if TURN_TEXTS in batch else None
    if isinstance(given, list):
        turns = [(str(text), str(text)) for text in given]
    elif isinstance(completion, str):
        turns = [(completion, completion)]
    else:
        said = [message for message in completion if message.get("role", "assistant") == "assistant"]
        turns = [(content_text(message), content_text(message) or calls_text(message)) for message in said]
    whole, places, reached = text_of(completion), list[tuple[int, int, str]](), 0
    for content, shown in turns:
        start = max(reached, whole.find(content, reached))
        reached = min(len(whole), start + len(content))
        places.append((start, reached, shown))
    return places


def as_turn_values(returned: Sequence[object], num_turns: int) -> TokenValues:
    """Return one number per turn, None for a turn without a reward. Raise ValueError for any other list."""
    values = as_numbers(returned, "turn")
    if len(values) != num_turns:
        raise ValueError(f"{len(values)} numbers for {num_turns} turns: {values!r:.80}")
    return values


def runs_of(is_action: Sequence[bool]) -> list[list[int]]:
    """Return the runs of True, each as its positions."""
    return [list(run) for acts, run in groupby(range(len(is_action)), key=is_action.__getitem__) if acts]


def place_turns(name: str, outcome: RewardOutcome, is_action: Sequence[Sequence[bool]], spread: Spread) -> None:
    """Set the values per token of each row that has values per turn.

    is_action: (rows, tokens), True = the policy chose this token; all False for a row that counts nowhere. spread: a
    turn's number goes to its `last` token or in equal parts to all. Raise RewardError,
    naming reward and row, if a row has another number of turns.
    """
    for row, turns in enumerate(outcome.turns):
        if turns is None or not (runs := runs_of(is_action[row])):
            continue
        if len(runs) != len(turns):
            what = f"reward {name!r} cannot be placed on the turns of row {row}"
            expected = "tokens of a tool or of the rollout function between any two turns"
            got = f"{len(turns)} numbers, and the policy's tokens form {len(runs)} turns"
            raise RewardError(what, where=f"rewards.{name}", got=got, expected=expected)
        tokens: TokenValues = [None] * (runs[-1][-1] + 1)
        for value, run in zip(turns, runs, strict=True):
            rewarded = run[-1:] if spread == "last" else run
            for position in rewarded if value is not None else ():
                tokens[position] = (value or 0.0) / len(rewarded)
        outcome.tokens[row] = tokens


def parts_of_row(
    outcome: RewardOutcome, batch: Batch, row: int, offsets: Callable[[Batch, int], Sequence[Offset]] | None
) -> list[ScoredPart] | None:
    """Return a dense row's parts or rewarded turns, a single part if its tokens are unknown; None for a plain score."""
    tokens, spans, turns = outcome.tokens[row], outcome.spans[row], outcome.turns[row]
    if turns is not None:  # a part's tokens are those that were rewarded, if they are placed yet
        runs = runs_of([value is not None for value in tokens]) if tokens is not None else []
        rewarded = [(turn, value) for turn, value in zip(turns_of(batch, row), turns, strict=True) if value is not None]
        placed = runs if len(runs) == len(rewarded) else [[]] * len(rewarded)
        return [ScoredPart(*turn, value, tuple(run)) for (turn, value), run in zip(rewarded, placed, strict=True)]
    if tokens is None:
        return None
    text = text_of(by_row(batch, "completions")[row])
    if "completion_ids" in batch and offsets is not None:
        return parts_of(text, tokens, offsets(batch, row), spans)
    if spans is None and len(tokens) != len(text):
        return [ScoredPart(0, len(text), text, outcome.raw[row] or 0.0, tuple(range(len(tokens))))]
    return parts_of(text, tokens, characters(text), spans)


RolloutFunction = Callable[..., dict[str, object]]


def with_turn_texts(function: RolloutFunction, decode: Decode, *arguments: object) -> dict[str, object]:
    """Call a rollout function and return what it gives with the texts of each row's turns, which TRL makes one text."""
    rollouts = function(*arguments)
    ids = cast(Sequence[Sequence[int]], rollouts["completion_ids"])
    masks = cast(Sequence[Sequence[int]], rollouts.get("env_mask") or [[1] * len(row) for row in ids])
    texts = [
        [decode([row[position] for position in run]) for run in runs_of([bool(one) for one in mask])]
        for row, mask in zip(ids, masks, strict=True)
    ]
    return {**rollouts, TURN_TEXTS: texts}
