"""Read a run's tables of completions, with the scores of every reward for each row."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_cli.comparison.logged_run import LoggedRun

_TABLE = re.compile(r"^completions_(\d+)\.parquet$")
_EFFECTIVE = ".effective"


@dataclass(frozen=True)
class Score:
    """One reward's score for a completion: its raw and weighted values, None if it has none.

    `closed_by` is the reward that closed its gate; `error` is why it failed. `parts` are the (start, end, reward) spans
    of a dense reward, in characters of the completion.
    """

    raw: float | None
    weighted: float | None
    closed_by: str | None = None
    error: str | None = None
    parts: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True)
class Answer:
    """A completion with its scores. `total` is computed with the run's own weights."""

    prompt: str
    text: str
    total: float | None
    advantage: float | None
    scores: Mapping[str, Score] = field(default_factory=dict)


def tables_of(run: LoggedRun) -> dict[int, Path]:
    """Return optimizer step -> table of completions, sorted by step; empty for a run without a folder."""
    if run.folder is None:
        return {}
    files = (run.folder.path / "completions").glob("*.parquet")
    return dict(sorted((int(match[1]), file) for file in files if (match := _TABLE.match(file.name))))


def chosen_steps(tables: Iterable[Iterable[int]], most: int) -> list[int]:
    """Return at most `most` evenly spaced steps, including both ends.

    They are chosen from the steps for which the most runs have tables.
    """
    counts = Counter(step for steps in tables for step in steps)
    if not counts:
        return []
    common = sorted(step for step, count in counts.items() if count == max(counts.values()))
    if len(common) <= most:
        return common
    return sorted({common[round(place * (len(common) - 1) / (most - 1))] for place in range(most)})


def read_answers(file: Path, order: Mapping[str, int]) -> list[Answer]:
    """Return the rows of a table, with scores in the `order` of the rewards and unlisted rewards last.

    Raise OSError or ValueError if the file is truncated or no longer exists.
    """
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as table:
        names = table.schema_arrow.names
        rewards = [name.removesuffix(_EFFECTIVE) for name in names if name.endswith(_EFFECTIVE)]
        rewards.sort(key=lambda name: order.get(name, len(order)))
        wanted = {"prompt", "completion", "total", "advantage", *rewards}
        wanted |= {f"{name}.{what}" for name in rewards for what in ("weighted", "closed_by", "error", "parts")}
        rows = table.read(columns=[name for name in names if name in wanted]).to_pylist()
    return [_answer(row, rewards) for row in rows]


def _answer(row: Mapping[str, object], rewards: Sequence[str]) -> Answer:
    text = text_of(row.get("completion"))
    scores = {
        name: Score(
            _number(row.get(name)),
            _number(row.get(f"{name}.weighted")),
            _text_or_none(row.get(f"{name}.closed_by")),
            _text_or_none(row.get(f"{name}.error")),
            _parts(row.get(f"{name}.parts"), text if isinstance(row.get("completion"), str) else ""),
        )
        for name in rewards
    }
    return Answer(text_of(row.get("prompt")), text, _number(row.get("total")), _number(row.get("advantage")), scores)


def text_of(content: object) -> str:
    """Return a text unchanged; for a conversation, return its messages, each after its role."""
    if isinstance(content, list):
        said = [one for one in content if isinstance(one, dict)]
        return "\n".join(f"{one.get('role', '?')}: {one.get('content', '')}" for one in said)
    return "" if content is None else str(content)


def _parts(content: object, text: str) -> tuple[tuple[int, int, float], ...]:
    """Return the parts that are inside the text.

    Return none for a conversation, because its positions refer to another text.
    """
    if not isinstance(content, str):
        return ()
    try:
        parts = [(part["start"], part["end"], float(part["reward"])) for part in json.loads(content)]
    except (ValueError, TypeError, KeyError):
        return ()
    return tuple(part for part in parts if 0 <= part[0] < part[1] <= len(text) and math.isfinite(part[2]))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
