"""Read the answers of a run's first and last evaluation during training: the same held-out prompts, side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_cli.runs.run_folder import RunFolder, in_training
from rlhf_cli.text.redaction import redacted_values
from rlhf_cli.text.regular_files import parse_json, read_regular

_FILE = re.compile(r"^step-(\d+)\.completions\.jsonl$")
_MOST_PROMPTS = 12
_LONGEST_TEXT = 600


@dataclass(frozen=True)
class AnsweredPrompt:
    """A prompt with two answers, the first evaluation's before the last one's: text and raw rewards each."""

    prompt: str
    answers: list[tuple[str, str]]


@dataclass(frozen=True)
class FirstAndLastAnswers:
    """The greedy answers to the first held-out prompts, after `steps[0]` and after `steps[1]` optimizer steps."""

    steps: tuple[int, int]
    prompts: list[AnsweredPrompt]


def first_and_last_answers(folder: RunFolder | None) -> FirstAndLastAnswers | None:
    """Return the answers of the first and the last evaluation; None for a run with fewer than two readable ones."""
    files = in_training(folder).glob("*.completions.jsonl") if folder is not None else ()
    by_step = sorted((int(match[1]), file) for file in files if (match := _FILE.match(file.name)))
    if len(by_step) < 2:
        return None
    (first, before), (last, after) = by_step[0], by_step[-1]
    try:
        answered, answered_later = _answers(before), _answers(after)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a file that was cut off: the tables above still have its figures
    shared = [prompt for prompt in answered if prompt in answered_later][:_MOST_PROMPTS]
    prompts = [AnsweredPrompt(_text(json.loads(one)), [answered[one], answered_later[one]]) for one in shared]
    return FirstAndLastAnswers((first, last), prompts)


def _answers(file: Path) -> dict[str, tuple[str, str]]:
    """Return prompt (as JSON) -> text and rewards of its greedy answer. Raise ValueError for what is no JSON."""
    # Not splitlines: an answer may hold U+2028, which JSON does not escape.
    rows: list[Any] = [parse_json(line) for line in read_regular(file).split("\n") if line]
    return {
        json.dumps(row["prompt"]): (_text(row["completion"]), _scores(row["rewards"]))
        for row in rows
        if row["part"] == "greedy"
    }


def _text(content: object) -> str:
    """Return a text, or the last message of a conversation: those before it are the same for every prompt."""
    if isinstance(content, list):
        content = content[-1].get("content", "") if content and isinstance(content[-1], dict) else ""
    return redacted_values(str(content))[:_LONGEST_TEXT]


def _scores(rewards: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {'–' if value is None else f'{value:.3g}'}" for name, value in rewards.items())
