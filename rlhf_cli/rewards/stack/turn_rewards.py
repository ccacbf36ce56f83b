"""Reward the turns of a rollout: one number for each message of the assistant, placed on the tokens it consists of.

A rollout of several turns is a conversation with calls of tools and their results, or the text of a rollout function,
whose mask says which tokens the policy chose. Turn k is the k-th run of such tokens. A reward function sees the turns
before the mask is known, so its numbers are counted when it is called and placed when the advantages are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import as_completion, calls_text, content_text, text_of
from rlhf_cli.rewards.stack.component import Batch, RewardOutcome, by_row
from rlhf_cli.rewards.stack.returned_scores import Spread, TokenValues, as_numbers
from rlhf_cli.rewards.stack.token_offsets import Decode, ScoredPart

TURN_TEXTS = "turn_texts"
"""Column with the texts of a row's turns, where a rollout function made it: its completion is a single text."""


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
    runs: list[list[int]] = []
    for position, acts in enumerate(is_action):
        if acts and position and is_action[position - 1]:
            runs[-1].append(position)
        elif acts:
            runs.append([position])
    return runs


def place_turns(name: str, outcome: RewardOutcome, is_action: Sequence[Sequence[bool]], spread: Spread) -> None:
    """Set the values per token of each row that has values per turn.

    is_action: (rows, tokens), True = the policy chose this token; all False for a row that counts nowhere. spread: a
    turn's number goes to its `last` token or in equal parts to all (`even`). Raise RewardError, naming reward and row,
    if a row has another number of turns.
    """
    for row, turns in enumerate(outcome.turns):
        runs = runs_of(is_action[row]) if turns is not None else []
        if turns is None or not runs:
            continue
        if len(runs) != len(turns):
            raise RewardError(
                f"reward {name!r} cannot be placed on the turns of row {row}",
                where=f"rewards.{name}",
                got=f"{len(turns)} numbers, and the policy's tokens form {len(runs)} turns",
                expected="tokens of a tool or of the rollout function between any two turns",
            )
        tokens: TokenValues = [None] * (runs[-1][-1] + 1)
        for value, run in zip(turns, runs, strict=True):
            rewarded = run[-1:] if spread == "last" else run
            for position in rewarded if value is not None else ():
                tokens[position] = (value or 0.0) / len(rewarded)
        outcome.tokens[row] = tokens


def turn_parts(batch: Batch, row: int, values: TokenValues, tokens: TokenValues | None) -> list[ScoredPart]:
    """Return a part for each rewarded turn; its tokens are those that were rewarded, if they are placed yet."""
    runs = runs_of([value is not None for value in tokens]) if tokens is not None else []
    rewarded = [(turn, value) for turn, value in zip(turns_of(batch, row), values, strict=True) if value is not None]
    placed = runs if len(runs) == len(rewarded) else [[]] * len(rewarded)
    return [ScoredPart(*turn, value, tuple(run)) for (turn, value), run in zip(rewarded, placed, strict=True)]


RolloutFunction = Callable[..., dict[str, object]]


def with_turn_texts(function: RolloutFunction, decode: Decode, *arguments: object) -> dict[str, object]:
    """Call a rollout function of TRL's and return what it gives, with the texts of each row's turns.

    TRL takes the mask from it before rewards are called, and makes one text of each completion.
    """
    rollouts = function(*arguments)
    ids = cast(Sequence[Sequence[int]], rollouts["completion_ids"])
    masks = cast(Sequence[Sequence[int]], rollouts.get("env_mask") or [[1] * len(row) for row in ids])
    texts = [
        [decode([row[position] for position in run]) for run in runs_of([bool(one) for one in mask])]
        for row, mask in zip(ids, masks, strict=True)
    ]
    return {**rollouts, TURN_TEXTS: texts}
