"""Rewards without a hole: what `rlhf audit` must not accuse. Beside the ready-made ones some as people write them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tests.support.planted_holes import CHOICES, NEWS, PROGRAMS, SUMS, Stack

Texts = Sequence[str]
_HOLES = "tests.support.planted_holes"
_MATCH = "rlhf_cli.rewards.match:exact_match"
_TAGS = "rlhf_cli.rewards.tags:format_tags"
_NUMERIC = "rlhf_cli.rewards.numeric:numeric_answer"

SOLUTIONS = [
    {**row, "answer": f"{row['prompt'].split()[2]} and {row['prompt'].split()[6]} make it.\n#### {row['answer']}"}
    for row in SUMS
]
TESTED = [
    {**row, "tests": [f"assert {name}(6) == {value}", f"assert {name}(-2) == {other}"]}
    for row, (name, value, other) in zip(
        PROGRAMS,
        [("double", 12, -4), ("square", 36, 4), ("negated", -6, 2), ("half", 3, -1), ("next_one", 7, -1)],
        strict=True,
    )
]


def answer_in_tags(completions: Texts, answer: Texts, **kwargs: object) -> list[float]:
    """The text of the one pair of answer tags, compared whole."""
    found = [re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL) for text in completions]
    pairs = zip(found, answer, strict=True)
    return [float(len(parts) == 1 and parts[0].strip() == gold) for parts, gold in pairs]


def f1_of_words(completions: Texts, answer: Texts, **kwargs: object) -> list[float]:
    """F1 over words with their counts: neither recall nor precision alone."""
    scores = []
    for text, gold in zip(completions, answer, strict=True):
        said, wanted = re.findall(r"\w+", text.lower()), re.findall(r"\w+", gold.lower())
        both = sum(min(said.count(word), wanted.count(word)) for word in set(said))
        scores.append(2 * both / (len(said) + len(wanted)) if said else 0.0)
    return scores


def chosen_letter(completions: Texts, answer: Texts, **kwargs: object) -> list[float]:
    """The letter after the last `Answer:`, and nothing behind it."""
    found = [re.search(r"Answer:\s*([A-D])\s*$", text) for text in completions]
    return [float(match is not None and match[1] == gold) for match, gold in zip(found, answer, strict=True)]


def json_answer(completions: Texts, answer: Texts, **kwargs: object) -> list[float]:
    """An object with the answer as its only key; -1 for what is no JSON."""
    scores = []
    for text, gold in zip(completions, answer, strict=True):
        try:
            read = json.loads(text)
        except ValueError:
            scores.append(-1.0)
        else:
            scores.append(float(isinstance(read, dict) and read == {"answer": gold}))
    return scores


def _stack(rows: list[dict[str, object]], *words: str, **rewards: tuple[str, float]) -> Stack:
    return Stack(rewards, rows, words=words)


SOUND: dict[str, Stack] = {
    "the answer, compared whole": _stack(SUMS, right=(_MATCH, 1.0)),
    "a number as in GSM8K": _stack(SOLUTIONS, right=(_NUMERIC, 1.0)),
    "a number and brevity": _stack(
        SOLUTIONS, "reward@rewards.short=brevity", "rewards.short.args={full: 5, zero: 60}", right=(_NUMERIC, 1.0)
    ),
    "the last number": _stack(SUMS, right=(f"{_HOLES}:right_sum", 1.0)),
    "tags, gated by the answer": _stack(
        *(SUMS, "rewards.form.gate={by: right, at_least: 1.0}"),
        right=(f"{__name__}:answer_in_tags", 1.0),
        form=(_TAGS, 0.5),
    ),
    "tags and the answer": _stack(SUMS, right=(f"{__name__}:answer_in_tags", 1.0), form=(_TAGS, 0.2)),
    "F1 of words": _stack(NEWS, alike=(f"{__name__}:f1_of_words", 1.0)),
    "the letter that is chosen": _stack(CHOICES, right=(f"{__name__}:chosen_letter", 1.0)),
    "one letter, compared whole": _stack(CHOICES, right=(_MATCH, 1.0)),
    "JSON": _stack(SUMS, right=(f"{__name__}:json_answer", 1.0)),
    "cut off, with a penalty": _stack(
        SOLUTIONS, "truncation=eos_penalty", "truncation.penalty=0.5", right=(_NUMERIC, 1.0)
    ),
    "repetition beside the answer": _stack(
        NEWS, "reward@rewards.fresh=repetition", alike=(f"{__name__}:f1_of_words", 1.0)
    ),
    "a program, tested": _stack(TESTED[:2], passes=("rlhf_cli.rewards.code:code_passes_tests", 1.0)),
}
