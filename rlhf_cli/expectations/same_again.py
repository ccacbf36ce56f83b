"""Compare a run with a repetition of itself: the log, the weights, and the causes of differences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_cli.comparison.logged_run import flat
from rlhf_cli.expectations.first_difference import LogsCompared, compare_logs
from rlhf_cli.expectations.possible_causes import Cause, Recorded, causes_of, unrepeatable
from rlhf_cli.runs.checkpoint_folders import checkpoint_folder
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, read_json


@dataclass(frozen=True)
class WeightsCompared:
    """The hashes of the weights of one part of two runs: `model`, `critic`, or a checkpoint."""

    part: str
    before: str
    after: str

    @property
    def is_equal(self) -> bool:
        """Return whether the weights are equal."""
        return self.before == self.after


@dataclass(frozen=True)
class SameAgain:
    """Two runs that should be identical, and whether they are.

    `causes` are all recorded differences that may change a number, `unrepeatable` the parts that may differ even if
    nothing changed; both are also set if the runs are equal.
    """

    before: RunFolder
    after: RunFolder
    logs: LogsCompared
    weights: tuple[WeightsCompared, ...]
    causes: tuple[Cause, ...]
    unrepeatable: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Return whether all compared numbers and hashes are equal."""
        return self.logs.difference is None and all(part.is_equal for part in self.weights)

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        difference = self.logs.difference
        return {
            "equal": self.is_equal,
            "run": self.before.shown,
            "again": self.after.shown,
            "steps": self.logs.last_step,
            "equal_steps": self.logs.equal_steps,
            "log_events": self.logs.num_events,
            "numbers": self.logs.num_numbers,
            "of_the_clock": list(self.logs.of_the_clock),
            "first_difference": None if difference is None else asdict(difference),
            "weights": [{**asdict(part), "equal": part.is_equal} for part in self.weights],
            "causes": [cause.as_json() for cause in self.causes],
            "unrepeatable": list(self.unrepeatable),
        }


def compare_again(before: RunFolder, after: RunFolder, *, up_to: int | None = None) -> SameAgain:
    """Compare two runs up to a step, None for their ends; compare weights if both kept them at that step.

    Raise RunError if one of their files cannot be read.
    """
    old, new = read_metrics(before.metrics), read_metrics(after.metrics)
    recorded = [Recorded(dict(flat(run.read_config())), read_json(run.provenance)) for run in (before, after)]
    had_timeouts = any(name.endswith("/timeouts") and bool(value) for event in old for name, value in event.items())
    return SameAgain(
        before,
        after,
        compare_logs(old, new, up_to=up_to),
        tuple(_weights(before, after, up_to)),
        tuple(causes_of(*recorded)),
        tuple(unrepeatable(recorded[0], had_timeouts=had_timeouts)),
    )


def _weights(before: RunFolder, after: RunFolder, up_to: int | None) -> list[WeightsCompared]:
    if up_to is None:
        parts = {"model": (before.model, after.model), "critic": (before.critic, after.critic)}
    else:
        folders = [checkpoint_folder(run.checkpoints, up_to) for run in (before, after)]
        parts = {f"checkpoint-{up_to}": (folders[0], folders[1])}
    found = []
    for part, (one, other) in parts.items():
        hashes = [_hash(one), _hash(other)]
        if hashes[0] is not None and hashes[1] is not None:
            found.append(WeightsCompared(part, hashes[0], hashes[1]))
    return found


def _hash(folder: Path) -> str | None:
    return weights_hash(folder) if folder.is_dir() else None
