"""Results of runs and facts about broken ones: plain values, stored as JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder

_COMPARED = ("loss", "reward", "grad_norm")


@dataclass(frozen=True)
class Result:
    """The result of a run: hashes of the weights of model and critic, and of the metrics of each step."""

    model: str | None
    critic: str | None
    metrics: str


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (-N for signal N), output, the command lines of processes that outlived it, and
    the seconds after its end until its last process was gone.

    went_on_from: the step of the checkpoint it resumed from, 0 for the beginning, None if it ended before printing it;
    first_step_s: the time to its first logged step, None without one.
    """

    code: int
    said: str
    orphans: tuple[str, ...]
    gone_after_s: float
    went_on_from: int | None = None
    first_step_s: float | None = None


@dataclass(frozen=True)
class Blow:
    """The facts of one blow, `at_s` seconds after its command was typed.

    victim: the process that was hit; state: the state of the run then (None without a folder); unreadable: what could
    not be read; step: the last logged step; checkpoint: the step of the newest valid checkpoint (0 for none);
    was_saving: whether a save was interrupted; readers: verb -> how it ended when it read the folder.
    """

    signal: str
    victim: str
    at_s: float
    ended: Ended
    state: str | None
    unreadable: str | None
    step: int
    checkpoint: int
    was_saving: bool
    readers: dict[str, Ended]


@dataclass(frozen=True)
class Broken:
    """A run that was struck repeatedly, and the last command, which finished it."""

    number: int
    seed: int
    case: str
    track: str
    blows: tuple[Blow, ...]
    last: Ended
    result: Result
    expected: Result

    def commands(self) -> list[Ended]:
        """Return the command after each blow, in order."""
        return [*(blow.ended for blow in self.blows[1:]), self.last]


def result_of(folder: RunFolder) -> Result:
    """Return the result of the run in `folder`."""
    events = read_metrics(folder.metrics)
    content = json.dumps([series(events, name) for name in _COMPARED])
    metrics = hashlib.sha256(content.encode()).hexdigest()
    return Result(weights_hash(folder.model), weights_hash(folder.critic), metrics)


def write_line(file: Path, broken: Broken) -> None:
    """Append a record to a file of JSON lines."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(broken)) + "\n")


def read_lines(file: Path) -> Iterator[Broken]:
    """Yield the records that `write_line` wrote, none if the file does not exist."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        plain = json.loads(line)
        blows = tuple(_blow(blow) for blow in plain["blows"])
        results = {name: Result(**plain[name]) for name in ("result", "expected")}
        yield Broken(**{**plain, **results, "blows": blows, "last": _ended(plain["last"])})


def _blow(plain: dict[str, Any]) -> Blow:
    readers = {verb: _ended(ended) for verb, ended in plain["readers"].items()}
    return Blow(**{**plain, "ended": _ended(plain["ended"]), "readers": readers})


def _ended(plain: dict[str, Any]) -> Ended:
    return Ended(**{**plain, "orphans": tuple(plain["orphans"])})
