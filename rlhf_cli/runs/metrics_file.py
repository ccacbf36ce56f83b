"""Write and read metrics.jsonl, and the completion tables beside it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import orjson

from rlhf_cli.runs.run_folder import GREEDY, SAMPLED, flush, said, unreadable, write_text
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.text.regular_files import lines_of, parse_json

_PASS = re.compile(r"^eval_(?:\w+_)?pass@\d+/(?P<reward>.+)$")
_MEAN = re.compile(r"rewards/([^/]+)/mean")
_LEARNT = ("loss", "accuracy", "rewards/accuracies", "mean_token_accuracy")
_FEW_LEVELS = 100
_LARGEST_COUNT = 1 << 53
TOTAL = "reward"  # TRL's name for the weighted sum of all rewards

Event: TypeAlias = Mapping[str, object]  # of metrics.jsonl: name -> a number, or None if it was not finite
_SET = re.compile(r"^(eval_(\w+)_)runtime$")
_OURS = re.compile(r"^completions_(\d+)\.parquet$")


class MetricsWriter:
    """Appends events to metrics.jsonl; `time_s` counts training seconds, on from an earlier attempt."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset_s = path, 0.0
        for event in iter_metrics(path):
            self._offset_s = cast(float, event["time_s"])
        self._started = time.monotonic()

    def write(self, step: int, logs: Mapping[str, object]) -> Event:
        """Append one event and return it. A value that is not a finite number is written as null: JSON has no NaN."""
        time_s = round(self._offset_s + time.monotonic() - self._started, 3)
        finite = {key: finite_or_none(value) for key, value in plain_metrics(logs).items()}
        event = {"step": step, "time_s": time_s, **finite}
        event = redacted_tree(event, values_only=True)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")
        return event

    def flush(self) -> None:
        """Flush the file to disk: a checkpoint relies on the events before it."""
        if self._path.is_file():
            flush(self._path)


def plain_metrics(logs: Mapping[str, object]) -> dict[str, object]:
    """Return logged metrics with tensors as numbers."""
    return {name: value.item() if hasattr(value, "item") else value for name, value in logs.items()}


def read_metrics(path: Path, *, numbers: tuple[str, ...] = ("step", "time_s")) -> list[Event]:
    """Return the events of `iter_metrics` as a list."""
    return list(iter_metrics(path, numbers=numbers))


def iter_metrics(path: Path, *, numbers: tuple[str, ...] = ("step", "time_s")) -> Iterator[Event]:
    """Yield every complete event, which has at least these `numbers`; none if the file does not exist.

    Skip a last line cut off by a kill or a power cut; raise RunError for any other that is no event.
    """
    damaged = ""
    try:
        for number, line in enumerate(lines_of(path), 1):
            if not (line := line.strip(b" \t\r\n\0")):
                continue
            if damaged:
                raise unreadable(path, damaged)
            if (event := _event(line, numbers)) is not None:
                yield event
                continue
            damaged = f"line {number}: {line[:40].decode('utf-8', errors='backslashreplace')!r}"
            # Our own lines are in braces: a last line that lacks the second one was cut off, any other is damaged.
            if not line.startswith(b"{") or line.endswith(b"}"):
                raise unreadable(path, damaged)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(path, said(error)) from error


def _event(line: bytes, numbers: tuple[str, ...]) -> Event | None:
    try:
        # orjson knows no NaN, and accepts more levels than others can walk.
        is_usual = b"NaN" not in line and line.count(b"[") + line.count(b"{") < _FEW_LEVELS
        event = orjson.loads(line) if is_usual else parse_json(line)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    counts = [event.get(name) for name in numbers]
    return event if all(isinstance(one, int | float) and abs(one) < _LARGEST_COUNT for one in counts) else None


def events_after(path: Path, offset: int) -> tuple[list[Event], int]:
    """Return the events after `offset` bytes of a growing file, and where they end; skip damaged lines, the summary."""
    with path.open("rb") as stream:
        stream.seek(offset)
        *lines, rest = stream.read().split(b"\n")
        end = stream.tell() - len(rest)
    events = (_event(line, ("step", "time_s")) for line in lines)
    return [event for event in events if event is not None and "train_runtime" not in event], end


