"""Score answers to tasks of reasoning-gym with the verifier of each task.

Verifiers run in this process on text that a model wrote. Nine of them run it as code, by `eval` or `sympy.parse_expr`:
six of these get it only if it is plain data, and `build_task` refuses the other three.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from rlhf_cli.data.worlds.reasoning_gym import Task, build_task, unpacked_entry
from rlhf_cli.errors import DataError, RewardError
from rlhf_cli.rewards.completion_text import Completion, text_of

Extract: TypeAlias = Literal["tag", "last_line", "all"]

_READ_LISTS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
"""Verifiers that evaluate an answer that is not exactly right, to give a part for a Python list."""
_ARITHMETIC = r"(?!.*\*\*)[-+*/(). \d]{1,200}"
_PLAIN = {
    "countdown": _ARITHMETIC,
    "puzzle24": _ARITHMETIC,
    "coin_flip": r"(?s)(?!.*[eE][-+]?\d{3}).*",  # 1e999999999 as an exact fraction takes all memory
    "complex_arithmetic": r"(?is)(?!.*nan).*",  # nan would score 1
}
"""Task -> what its verifier is given."""
_STORED = r"[-\d.,' \[\]()xa-f+*<>]*"
"""What may be in the two fields of stored entries that verifiers evaluate: numbers, lists of them, arithmetic."""


def task_score(
    completions: Sequence[Completion], entry: Sequence[str | None], *, extract: Extract = "tag", **kwargs: object
) -> list[float | None]:
    """Score by the verifier of the row's own task, usually from 0 to 1; None for a row without an entry.

    Some verifiers give a part for a part of the answer, or 0.01 for any answer. An answer that a verifier fails on
    scores 0.0.

    Args:
        entry: dataset column: the task, its arguments and the right answer, as data=reasoning_gym writes them.
        extract: the part of a completion that the verifier gets: `tag` = the text in the last `<answer>...</answer>`,
            `last_line` = the last line that is not empty, `all` = all of it. It gets none if there is no such part.
    """
    rewards: list[float | None] = []
    for row, (completion, stored) in enumerate(zip(completions, entry, strict=True)):
        try:
            rewards.append(None if stored is None else score_entry(extracted(text_of(completion), extract), stored))
        except RewardError as error:
            error.row = row
            raise
    return rewards


def extracted(text: str, extract: Extract) -> str | None:
    """Return the part of a completion that is the answer, without white space at its ends, or None."""
    if extract == "all":
        return text.strip()
    if extract == "last_line":
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
    end = text.rfind("</answer>")
    begin = text.rfind("<answer>", 0, max(end, 0))
    return text[begin + len("<answer>") : end].strip() if begin >= 0 else None


def score_entry(text: str | None, stored: str) -> float:
    """Score an answer by the verifier of an entry's task. Raise RewardError for an entry that cannot be scored with."""
    try:
        entry = unpacked_entry(stored)
        task, metadata = entry["task"], entry["metadata"]
        verifier = _verifier(task, json.dumps(entry["args"]))
        evaluated = {"bitwise_arithmetic": metadata.get("problem"), "number_sorting": entry["answer"]}.get(task, "")
        if not re.fullmatch(_STORED, evaluated):
            raise ValueError("its verifier would run this as code")
    except DataError as error:
        problem = RewardError(error.what, where="column entry", got=error.got, hint=error.hint, advice=error.advice)
        raise problem from error
    except Exception as error:
        raise _unreadable(stored, error) from error
    try:
        return float(verifier.score_answer(text if text is None or _is_plain(text, entry) else None, entry))
    except Exception as error:
        # Some verifiers fail on odd answers, and all of them on an entry that is not theirs.
        try:
            if not _is_plain(entry["answer"], entry):
                raise ValueError("its verifier would run the right answer as code")
            verifier.score_answer(entry["answer"], entry)
        except Exception:
            raise _unreadable(stored, error) from error
        return 0.0


@functools.lru_cache(maxsize=128)
def _verifier(task: str, args: str) -> Task:
    return build_task(task, json.loads(args), seed=0, where="")


def _is_plain(text: str, entry: Mapping[str, Any]) -> bool:
    """Return whether the verifier of an entry's task runs no code when it is given `text`, and can judge it."""
    task = entry["task"]
    if task == "game_of_life_halting":  # its verifier takes any text for the right answer
        return text.casefold() == str(entry["answer"]).casefold()
    if task not in _READ_LISTS:
        return re.fullmatch(_PLAIN[task], text) is not None if task in _PLAIN else True
    right = entry["metadata"]["valid_answers"] if task == "n_queens" else [entry["answer"]]
    if isinstance(right, list) and text in right:  # each verifier's own comparison, before it evaluates
        return True
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _unreadable(stored: str, error: Exception) -> RewardError:
    what, expected = "this is not an entry of a reasoning-gym task", "the column as data=reasoning_gym writes it"
    got = f"{type(error).__name__}: {error}, in {stored:.200}"
    return RewardError(what, where="column entry", got=got, expected=expected)
