"""rlhf train +exp=NAME [overrides]     compose, check, freeze, run
rlhf train -m +exp=NAME a.b=1,2,3       sweep: one run for every combination, then a table

An override is key=value (rewards.correct.weight=2, trainer.args.learning_rate=1e-5, seed=7), a group choice
(trainer=rloo, data=gsm8k, track=none) or ~key to leave something out. `rlhf list` shows the groups, `rlhf show`
with the same words shows the configuration they make, `rlhf check` what they would run.

  -m, --multirun   sweep over comma-separated values
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.config.compose import Composed, compose
from rlhf_cli.config.judge import judge
from rlhf_cli.config.schema import Experiment
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.launch import local
from rlhf_cli.launch.freeze import create_run, existing_run, experiment_name
from rlhf_cli.plan.finished_runs import resolve_runs
from rlhf_cli.plan.preflight import Plan, preflight
from rlhf_cli.runs.folder import RunFolder
from rlhf_cli.runs.status import FINISHED, read_status
from rlhf_cli.screen.start import show_start


def run(argv: list[str]) -> int:
    overrides = [word for word in argv if word not in ("-m", "--multirun")]
    if len(overrides) < len(argv):
        from rlhf_cli.verbs import sweep

        return sweep.run(overrides)
    console = Console()
    composed = compose(overrides)
    experiment = resolve_runs(judge(composed))
    earlier = existing_run(experiment, composed)
    if earlier is not None and read_status(earlier).state == FINISHED:
        console.print(f"nothing to do: run {experiment.run.name} has finished")
        show_run_folder(console, earlier)
        return EXIT_OK
    plan = preflight(experiment, composed)
    train(console, experiment, composed, plan, earlier=earlier)
    return EXIT_OK


def train(
    console: Console,
    experiment: Experiment,
    composed: Composed,
    plan: Plan,
    *,
    earlier: RunFolder | None = None,
    sweep_dir: Path | None = None,
    job: str = "",
) -> RunFolder:
    """Freeze a checked experiment and run it to its end. `earlier` is a run folder to go on with."""
    folder = earlier or create_run(experiment, composed, files=plan.files, sweep_dir=sweep_dir, job=job)
    title = experiment_name(composed) + (f", job {job}" if job else "")
    show_start(console, experiment, plan, title=title, folder=folder.shown)
    try:
        local.run(folder, resume=earlier is not None)
    except BaseException as error:
        error.add_note(run_folder_line(folder))
        raise
    from rlhf_cli.screen.end import show_end  # the plotting library comes with it: not before a typo is told

    show_end(console, folder)
    show_run_folder(console, folder)
    return folder


def show_run_folder(console: Console, folder: RunFolder) -> None:
    """The last line of every run."""
    console.print(run_folder_line(folder), soft_wrap=True, highlight=False)


def run_folder_line(folder: RunFolder) -> str:
    """`run folder: runs/quickstart/...`, also under the message of a run that failed."""
    return f"run folder: {folder.shown}"
