"""Read run folders as a comparison needs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from rlhf_cli.analysis.comparison.metric_columns import MetricColumns, Wanted, read_columns
from rlhf_cli.analysis.comparison.what_differs import names_of
from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import POLICY, RunFolder, read_json, swept_in
from rlhf_cli.runs.run_status import FINISHED, read_status
from rlhf_cli.text.json_values import JsonTree, section

Figures = Mapping[str, float]
"""Map a figure's name -> its mean: `greedy/correct`, `sampled/total`, `pass@4/correct`, `win rate`, `accuracy`."""


def read_figures(folder: RunFolder) -> dict[str, Figures]:
    """Return name of an evaluation -> its figures, newest first; ignore invalid files."""
    found: list[tuple[float, str, Figures]] = []
    for file in (folder.path / "eval").glob("*.json"):
        try:
            content = orjson.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and (figures := dict(_figures(content))):
            time = content.get("time")
            found.append((float(time) if isinstance(time, int | float) else 0.0, file.stem, figures))
    return {name: figures for _, name, figures in sorted(found, key=lambda one: (-one[0], one[1]))}


def _figures(content: JsonTree) -> Iterator[tuple[str, float]]:
    if content.get("kind") != POLICY:
        yield from _mean("accuracy", content.get("accuracy"))
        calibration = section(content, "calibration")
        yield from ((name, value) for name in ("log_loss", "ece") if isinstance(value := calibration.get(name), float))
        return
    for part, measured in section(content, "parts").items():
        if isinstance(measured, dict):
            yield from _mean(f"{part}/total", measured.get("total"))
            for name, reward in section(measured, "rewards").items():
                yield from _mean(f"{part}/{name}", reward.get("raw") if isinstance(reward, dict) else None)
            yield from _mean(f"{part}/truncated", measured.get("truncated"))
            yield from _mean(f"{part}/tokens", measured.get("tokens"))
    for name, attempts in section(content, "attempts").items():
        for kind, by_k in attempts.items() if isinstance(attempts, dict) else ():
            if isinstance(by_k, dict) and by_k:
                most = max(by_k, key=int)
                yield from _mean(f"{kind}@{most}/{name}", by_k[most])
    yield from _mean("win rate", section(content, "win_rate").get("greedy"))


def _mean(name: str, estimate: object) -> Iterator[tuple[str, float]]:
    mean = estimate.get("mean") if isinstance(estimate, dict) else None
    if isinstance(mean, int | float):
        yield name, float(mean)


@dataclass(frozen=True)
class LoggedRun:
    """The configuration and the logs of a run.

    `name` shows the differences from the runs read with it. `place` is its path as a user would type it; `folder` is
    None for a run from wandb. `settings` maps dotted key -> value for the whole configuration, `choices` the selected
    config groups, `weights` reward -> its weight, None for a schedule. `evaluations` maps the name of an evaluation ->
    its figures. `starting_model` is the hash of the weights or the hub commit at the start of training.
    """

    name: str
    place: str
    folder: RunFolder | None
    state: str
    step: int
    max_steps: int | None
    reason: str | None
    settings: Mapping[str, object]
    choices: Mapping[str, str]
    weights: Mapping[str, float | None]
    trainer: str
    metrics: MetricColumns
    evaluations: Mapping[str, Figures] = field(default_factory=dict)
    provenance: JsonTree = field(default_factory=dict)
    starting_model: str | None = None
    swept: Sequence[str] = ()
    """The keys that its sweep varied, as typed; empty for a run without a sweep or of an older sweep."""

    @property
    def is_finished(self) -> bool:
        """Return whether the run trained to its end."""
        return self.state == FINISHED


def read_runs(folders: Iterable[RunFolder], *, wanted: Wanted | None = None) -> tuple[list[LoggedRun], list[RunError]]:
    """Return the readable runs, named by their differences, and the errors of the others.

    `wanted` selects the metrics to read, None for all: for a thousand runs a few are enough.
    """
    runs: list[LoggedRun] = []
    problems: list[RunError] = []
    sweeps: dict[Path, tuple[str, ...]] = {}
    for folder in folders:
        try:
            parent = folder.path.parent
            if parent not in sweeps:
                sweeps[parent] = swept_in(parent)
            runs.append(_read_run(folder, wanted, sweeps[parent]))
        except RunError as error:
            problems.append(error)
    return named(runs), problems


def named(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Return the runs, named by their differences: `weight=0.5,seed=2`."""
    return [replace(run, name=name) for run, name in zip(runs, names_of(runs), strict=True)]


def reward_names(runs: Iterable[LoggedRun]) -> list[str]:
    """Return the components that the runs configured or logged, in the order of first occurrence."""
    found: dict[str, None] = {}
    for run in runs:
        found.update(dict.fromkeys(run.weights))
        logged = [name for name in run.metrics if name.startswith("rewards/") and name.endswith("/mean")]
        found.update(dict.fromkeys(name.split("/")[1] for name in logged if name.count("/") == 2))
    found.pop("truncation", None)
    return list(found)


def flat(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) for every leaf of a configuration; lists and empty sections are leaves."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, node


def weights_of(config: JsonTree) -> dict[str, float | None]:
    """Return reward -> weight of a configuration, None for a scheduled weight."""
    weights: dict[str, float | None] = {}
    for name in section(config, "rewards"):
        weight = section(section(config, "rewards"), name).get("weight", 1.0)
        weights[name] = float(weight) if isinstance(weight, int | float) else None
    return weights


def _read_run(folder: RunFolder, wanted: Wanted | None, swept: tuple[str, ...]) -> LoggedRun:
    config, provenance, status = folder.read_config(), read_json(folder.provenance), read_status(folder)
    metrics = read_columns(folder.metrics, wanted)
    seen = section(provenance, "starting_model")
    starting = seen.get("weights_sha256") or seen.get("commit")
    return LoggedRun(
        name=folder.label,
        place=folder.shown,
        folder=folder,
        state=status.state,
        step=max(status.step, metrics.last_step),
        max_steps=status.max_steps,
        reason=status.reason,
        settings=dict(flat(config)),
        choices={key: str(value) for key, value in section(provenance, "choices").items()},
        weights=weights_of(config),
        trainer=str(section(config, "trainer").get("name", "?")),
        metrics=metrics,
        evaluations=read_figures(folder),
        provenance=provenance,
        starting_model=starting if isinstance(starting, str) else None,
        swept=swept,
    )
