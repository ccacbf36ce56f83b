"""Puts runs side by side: what differs in their configurations, and where each reward or loss began and ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlhf_cli.errors import RunError
from rlhf_cli.json_values import section
from rlhf_cli.runs.metrics_file import TOTAL, read_metrics, reward_names, series, start_and_end
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import Status, read_status
from rlhf_cli.runs.training_measures import few_measures

_NEVER_A_DIFFERENCE = ("run.name", "run.root", "run.resume", "run.resume_weights_only")


@dataclass(frozen=True)
class RunSummary:
    """A run that is a row of a comparison."""

    folder: RunFolder
    status: Status
    settings: dict[str, object]
    """Maps dotted key -> value, for the whole configuration."""
    rewards: dict[str, tuple[float, float]]
    """Maps `reward` (the total) and each component -> (start, end), see metrics_file.start_and_end."""
    measures: dict[str, tuple[float, float]]
    """Maps loss and accuracy of a run without rewards, or the held-out greedy total of a policy -> (start, end)."""
    starting_model: str | None = None
    """The hash of the weights, or the hub's commit, that training began with; None where no training began."""


def summarise(folder: RunFolder) -> RunSummary:
    """Read one run folder and return its row. Raises RunError where one of its files cannot be read."""
    events = read_metrics(folder.metrics)
    names = {TOTAL: TOTAL, **{name: f"rewards/{name}/mean" for name in reward_names(events)}}
    spans = {name: start_and_end(series(events, metric)[1]) for name, metric in names.items()}
    few = few_measures(events, has_rewards=TOTAL in spans and spans[TOTAL] is not None)
    return RunSummary(
        folder=folder,
        status=read_status(folder),
        settings=dict(_flat(folder.read_config())),
        rewards={name: span for name, span in spans.items() if span is not None},
        measures={measure.label: (measure.start, measure.end) for measure in few},
        starting_model=_starting_model(folder),
    )


def summarise_readable(folders: Iterable[RunFolder]) -> tuple[list[RunSummary], list[RunError]]:
    """Return the rows of the runs that can be read, and what is wrong with each of the others."""
    rows, problems = [], []
    for folder in folders:
        try:
            rows.append(summarise(folder))
        except RunError as error:
            problems.append(error)
    return rows, problems


def starting_models(runs: list[RunSummary]) -> dict[str, list[int]]:
    """Return the starting model -> the places in `runs` of those that began with it; runs without one are left out."""
    by_model: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        if run.starting_model is not None:
            by_model.setdefault(run.starting_model, []).append(place)
    return by_model


def differences(runs: list[RunSummary]) -> list[str]:
    """Return the keys whose value is not the same in every run, in the order of the configuration."""
    keys: dict[str, None] = {}
    for run in runs:
        keys.update(dict.fromkeys(run.settings))
    absent = object()
    different = [key for key in keys if any(_differ(run, runs[0], key, absent) for run in runs)]
    return [key for key in different if key not in _NEVER_A_DIFFERENCE]


def _starting_model(folder: RunFolder) -> str | None:
    seen = section(read_json(folder.provenance), "starting_model")
    known = seen.get("weights_sha256") or seen.get("commit")
    return known if isinstance(known, str) else None


def _differ(run: RunSummary, other: RunSummary, key: str, absent: object) -> bool:
    return bool(run.settings.get(key, absent) != other.settings.get(key, absent))


def _flat(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, node
