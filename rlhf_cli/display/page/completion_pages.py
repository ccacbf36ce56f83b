"""Choose and read the completions that the page shows.

The choice is not by content: for each prompt, the first answer in a run's table is taken, and the prompts are those
that the most runs answered. Both parts are bounded, so that the page stays small even with 50 runs.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.display.page.embedding import rounded
from rlhf_cli.text.redaction import redacted_values

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


MOST_STEPS = 10
MOST_PROMPTS = 3
_FEW_RUNS = 12
_MOST_TABLES = 1000
"""Maximum number of tables to read; each takes a few milliseconds.

With more than a hundred runs, fewer steps are read.
"""

_MOST_CHARACTERS = 400_000
"""Maximum characters of completions in each of the two parts."""

_LONGEST_TEXT, _SHORTEST_TEXT = 2000, 160
_LONGEST_PROMPT = 1200

ByRun = Mapping[int, list[Answer]]
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
    tables = [tables_of(run) for run in runs]
    steps = chosen_steps(tables, max(2, min(MOST_STEPS, _MOST_TABLES // max(1, len(runs)))))
    notes: list[str] = []
    by_step: dict[int, dict[int, list[Answer]]] = {}
    for step in steps:
        rows: dict[int, list[Answer]] = {}
        for place, files in enumerate(tables):
            if step in files:
                try:
                    rows[place] = read_answers(files[step], order)
                except (OSError, ValueError) as error:
                    said = (str(error).splitlines() or [type(error).__name__])[0]
                    notes.append(f"{runs[place].name}: {files[step].name} cannot be read ({said})")
        by_step[step] = rows
    shared = {step: _shared_prompts(rows) for step, rows in by_step.items()}
    num_texts = sum(len(rows) for step, rows in by_step.items() for _ in shared[step])
    side_by_side: list[dict[str, object]] = []
    for step, rows in by_step.items():
        prompts = [_beside(prompt, rows, _longest(num_texts)) for prompt in shared[step]]
        if prompts:
            side_by_side.append({"step": step, "prompts": prompts})
    most_extremes = 2 if len(runs) <= _FEW_RUNS else 1
    num_extremes = sum(len(rows) for rows in by_step.values()) * 2 * most_extremes
    extremes: list[dict[str, object]] = []
    for step, rows in by_step.items():
        of_runs = {
            str(place): _extremes(answers, most_extremes, _longest(num_extremes)) for place, answers in rows.items()
        }
        if any(of_runs.values()):
            extremes.append({"step": step, "runs": of_runs})
    return CompletionPages(
        side_by_side,
        extremes,
        None if side_by_side else _why_not_beside(runs, tables),
        None if extremes else _why_none(tables),
        notes,
        len({step for files in tables for step in files}),
    )


def _shared_prompts(rows: ByRun) -> list[str]:
    """Return the prompts that the most runs answered at this step. At least two runs must have answered each."""
    runs_of: dict[str, set[int]] = {}
    for place, answers in rows.items():
        for answer in answers:
            runs_of.setdefault(answer.prompt, set()).add(place)
    shared = [prompt for prompt, places in runs_of.items() if len(places) > 1]
    return sorted(shared, key=lambda prompt: -len(runs_of[prompt]))[:MOST_PROMPTS]


def _beside(prompt: str, rows: ByRun, longest: int) -> dict[str, object]:
    answers = {}
    for place, of_run in rows.items():
        given = [answer for answer in of_run if answer.prompt == prompt]
        if given:
            answers[str(place)] = {**_shown(given[0], longest), "of": len(given)}
    return {"prompt": _cut(redacted_values(prompt), _LONGEST_PROMPT)[0], "answers": answers}


def _extremes(answers: Sequence[Answer], most: int, longest: int) -> dict[str, object] | None:
    """Return the rows with the highest and the lowest totals, or None if no row has a total. No row is in both."""
    known = sorted((row for row in answers if row.total is not None), key=lambda row: -(row.total or 0.0))
    count = min(most, len(known) // 2) or min(1, len(known))
    if not count:
        return None
    worst = list(reversed(known[count:][-count:]))
    return {
        "best": [_with_prompt(row, longest) for row in known[:count]],
        "worst": [_with_prompt(row, longest) for row in worst],
        "rows": len(answers),
    }


def _with_prompt(answer: Answer, longest: int) -> dict[str, object]:
    return {"prompt": _cut(redacted_values(answer.prompt), min(longest, _LONGEST_PROMPT))[0], **_shown(answer, longest)}


def _shown(answer: Answer, longest: int) -> dict[str, object]:
    """Return an answer for the page's script. Parts are dropped if redacting a secret moved the characters."""
    hidden = redacted_values(answer.text)
    text, left_out = _cut(hidden, longest)
    scores = []
    for name, score in answer.scores.items():
        shown: dict[str, object] = {"name": name, "raw": rounded(score.raw), "weighted": rounded(score.weighted)}
        if score.closed_by is not None:
            shown["closed"] = score.closed_by
        if score.error is not None:
            shown["error"] = _cut(redacted_values(score.error), _SHORTEST_TEXT)[0]
        if score.parts and hidden == answer.text:
            shown["parts"] = [[start, end, rounded(reward)] for start, end, reward in _within(score.parts, len(text))]
        scores.append(shown)
    total, advantage = rounded(answer.total), rounded(answer.advantage)
    return {"text": text, "more": left_out, "total": total, "advantage": advantage, "scores": scores}


def _within(parts: Sequence[tuple[int, int, float]], length: int) -> Iterator[tuple[int, int, float]]:
    return ((start, min(end, length), reward) for start, end, reward in parts if start < length)


def _cut(text: str, longest: int) -> tuple[str, int]:
    """Return the beginning of a text, and how many characters were cut."""
    return (text, 0) if len(text) <= longest else (text[:longest], len(text) - longest)


def _longest(num_texts: int) -> int:
    return max(_SHORTEST_TEXT, min(_LONGEST_TEXT, _MOST_CHARACTERS // max(1, num_texts)))


def _why_not_beside(runs: Sequence[LoggedRun], tables: Sequence[Mapping[int, object]]) -> str:
    if len(runs) < 2:
        return "One run has no other to stand beside: its completions are below."
    if any(tables):
        return (
            "No two runs answered the same prompt at the same step: other seeds bring the prompts in another order. "
            "Runs that share `data.seed` and `seed` share their prompts."
        )
    return _why_none(tables)


def _why_none(tables: Sequence[Mapping[int, object]]) -> str:
    if any(tables):
        return "No table of completions that could be read has a row with a total."
    return (
        "No run has tables of completions: its trainer learns from rows and generates none, or "
        "trainer.args.log_completions is off."
    )
