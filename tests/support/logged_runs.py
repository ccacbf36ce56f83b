"""Write run folders with a chosen configuration, state and curves, without training, and compare them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, flat, named, read_runs, weights_of
from rlhf_cli.runs.metric_arrays import columns_of
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.json_values import JsonTree, finite_or_none

Curves = Mapping[str, Sequence[float | None]]
"""Maps metric -> what is logged at steps 1, 2, ...; None and NaN are logged as null."""


def configured(weight: float = 0.0, seed: int = 0, *, trainer: str = "grpo", **changes: object) -> JsonTree:
    """Return a small configuration: rewards `correct` and `brevity` of this weight; `changes` replace sections."""
    config: dict[str, object] = {
        "seed": seed,
        "trainer": {"name": trainer, "args": {"max_steps": 30, "learning_rate": 1e-3}},
        "rewards": {"correct": {"fn": "a:b", "weight": 1.0}, "brevity": {"fn": "a:c", "weight": weight}},
        "aggregate": "sum",
        "truncation": {"policy": "none"},
        "run": {"name": f"run-{weight}-{seed}", "root": "runs"},
        **changes,
    }
    return config  # type: ignore[return-value]


def in_memory(
    name: str,
    *,
    settings: Mapping[str, object] | None = None,
    weights: Mapping[str, float | None] | None = None,
    **curves: Sequence[float | None],
) -> LoggedRun:
    """Return a finished run that lies nowhere, with what `curves` log at steps 1, 2, ..."""
    events = _events(curves)
    return LoggedRun(
        **{"name": name, "place": name, "state": "finished", "step": len(events), "max_steps": len(events)},
        **{"settings": settings or {}, "weights": weights or {}, "trainer": "grpo"},
        metrics=columns_of(events),
    )


def write_run(
    folder: Path,
    config: JsonTree,
    curves: Curves,
    *,
    state: str = "finished",
    provenance: JsonTree | None = None,
    **status: object,
) -> RunFolder:
    """Write a run folder whose metrics.jsonl holds `curves`, one event a step."""
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    events = _events(curves)
    run.config.write_text(yaml.safe_dump(config, sort_keys=False))
    run.status.write_text(json.dumps({"state": state, "step": len(events), "max_steps": 30, **status}))
    run.provenance.write_text(json.dumps(provenance or {}))
    run.metrics.write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def write_sweep(
    folder: Path, ends: Mapping[float, Sequence[float]], *, metric: str = "rewards/correct/mean", num_steps: int = 10
) -> list[RunFolder]:
    """Write a run for each weight of `brevity` and each of its seeds; the metric is flat at this value.

    Beside it `rewards/brevity/mean` is 0.5 everywhere, and `reward` what the weights make of both.
    """
    runs = []
    for weight, of_seeds in ends.items():
        for seed, value in enumerate(of_seeds):
            curves = {
                metric: [value] * num_steps,
                "rewards/brevity/mean": [0.5] * num_steps,
                "reward": [value + weight * 0.5] * num_steps,
            }
            runs.append(write_run(folder / f"{weight:g}-{seed}", configured(weight, seed), curves))
    return runs


def runs_of(*configs: JsonTree, **curves: Sequence[float]) -> list[LoggedRun]:
    """Return one finished run per configuration, named by their differences; each curve has one number per run."""
    runs = []
    for number, config in enumerate(configs):
        run = in_memory(f"{number}", **{metric: [values[number]] for metric, values in curves.items()})
        trainer = str(config["trainer"]["name"])  # type: ignore[index, call-overload]
        run = replace(run, settings=dict(flat(config)), weights=weights_of(config), trainer=trainer)
        runs.append(replace(run, place=f"runs/{number}"))
    return named(runs)


def compared(folders: Sequence[RunFolder], **asked: Any) -> Comparison:
    """Return the comparison of run folders with these options."""
    return compare(read_runs(folders)[0], ComparisonOptions(**asked))


def _events(curves: Curves) -> list[dict[str, Any]]:
    return [
        {"step": step + 1, "time_s": 0.5 * step}
        | {name: finite_or_none(values[step]) for name, values in curves.items() if step < len(values)}
        for step in range(max(map(len, curves.values()), default=0))
    ]
