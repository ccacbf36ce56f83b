"""Counts the tokens of the longest rows of the data, for estimates of memory and of the maximum number of tokens.

Only the rows with the most characters are counted, with the policy's own tokenizer and without torch. The chat template
is not rendered: a message counts a few more tokens than its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.memory.run_load import Lengths
from rlhf_cli.plan.checks.known import Known

_AROUND_A_MESSAGE = 8
"""Tokens that a chat template puts around a message (role, start and end markers); more than most templates use."""
_COUNTED = 64
"""How many rows are counted, those with the most characters: tokenizing a hundred thousand rows would take seconds."""
_ANSWERS = ("completion", "chosen", "rejected", "reference")
_WHOLE = ("messages", "conversations", "text")
_IDS = ("input_ids", "chosen_ids", "rejected_ids", "input_ids_chosen", "input_ids_rejected")

Count = Callable[[str], int]


def longest_rows(experiment: Experiment, known: Known) -> Lengths | None:
    """Return the longest prompt and row of all sources, in tokens.

    Return None if the rows or the policy's tokenizer are not on this machine.
    """
    count = _counter(known)
    tables = [seen.rows for seen in known.sources if seen.rows is not None]
    rows = [table[number] for table in tables for number in range(len(table))]
    if count is None or not rows:
        return None
    generates = experiment.trainer.row.generates
    prompts = _of_the_longest([row.get("prompt") for row in rows], count)
    if generates:
        return Lengths(min(max(prompts), known.most_prompt_tokens or max(prompts)), 0)
    by_size = sorted(rows, key=lambda row: _whole(row, len), reverse=True)
    wholes = [_whole(row, count) for row in by_size[:_COUNTED]]
    return Lengths(max(prompts), max(wholes), padded=_whole(by_size[0], len) != _whole(by_size[-1], len))


def _of_the_longest(values: list[object], count: Count) -> list[int]:
    return [_tokens(value, count) for value in sorted(values, key=lambda value: -_tokens(value, len))[:_COUNTED]]


def _whole(row: Mapping[str, object], count: Count) -> int:
    """Return the tokens of a row that is trained on: the prompt with its longest answer, or the whole text."""
    prompt = _tokens(row.get("prompt"), count)
    ids = [len(value) for name in _IDS if isinstance(value := row.get(name), list)]
    wholes = [_tokens(row[name], count) for name in _WHOLE if row.get(name)]
    answers = [_tokens(row[name], count) + 1 for name in _ANSWERS if row.get(name)]  # 1: the end of the sequence
    return max([*ids, *wholes, prompt + max(answers, default=0)])


def _tokens(value: object, count: Count) -> int:
    if isinstance(value, str):
        return count(value)
    if isinstance(value, list):
        texts = [message.get("content", message.get("value")) for message in value if isinstance(message, Mapping)]
        return sum(count(str(text)) + _AROUND_A_MESSAGE for text in texts)
    return 0


def _counter(known: Known) -> Count | None:
    tokenizer = known.tokenizer
    if tokenizer is None or tokenizer.lengths([""], special_tokens=False) is None:
        return None

    def count(text: str) -> int:
        return sum(tokenizer.lengths([text], special_tokens=False) or ())

    return count
