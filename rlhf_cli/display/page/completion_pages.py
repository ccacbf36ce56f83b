"""Choose and read the completions that the page shows.

The choice is not by content: for each prompt, the first answer in a run's table is taken, and the prompts are those
that the most runs answered. Both parts are bounded, so that the page stays small even with 50 runs.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.display.page.curves import rounded
from rlhf_cli.text.redaction import redacted_values
from rlhf_cli.text.regular_files import LARGEST_TABLE, require_regular

_TABLE = re.compile(r"^completions_(\d+)\.parquet$")
_EFFECTIVE = ".effective"
_MOST_STEPS = 10
_MOST_PROMPTS = 3
_MOST_CHARACTERS = 800_000
"""Maximum characters of completions in both parts together."""
_LONGEST_TEXT, _SHORTEST_TEXT = 2000, 160
_LONGEST_PROMPT = 1200

Answer = dict[str, Any]
"""A completion with its scores: `prompt`, `text`, `total` (by the run's own weights), `advantage`, and `scores`.

A score has `name`, `raw`, `weighted`, and where they apply `closed`, `error` and `parts`: the spans that a dense reward
scored, as (start, end, reward) in characters of the completion.
"""
AnswersByRun = Mapping[int, list[Answer]]
"""Run index -> the rows of its table."""


@dataclass(frozen=True)
class CompletionPages:
    """The completions for the page's script; `side_by_side` and `extremes` have one page per step.

    `why_not_beside` and `why_no_extremes` say why a part is empty, and are None if it is not. `notes` lists tables that
    could not be read. `num_steps` is the number of steps for which any run has a table.
    """

    side_by_side: list[dict[str, object]]
    extremes: list[dict[str, object]]
    why_not_beside: str | None
    why_no_extremes: str | None
    notes: list[str]
    num_steps: int


def completion_pages(runs: Sequence[LoggedRun]) -> CompletionPages:
    """Read a few steps of every run's tables and return what the page shows of them."""
    order = {name: place for place, name in enumerate(reward_names(runs))}
    tables = [_tables_of(run) for run in runs]
    notes: list[str] = []
    by_step: dict[int, dict[int, list[Answer]]] = {}
    for step in chosen_steps(tables, _MOST_STEPS):
        by_step[step] = {}
        for place, files in enumerate(tables):
            if step in files:
                try:
                    by_step[step][place] = _read_answers(files[step], order)
                except (OSError, ValueError) as error:
                    why = (str(error).splitlines() or [type(error).__name__])[0]
                    notes.append(f"{runs[place].name}: {files[step].name} cannot be read ({why})")
    num_texts = (_MOST_PROMPTS + 2) * sum(map(len, by_step.values()))
    longest = max(_SHORTEST_TEXT, min(_LONGEST_TEXT, _MOST_CHARACTERS // max(1, num_texts)))
    side_by_side: list[dict[str, object]] = []
    extremes: list[dict[str, object]] = []
    for step, rows in by_step.items():
        if prompts := _shared_prompts(rows):
            side_by_side.append({"step": step, "prompts": [_beside(prompt, rows, longest) for prompt in prompts]})
        by_run = {str(place): _extremes(answers, longest) for place, answers in rows.items()}
        if any(by_run.values()):
            extremes.append({"step": step, "runs": by_run})
    has_tables = any(tables)
    none = "No run has a readable table of completions: it generates none, or log_completions is off."
    return CompletionPages(
        side_by_side,
        extremes,
        None if side_by_side else _NOT_BESIDE if has_tables else none,
        None if extremes else none,
        notes,
        len({step for files in tables for step in files}),
    )


_NOT_BESIDE = (
    "No two runs answered the same prompt at the same step, because the seed decides the order of the prompts. "
    "Runs with the same `data.seed` and `seed` share their prompts."
)


def _tables_of(run: LoggedRun) -> dict[int, Path]:
    """Return optimizer step -> table of completions, sorted by step; empty for a run without a folder."""
    files = (run.folder.path / "completions").glob("*.parquet") if run.folder is not None else ()
    return dict(sorted((int(match[1]), file) for file in files if (match := _TABLE.match(file.name))))


def chosen_steps(tables: Iterable[Iterable[int]], most: int) -> list[int]:
    """Return at most `most` evenly spaced steps, including both ends.

    They are chosen from the steps for which the most runs have tables.
    """
    counts = Counter(step for steps in tables for step in steps)
    common = sorted(step for step, count in counts.items() if count == max(counts.values()))
    if len(common) <= most:
        return common
    return sorted({common[round(place * (len(common) - 1) / (most - 1))] for place in range(most)})


def _read_answers(file: Path, order: Mapping[str, int]) -> list[Answer]:
    """Return the rows of a table, with scores in the `order` of the rewards and unlisted rewards last.

    Raise OSError or ValueError if the file is truncated or no longer exists.
    """
    import pyarrow.parquet

    require_regular(file, LARGEST_TABLE)
    with pyarrow.parquet.ParquetFile(file) as table:
        names = table.schema_arrow.names
        rewards = [name.removesuffix(_EFFECTIVE) for name in names if name.endswith(_EFFECTIVE)]
        rewards.sort(key=lambda name: order.get(name, len(order)))
        wanted = {"prompt", "completion", "total", "advantage", *rewards}
        wanted |= {f"{name}.{what}" for name in rewards for what in ("weighted", "closed_by", "error", "parts")}
        rows = table.read(columns=[name for name in names if name in wanted]).to_pylist()
    return [
        {
            "prompt": _text_of(row.get("prompt")),
            "text": _text_of(row.get("completion")),
            **{name: _number(row.get(name)) for name in ("total", "advantage")},
            "scores": [_score(row, name) for name in rewards],
        }
        for row in rows
    ]


def _score(row: Mapping[str, object], name: str) -> dict[str, object]:
    completion = row.get("completion")
    score: dict[str, object] = {"name": name, "raw": rounded(_number(row.get(name)))}
    score["weighted"] = rounded(_number(row.get(f"{name}.weighted")))
    if (closed_by := row.get(f"{name}.closed_by")) is not None:
        score["closed"] = str(closed_by)
    if (error := row.get(f"{name}.error")) is not None:
        score["error"] = redacted_values(str(error))[:_SHORTEST_TEXT]
    # The positions in a conversation refer to another text.
    if isinstance(completion, str) and (parts := _parts(row.get(f"{name}.parts"), completion)):
        score["parts"] = parts
    return score


def _text_of(content: object) -> str:
    """Return a text unchanged; for a conversation, return its messages, each after its role."""
    if isinstance(content, list):
        messages = [message for message in content if isinstance(message, dict)]
        return "\n".join(f"{message.get('role', '?')}: {message.get('content', '')}" for message in messages)
    return "" if content is None else str(content)


def _parts(content: object, text: str) -> list[tuple[int, int, float]]:
    """Return the parts that are inside the text."""
    try:
        parts = [(part["start"], part["end"], float(part["reward"])) for part in json.loads(str(content or "[]"))]
    except (ValueError, TypeError, KeyError):
        return []
    return [part for part in parts if 0 <= part[0] < part[1] <= len(text) and math.isfinite(part[2])]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _shared_prompts(rows: AnswersByRun) -> list[str]:
    """Return the prompts that the most runs answered at this step. At least two runs must have answered each."""
    runs_of: dict[str, set[int]] = {}
    for place, answers in rows.items():
        for answer in answers:
            runs_of.setdefault(answer["prompt"], set()).add(place)
    shared = [prompt for prompt, places in runs_of.items() if len(places) > 1]
    return sorted(shared, key=lambda prompt: -len(runs_of[prompt]))[:_MOST_PROMPTS]


def _beside(prompt: str, rows: AnswersByRun, longest: int) -> dict[str, object]:
    answers = {}
    for place, table in rows.items():
        given = [answer for answer in table if answer["prompt"] == prompt]
        if given:
            answers[str(place)] = {**_shown(given[0], longest), "of": len(given)}
    return {"prompt": redacted_values(prompt)[:_LONGEST_PROMPT], "answers": answers}


def _extremes(answers: Sequence[Answer], longest: int) -> dict[str, object] | None:
    """Return the rows with the highest and the lowest total, or None if no row has a total. No row is both."""
    known = sorted((row for row in answers if row["total"] is not None), key=lambda row: -row["total"])
    if not known:
        return None
    room = min(longest, _LONGEST_PROMPT)
    shown: dict[str, object] = {
        end: [{"prompt": redacted_values(row["prompt"])[:room], **_shown(row, longest)} for row in rows]
        for end, rows in {"best": known[:1], "worst": known[1:][-1:]}.items()
    }
    return shown | {"rows": len(answers)}


def _shown(answer: Answer, longest: int) -> dict[str, object]:
    """Return an answer for the page's script. Parts are dropped if redacting a secret moved the characters."""
    hidden = redacted_values(answer["text"])
    text = hidden[:longest]
    scores = []
    for score in answer["scores"]:
        parts = score.get("parts", ()) if hidden == answer["text"] else ()
        within = [[start, min(end, len(text)), rounded(value)] for start, end, value in parts if start < len(text)]
        others = {name: value for name, value in score.items() if name != "parts"}
        scores.append({**others, "parts": within} if within else others)
    total, advantage = rounded(answer["total"]), rounded(answer["advantage"])
    return {"text": text, "more": len(hidden) - len(text), "total": total, "advantage": advantage, "scores": scores}
