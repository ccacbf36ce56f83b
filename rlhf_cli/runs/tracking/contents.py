"""Make the tables and the summary of a run that wandb gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rlhf_cli.runs.metrics_file import TOTAL, Event, reward_names, series, tables_by_step
from rlhf_cli.runs.run_folder import RunFolder, in_training, read_json
from rlhf_cli.runs.tracking.tracking_plan import at_the_end, shown_name
from rlhf_cli.text.json_values import finite_or_none, section

Row: TypeAlias = Mapping[str, object]
"""Maps column -> value; the rows of a table have the same columns."""

_OF_PAIRS = ("loss", "accuracy", "rewards/accuracies", "rewards/margins", "mean_token_accuracy")
_WORSE_IF_MORE = ("loss",)
_EVALUATION = "eval_"
_BOUNDS = ("/low", "/high")


def final_values(events: Sequence[Event]) -> dict[str, float]:
    """Return `final/METRIC`, `best/METRIC` and `best_step/METRIC` of the metrics that judge a run.

    These are the total and every component if there are rewards, else loss and accuracy. On training rows, `final` is
    the mean of the last tenth of the log events with a number, and `best` is the best mean over a window of that width,
    so one lucky batch does not count. For an evaluation they are the last and the best value, each with `/low` and
    `/high` if the 95 % interval is known.
    """
    names = reward_names(events)
    judged = [TOTAL, *(f"rewards/{name}/mean" for name in names)] if names else list(_OF_PAIRS)
    values: dict[str, float] = {}
    for metric in judged:
        values |= _of_training(events, metric)
    for metric in _evaluated(events):
        values |= _of_evaluations(events, metric)
    for event in events:
        values |= at_the_end(event)
    return values


def _of_training(events: Sequence[Event], metric: str) -> dict[str, float]:
    steps, values = series(events, metric)
    if not values:
        return {}
    width = max(1, len(values) // 10)
    means = [sum(values[end - width : end]) / width for end in range(width, len(values) + 1)]
    place = _best(means, metric)
    return _named(metric, means[-1], means[place], steps[place + width - 1])


def _of_evaluations(events: Sequence[Event], metric: str) -> dict[str, float]:
    steps, values = series(events, metric)
    place = _best(values, metric)
    summary = _named(metric, values[-1], values[place], steps[place])
    for bound in _BOUNDS:
        by_step: Mapping[int, float] = dict(zip(*series(events, metric + bound), strict=True))
        for which, step in (("final", steps[-1]), ("best", steps[place])):
            if step in by_step:
                summary[f"{which}/{shown_name(metric)}{bound}"] = by_step[step]
    return summary


def _named(metric: str, final: float, best: float, best_step: int) -> dict[str, float]:
    shown = shown_name(metric)
    return {f"final/{shown}": final, f"best/{shown}": best, f"best_step/{shown}": best_step}


def _best(values: Sequence[float], metric: str) -> int:
    """Return the index of the best value, the first one on ties."""
    sign = -1 if metric.removeprefix(_EVALUATION) in _WORSE_IF_MORE else 1
    return max(range(len(values)), key=lambda place: sign * values[place])


def _evaluated(events: Sequence[Event]) -> list[str]:
    """Return the metrics that judge evaluations: totals and rewards of answers, else loss and accuracy."""
    logged = dict.fromkeys(name for event in events for name in event if name.startswith(_EVALUATION))
    judged = [name for name in logged if is_held_out(name)]
    judged = judged or [name for name in logged if name.removeprefix(_EVALUATION) in _OF_PAIRS]
    return [name for name in judged if series(events, name)[1]]


def is_held_out(name: str) -> bool:
    """Return whether a metric is the total or a reward of evaluated answers."""
    is_of_answers = name.startswith(("eval_greedy/", "eval_sampled/")) and not name.endswith(_BOUNDS)
    return is_of_answers and (name.endswith("/total") or "/rewards/" in name)


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
        for name, measured in figures.items():
            if measured:
                bounds = {of: measured.get(of) for of in ("mean", "low", "high")}
                rows.append({"step": step, "answers": way, "figure": name, **bounds})
    return rows


def answer_rows(folder: RunFolder, step: int) -> list[Row]:
    """Return the first answers of the evaluation at a step; the prompts are the same at every step."""
    file = in_training(folder) / f"step-{step}.completions.jsonl"
    if not file.is_file():
        return []
    rows: list[Row] = []
    for line in file.read_text(encoding="utf-8").splitlines()[:_MOST_ANSWERS]:
        answer = json.loads(line)
        answer |= answer.pop("rewards", None) or {}
        answer.pop("completion_ids", None)
        rows.append({"step": step, **{name: _plain(value) for name, value in answer.items()}})
    return alike(rows)


def alike(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the same columns, filling missing values with None."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _plain(value: object) -> object:
    """Return a number, a text or None unchanged, a conversation as readable text, anything else as JSON.

    A column of a table must have one type.
    """
    messages = value if isinstance(value, list) else []
    if messages and all(isinstance(one, dict) and {"role", "content"} <= {*one} for one in messages):
        return "\n".join(f"{one['role']}: {one['content']}" for one in messages)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else finite_or_none(value)
