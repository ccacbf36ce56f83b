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
    console: Console, earlier: RunFolder, words: list[str], steps: int | None
) -> tuple[RunFolder, int | None]:
    """Train a run again with the typed overrides; return the new, untracked run and its last step (None: its end).

    `steps` None means as many as `earlier` logged. Raise RunError if there are too few steps to compare or Slurm would
    train, and the errors of `prepare_from`, `preflight` and the training.
    """
    status, logged = read_status(earlier), read_columns(earlier.metrics).last_step
    where, slurm_way = str(earlier.path), f"rlhf reproduce {earlier.shown} launch=auto"
    if not logged or (steps or 0) > logged:
        hint = f"--steps {logged}" if logged else f"rlhf resume {earlier.shown}"
        raise RunError("the run has too few steps to compare", where=where, got=f"{logged} logged steps", hint=hint)
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
        raise RunError("reproduce trains on this machine, not in Slurm", where=where, hint=slurm_way)
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
            console.print(
                f"{num_steps} steps of {earlier.shown} again, in {run.shown}", soft_wrap=True, highlight=False
            )
            train_frozen(console, run, launch, experiment.launch, resume=False)
    return run, None if is_whole else num_steps
