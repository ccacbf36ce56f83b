"""Read the tables in a run folder as rows for a tracker: completions and evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.json_values import JsonTree, finite_or_none, section
from rlhf_cli.runs.completion_tables import tables_by_step
from rlhf_cli.runs.evaluations import in_training
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.tracking.tracker import Row

_MOST_ANSWERS = 200
_HISTORY_TABLES, _HISTORY_ROWS = 40, 16
_FIGURES = ("total", "truncated", "tokens")


def completion_rows(file: Path, *, unique_prompts: bool = False) -> list[Row]:
    """Return the rows of a completion table; with `unique_prompts` one per prompt, as in TRL's option."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file).to_pylist()
    rows: list[Row] = [{name: _plain(value) for name, value in row.items()} for row in table]
    if not unique_prompts:
        return rows
    firsts: dict[object, Row] = {}
    for row in rows:
        firsts.setdefault(row["prompt"], row)
    return list(firsts.values())


def history_rows(folder: Path) -> list[Row]:
    """Return the first rows of tables spread evenly over the run, including the first and the last.

    This bounded table shows how completions changed: at most 40 steps, 16 rows each.
    """
    files = [file for _, file in tables_by_step(folder)]
    if len(files) < 2:
        return []
    count = min(_HISTORY_TABLES, len(files))
    places = sorted({round(number * (len(files) - 1) / (count - 1)) for number in range(count)})
    return alike([row for place in places for row in completion_rows(files[place])[:_HISTORY_ROWS]])


def evaluation_rows(folder: RunFolder, step: int) -> list[Row]:
    """Return one row per metric of the evaluation at a step, with its 95 % interval; [] if there is none."""
    parts = section(read_json(in_training(folder) / f"step-{step}.json"), "parts")
    rows: list[Row] = []
    for way in parts:
        part = section(parts, way)
        figures = {name: section(part, name) for name in _FIGURES}
        rewards = section(part, "rewards")
        figures |= {f"rewards/{name}": section(section(rewards, name), "raw") for name in rewards}
        rows += [_figure(step, way, name, measured) for name, measured in figures.items() if measured]
    return rows


def answer_rows(folder: RunFolder, step: int) -> list[Row]:
    """Return the first answers of the evaluation at a step; the prompts are the same at every step."""
    file = in_training(folder) / f"step-{step}.completions.jsonl"
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()[:_MOST_ANSWERS]
    rows: list[Row] = []
    for line in lines:
        answer = json.loads(line)
        rewards = answer.pop("rewards", None)
        answer.pop("completion_ids", None)
        flat = {**answer, **(rewards if isinstance(rewards, dict) else {})}
        rows.append({"step": step, **{name: _plain(value) for name, value in flat.items()}})
    return alike(rows)


def alike(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the same columns, filling missing values with None."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _figure(step: int, way: str, name: str, measured: JsonTree) -> Row:
    return {"step": step, "answers": way, "figure": name, **{of: measured.get(of) for of in ("mean", "low", "high")}}


def _plain(value: object) -> object:
    """Return a number, a text or None unchanged, anything else as text, so that a column has one type."""
    if isinstance(value, dict | list):
        return _conversation(value) or json.dumps(value, ensure_ascii=False)
    return finite_or_none(value)


def _conversation(value: object) -> str | None:
    """Return a list of messages as readable text, or None for anything else."""
    if not isinstance(value, list) or not value:
        return None
    messages = [one for one in value if isinstance(one, dict) and {"role", "content"} <= set(one)]
    return "\n".join(f"{one['role']}: {one['content']}" for one in messages) if len(messages) == len(value) else None
