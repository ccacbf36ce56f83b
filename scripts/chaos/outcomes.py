"""What a run ended as, and what was seen of a run that was broken: plain values, which go into a file of JSON lines."""

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
    """What a run ended as: the hashes of its model's weights, of its critic's, and of its metrics step by step."""

    model: str | None
    critic: str | None
    metrics: str


@dataclass(frozen=True)
class Ended:
    """How a command ended: its code (-N by signal N), what it printed, the command lines of processes that outlived it
    by more than the patience, and the seconds after its end when the last process of it was gone.

    `went_on_from` is the step of the checkpoint it went on from, 0 for the beginning, None where it came to an end
    before it said; `first_step_s` the time from typing it to the first step it logged, None where it logged none.
    """

    code: int
    said: str
    orphans: tuple[str, ...]
    gone_after_s: float
    went_on_from: int | None = None
    first_step_s: float | None = None


@dataclass(frozen=True)
class Blow:
    """What was seen of one blow, `at_s` seconds after the command was typed that it hit.

    `victim` is who was hit in the end; `state` what was read of the run then (None where it had no folder), with
    what could not be read in `unreadable`; `step` the last that was logged, `checkpoint` that of the newest checkpoint
    that verifies (0 for none), `was_saving` whether a save was cut in two; `readers` maps the verbs that read the
    folder -> how they ended.
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
    """A run that was struck again and again, and the command that in the end took it to its last step, unstruck."""

    number: int
    seed: int
    case: str
    track: str
    blows: tuple[Blow, ...]
    last: Ended
    result: Result
    expected: Result

    def commands(self) -> list[Ended]:
        """Return every command that went on with the run, in their order: after each blow one."""
        return [*(blow.ended for blow in self.blows[1:]), self.last]


def result_of(folder: RunFolder) -> Result:
    """Return what the run in `folder` ended as."""
    events = read_metrics(folder.metrics)
    content = json.dumps([series(events, name) for name in _COMPARED])
    metrics = hashlib.sha256(content.encode()).hexdigest()
    return Result(weights_hash(folder.model), weights_hash(folder.critic), metrics)


def write_line(file: Path, broken: Broken) -> None:
    """Append what was seen to a file of JSON lines."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(broken)) + "\n")


def read_lines(file: Path) -> Iterator[Broken]:
    """Yield what `write_line` has written; nothing where there is no such file."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        plain = json.loads(line)
        blows = tuple(_blow(one) for one in plain["blows"])
        results = {name: Result(**plain[name]) for name in ("result", "expected")}
        yield Broken(**{**plain, **results, "blows": blows, "last": _ended(plain["last"])})


def _blow(plain: dict[str, Any]) -> Blow:
    readers = {verb: _ended(one) for verb, one in plain["readers"].items()}
    return Blow(**{**plain, "ended": _ended(plain["ended"]), "readers": readers})


def _ended(plain: dict[str, Any]) -> Ended:
    return Ended(**{**plain, "orphans": tuple(plain["orphans"])})
