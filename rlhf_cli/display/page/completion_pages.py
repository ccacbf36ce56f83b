"""Choose and read the completions that the page shows.

The choice is not by content: for each prompt, the first answer in a run's table is taken, and the prompts are those
that the most runs answered. Their size is bounded, so that the page stays small even with 50 runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.display.page.curves import rounded
from rlhf_cli.rewards.completion_text import shown_text
from rlhf_cli.runs.metrics_file import tables_by_step
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.text.regular_files import LARGEST_TABLE, require_regular

_MOST_PARTS = 6
_EFFECTIVE = ".effective"
_MOST_STEPS = 10
_MOST_PROMPTS = 3
_LONGEST_TEXT, _LONGEST_PROMPT, _LONGEST_ERROR = 2000, 1200, 160

Answer = dict[str, Any]
"""A completion with its scores: `prompt`, `text`, `total` (by the run's own weights), and `scores`.

A score has `name`, `raw`, `weighted`, and where they apply `closed` and `error`.
"""


def completion_pages(runs: Sequence[LoggedRun]) -> dict[str, Any]:
    """Read a few steps of every run's tables and return what the page shows of them.

    `steps` has one page per step, `notes` the tables that could not be read, `num_steps` counts the steps of all runs.
    """
    order = {name: place for place, name in enumerate(reward_names(runs))}
    tables = [dict(tables_by_step(run.folder.path)) if run.folder is not None else {} for run in runs]
    # Evenly spaced steps, both ends included, of those for which the most runs have tables.
    counts = Counter(step for table in tables for step in table)
    common = sorted(step for step, count in counts.items() if count == max(counts.values()))
    chosen = [common[round(at)] for at in np.linspace(0, max(0, len(common) - 1), min(_MOST_STEPS, len(common)))]
    notes: list[str] = []
    steps: list[dict[str, object]] = []
    for step in dict.fromkeys(chosen):
        rows: dict[int, list[Answer]] = {}
        for place, table in enumerate(tables):
            if step in table:
                try:
                    rows[place] = _read_answers(table[step], order)
                except (OSError, ValueError) as error:
                    why = (str(error).splitlines() or [type(error).__name__])[0]
                    notes.append(f"{runs[place].name}: {table[step].name} cannot be read ({why})")
        of_run = [dict.fromkeys(answer["prompt"] for answer in answers) for answers in rows.values()]
        num_runs = Counter(prompt for prompts in of_run for prompt in prompts)
        if beside := [_beside(prompt, rows) for prompt, _ in num_runs.most_common(_MOST_PROMPTS)]:
            steps.append({"step": step, "prompts": beside})
    return {"steps": steps, "notes": notes, "num_steps": len(counts)}


def _read_answers(file: Path, order: Mapping[str, int]) -> list[Answer]:
    """Return the rows of a table, with scores in the `order` of the rewards. Raise OSError or ValueError."""
    import pyarrow.parquet

    require_regular(file, LARGEST_TABLE)
    with pyarrow.parquet.ParquetFile(file) as table:
        names = table.schema_arrow.names
        rewards = [name.removesuffix(_EFFECTIVE) for name in names if name.endswith(_EFFECTIVE)]
        rewards.sort(key=lambda name: order.get(name, len(order)))
        wanted = {"prompt", "completion", "total", *rewards}
        wanted |= {f"{name}.{what}" for name in rewards for what in ("weighted", "closed_by", "error", "parts")}
        rows = table.read(columns=[name for name in names if name in wanted]).to_pylist()
    return [
        {
            "prompt": _text_of(row.get("prompt")),
            "text": _text_of(row.get("completion")),
            "total": rounded(row.get("total")),
            "scores": [_score(row, name) for name in rewards],
        }
        for row in rows
    ]


def _score(row: Mapping[str, object], name: str) -> dict[str, object]:
    score: dict[str, object] = {"name": name, "raw": rounded(row.get(name))}
    score["weighted"] = rounded(row.get(f"{name}.weighted"))
    with suppress(ValueError, TypeError, KeyError):  # of a table that somebody else wrote
        parts = [rounded(part["reward"]) for part in json.loads(str(row.get(f"{name}.parts")))]
        score |= {"parts": parts} if 1 < len(parts) <= _MOST_PARTS else {}
    if (closed_by := row.get(f"{name}.closed_by")) is not None:
        score["closed"] = str(closed_by)
    if (error := row.get(f"{name}.error")) is not None:
        score["error"] = redacted_tree(str(error), values_only=True)[:_LONGEST_ERROR]
    return score


def _text_of(content: object) -> str:
    """Return a text unchanged; for a conversation, return its messages, each after its role."""
    if isinstance(content, list):
        messages = [message for message in content if isinstance(message, dict)]
        return "\n".join(f"{one.get('role', '?')}: {shown_text(one)}" for one in messages)
    return "" if content is None else str(content)


def _beside(prompt: str, rows: Mapping[int, list[Answer]]) -> dict[str, object]:
    """Return the first answer of each run to a prompt; `rows` maps run index -> the rows of its table."""
    answers = {}
    for place, table in rows.items():
        if given := [answer for answer in table if answer["prompt"] == prompt]:
            text = redacted_tree(given[0]["text"], values_only=True)
            cut = {"prompt": "", "text": text[:_LONGEST_TEXT], "more": max(0, len(text) - _LONGEST_TEXT)}
            answers[str(place)] = {**given[0], **cut, "of": len(given)}
    return {"prompt": redacted_tree(prompt, values_only=True)[:_LONGEST_PROMPT], "answers": answers}