def rewind(path: Path, step: int) -> int:
    """Remove the events after `step`, all for 0: a resumed run writes them again. Return the last step in the file."""
    if not path.is_file():
        return 0
    events = read_metrics(path, numbers=("step",))
    left = events if step else []
    kept = [event for event in left if cast(float, event["step"]) <= step and "train_runtime" not in event]
    write_text(path, "".join(json.dumps(event) + "\n" for event in kept), durable=True)
    return max((int(cast(float, event["step"])) for event in events), default=0)


def series(events: Iterable[Event], name: str) -> tuple[list[int], list[float]]:
    """Return (steps, values) of one metric, skipping events without it."""
    points = [
        (step, float(value))
        for event in events
        if isinstance(value := event.get(name), int | float) and isinstance(step := event["step"], int)
    ]
    return [step for step, _ in points], [value for _, value in points]


def reward_names(events: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of the reward components in the order they were first logged."""
    found = (_MEAN.fullmatch(key) for event in events for key in event)
    return list(dict.fromkeys(match[1] for match in found if match))


def failed_shares(events: Iterable[Event]) -> dict[str, float]:
    """Return reward name -> share of its scored rows that failed, for rewards with failures."""
    events = list(events)
    shares = {}
    for name in reward_names(events):
        failed, asked = (sum(series(events, f"rewards/{name}/{what}")[1]) for what in ("errors", "calls"))
        if failed and asked:
            shares[name] = failed / asked
    return shares


def evaluation_sets(names: Iterable[str]) -> dict[str, str]:
    """Return name of an evaluation set -> how its logged metrics begin; '' -> `eval_` comes first, for a single set."""
    return {"": "eval_", **{match[2]: match[1] for match in map(_SET.match, names) if match}}


def describe_held_out(metrics: Event, prefix: str = "eval_") -> str:
    """Describe an evaluation in one line: a policy's totals, else loss and accuracy, else ''."""
    totals = []
    for part in (GREEDY, SAMPLED):
        mean, low, high = (metrics.get(f"{prefix}{part}/total{bound}") for bound in ("", "/low", "/high"))
        if mean is not None:
            interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
            unseen = metrics.get(f"{prefix}{part}/total/unseen")
            of_unseen = "" if unseen is None else f" ({unseen:.3f} on prompts that are not trained on)"
            totals.append(f"{part} {mean:.3f}{interval}{of_unseen}")
    losses = [] if totals else [(name, metrics.get(f"{prefix}{name}")) for name in _LEARNT]
    return ", ".join([*totals, *(f"{name} {value:.3f}" for name, value in losses if value is not None)])


def most_attempts(metrics: Iterable[str]) -> list[str]:
    """Return the pass@k metric with the largest k of each reward; `metrics` are in increasing order of k."""
    return list({match["reward"]: match[0] for match in map(_PASS.match, metrics) if match}.values())


def table_file(run: Path, step: int) -> Path:
    """Return the path of the completion table of a step, named as in TRL's GRPOTrainer. It need not exist."""
    return run / "completions" / f"completions_{step:05d}.parquet"


def tables_by_step(run: Path) -> list[tuple[int, Path]]:
    """Return (step, file) of every completion table in a run folder, sorted by step."""
    return sorted((step, file) for file in run.glob("completions/*.parquet") if (step := step_of_table(file)) >= 0)


def step_of_table(file: Path) -> int:
    """Return the step of a completion table by its name, -1 for another file."""
    match = _OURS.match(file.name)
    return -1 if match is None else int(match[1])


def prune_completions(run: Path, *, last: int, every: int | None) -> None:
    """Delete a run's completion tables except the first, the `last` newest and those of every `every`-th step.

    The first stays for `rlhf whatif`: its answers come from the initial policy, which runs with one seed share.
    """
    tables = tables_by_step(run)
    first = next((step for step, _ in tables if step > 0), 0)  # step 0 is an evaluation before training
    for step, file in tables[:-last]:
        if step != first and (every is None or step % every != 0):
            file.unlink(missing_ok=True)
