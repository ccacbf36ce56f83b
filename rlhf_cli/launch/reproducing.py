"""Train the frozen experiment of a run again, in a new folder, for the steps to compare."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.analysis.comparison.metric_arrays import read_columns
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.metric_rules import STEP
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.one_run import train_frozen
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare_from
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import FINISHED, read_status, stopped_by_rule
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.text.json_values import JsonTree, section


def reproduce(
    console: Console, earlier: RunFolder, words: list[str], *, steps: int | None
) -> tuple[RunFolder, int | None]:
    """Train a run again with the typed overrides; return the new run and its last step (None: its end).

    `steps` limits the steps, None for as many as `earlier` logged. The new run is not tracked, and `earlier` is not
    changed. Raise RunError if there are too few steps to compare, the errors of `prepare_from` and `preflight`, and any
    error that ends the run.
    """
    status, logged = read_status(earlier), read_columns(earlier.metrics).last_step
    where = str(earlier.path)
    if not logged:
        got, hint = f"it is {status.state}, at step {status.step}", f"rlhf resume {earlier.shown}"
        raise RunError("the run has logged nothing to compare with", where=where, got=got, hint=hint)
    if steps is not None and steps > logged:
        hint = f"--steps {logged}"
        raise RunError("the run has fewer steps", where=where, got=f"--steps {steps}", expected=hint, hint=hint)
    num_steps = steps or logged
    is_whole = num_steps == logged and status.state == FINISHED and stopped_by_rule(status) is None

    def adjust(tree: JsonTree, _: Origins) -> None:
        section(tree, "run").update(name=None, resume="never")
        if not is_whole:  # earlier rules did not end the run before this step
            tree["stop"] = {"when": f"{STEP} >= {num_steps}", "for": 1}

    is_tracked = any(word.lstrip("+").startswith(("track=", "track.")) for word in words)
    prepared = prepare_from(earlier, words if is_tracked else [*words, "track=none"], adjust=adjust)
    experiment = prepared.experiment
    if experiment.launch.slurm is not None:
        raise RunError(
            "the run was submitted to Slurm, and reproduce trains on this machine",
            where=where,
            got="launch.slurm",
            expected="another launch, within a job on the same kind of machine",
            hint=f"rlhf reproduce {earlier.shown} launch=auto",
        )
    plan = preflight(experiment, prepared.composed)
    choices = {key: str(value) for key, value in section(read_json(earlier.provenance), "choices").items()}
    composed = replace(prepared.composed, choices={**choices, **prepared.composed.choices})
    place = Path(experiment.run.root).expanduser().resolve() / "reproduced" / earlier.label.replace("/", "-")
    numbered = itertools.chain([place], (place.with_name(f"{place.name}-{number}") for number in itertools.count(2)))
    folder = next(folder for folder in numbered if not folder.exists())
    launch = plan_launch(experiment, folder, accelerate_env=plan.accelerate_env)
    with gpus_held(launch, RunFolder(folder)):
        run = create_run(experiment, composed, files=plan.files, at=folder)
        with only_writer(run):
            count = f"{num_steps} steps" if num_steps > 1 else "the first step"
            console.print(f"{count} of {earlier.shown} again, in {run.shown}", soft_wrap=True, highlight=False)
            train_frozen(console, run, launch, experiment.launch, resume=False)
    return run, None if is_whole else num_steps
