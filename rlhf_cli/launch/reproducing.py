"""Reproduce a run from its folder: train its frozen experiment again, in a new folder, for the steps to compare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.analysis.comparison.metric_columns import read_columns
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.metric_rules import STEP
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.one_run import train_frozen
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import Prepared, prepare_from
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import FINISHED, read_status, stopped_by_rule
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

_PLACE = "reproduced"
_RULE = "as_far_as_compared"


@dataclass(frozen=True)
class PlannedReproduction:
    """A checked run to repeat, with its new folder; `up_to` is its last step, None for the end of training."""

    earlier: RunFolder
    prepared: Prepared
    plan: Plan
    folder: Path
    up_to: int | None
    num_steps: int


def reproduction_of(earlier: RunFolder, words: list[str], *, steps: int | None) -> PlannedReproduction:
    """Return the reproduction of `earlier`: its frozen experiment with the typed overrides, for its first steps.

    `steps` None means as many as it logged. The new run is not tracked, and `earlier` is not changed. Raises RunError
    if there is no log to compare with, and the errors of `prepare_from` and `preflight`.
    """
    status = read_status(earlier)
    logged = read_columns(earlier.metrics).last_step
    if not logged:
        raise RunError(
            "the run has logged nothing that it could be held against",
            where=str(earlier.path),
            got=f"it is {status.state}, at step {status.step}",
            hint=f"rlhf resume {earlier.shown}",
        )
    if steps is not None and steps > logged:
        raise RunError(
            "the run has not so many steps",
            where=str(earlier.path),
            got=f"--steps {steps}",
            expected=f"up to {logged}",
            hint=f"--steps {logged}",
        )
    is_whole = status.state == FINISHED and stopped_by_rule(status) is None
    up_to = steps if steps is not None and steps < logged else None if is_whole else logged
    has_typed_track = any(word.lstrip("+").startswith(("track=", "track.")) for word in words)
    track = [] if has_typed_track else ["track=none"]

    def adjust(tree: JsonTree, _: Origins) -> None:
        run = section(tree, "run")
        run["name"], run["resume"] = None, "never"
        if up_to is not None:
            tree["stop"] = {**_named_rules(tree.get("stop")), _RULE: {"when": f"{STEP} >= {up_to}", "for": 1}}

    prepared = prepare_from(earlier, [*words, *track], adjust=adjust)
    if prepared.experiment.launch.slurm is not None:
        raise RunError(
            "the run was submitted to Slurm, and is run again where this is typed",
            where=str(earlier.path),
            got="launch.slurm",
            expected="another launch, within a job of the same kind of machine",
            hint=f"rlhf reproduce {earlier.shown} launch=auto",
        )
    plan = preflight(prepared.experiment, prepared.composed)
    name = earlier.label.replace("/", "-")
    folder = _free(Path(prepared.experiment.run.root).expanduser() / _PLACE, name)
    return PlannedReproduction(earlier, prepared, plan, folder, up_to, up_to or logged)


def run_again(console: Console, again: PlannedReproduction) -> RunFolder:
    """Train the reproduction in its folder and return the folder. Raises any error that ends the run."""
    experiment, composed = again.prepared.experiment, again.prepared.composed
    choices = {key: str(value) for key, value in section(read_json(again.earlier.provenance), "choices").items()}
    composed = replace(composed, choices={**choices, **composed.choices})
    launch = plan_launch(experiment, again.folder, accelerate_env=again.plan.accelerate_env)
    with gpus_held(launch, RunFolder(again.folder)):
        folder = create_run(experiment, composed, files=again.plan.files, at=again.folder)
        with only_writer(folder):
            steps = f"{again.num_steps} steps" if again.num_steps > 1 else "the first step"
            console.print(
                f"{steps} of {again.earlier.shown} once more, in {folder.shown}", soft_wrap=True, highlight=False
            )
            train_frozen(console, folder, launch, experiment.launch, resume=False)
    return folder


def _named_rules(stop: JsonValue) -> JsonTree:
    """Return a map of name -> frozen stopping rule, from any of their formats."""
    if isinstance(stop, list):
        return {f"rule_{number}": rule for number, rule in enumerate(stop, 1)}
    if not isinstance(stop, dict):
        return {}
    return {"rule": stop} if "when" in stop else dict(stop)


def _free(parent: Path, name: str) -> Path:
    """Return a folder that does not exist yet: NAME, or NAME-2, NAME-3."""
    number = 1
    while (folder := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder.resolve()
