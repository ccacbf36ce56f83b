"""Makes several runs from one command: Hydra's sweeper decides which, each lies in a folder of the sweep."""

from __future__ import annotations

import math
import shlex
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from rlhf_cli.config.compose import CONFIG_NAME, register_user_conf
from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.config.overrides import rewrite
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_USER_ERROR, Preempted, RlhfError, RunError, UserError
from rlhf_cli.jobs.after_stop import choice_after
from rlhf_cli.jobs.one_run import go_on, run_once
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.jobs.slurm_jobs import goes_to_slurm, submit_sweep
from rlhf_cli.launch.freeze import create_run, experiment_name
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.metrics_file import TOTAL
from rlhf_cli.runs.run_folder import RunFolder, expand, write_json
from rlhf_cli.runs.run_status import FINISHED
from rlhf_cli.runs.run_summary import summarise, summarise_readable
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.screen.comparison_table import show_comparison, show_left_out
from rlhf_cli.slurm.slurm_submission import check_slurm

_HYDRA = ("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null")
"""Keeps Hydra from writing logs and a `.hydra` of its own: the run folder holds it all."""


def run(overrides: list[str]) -> int:
    """Check every value that is swept over, run all jobs, print the table; returns the exit code.

    A failed job does not stop the others. Raises what `prepare` and `preflight` raise, and RunError where the sweep
    folder exists already.
    """
    console = Console()
    sweep_dir = _check(overrides)
    sweep_dir.mkdir(parents=True)
    write_json(
        sweep_dir / "sweep.json",
        {
            "command": shlex.join(["rlhf", *sys.argv[1:]]),
            "overrides": overrides,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )
    exit_codes: list[int] = []
    stopped: list[Preempted] = []
    for_slurm: list[RunFolder] = []

    command_line = sys.argv

    def job(_: DictConfig) -> float:
        if stopped:
            return math.nan
        sys.argv = command_line  # the provenance holds what the user typed, not what Hydra was given
        config = HydraConfig.get()
        overrides_of_job = _as_typed(config.overrides.task)
        try:
            code, objective = _run_job(console, overrides_of_job, sweep_dir, str(config.job.num), for_slurm)
        except Preempted as stop:  # Hydra would print a traceback and make 1 of the exit code
            stopped.append(stop)
            return math.nan
        exit_codes.append(code)
        return objective

    register_user_conf()
    sys.argv = ["rlhf train", "--multirun", *rewrite(overrides), *_HYDRA, f"hydra.sweep.dir={sweep_dir}"]
    try:
        hydra.main(config_path=str(shipped_dir()), config_name=CONFIG_NAME, version_base="1.3")(job)()
    finally:
        sys.argv = command_line
        folders = expand([sweep_dir]) if any(sweep_dir.glob("*/config.yaml")) else []
        runs, problems = summarise_readable(folders)
        if runs and len(for_slurm) < len(runs):
            show_comparison(console, runs)
        show_left_out(console, problems)
        if for_slurm and not stopped and sys.exc_info()[0] is None:
            submit_sweep(console, for_slurm, sweep_dir)
        console.print(f"sweep folder: {sweep_dir}", soft_wrap=True, highlight=False)
    if stopped:
        raise stopped[0]
    return max(exit_codes, default=EXIT_OK) if EXIT_CRASH not in exit_codes else EXIT_CRASH


def _as_typed(overrides: object) -> list[str]:
    """Return the overrides of a job with `${...}` as it was typed: what the environment holds is no part of them."""
    typed: Any = OmegaConf.to_container(overrides, resolve=False)
    return [str(override) for override in typed]


def _run_job(
    console: Console, overrides: list[str], sweep_dir: Path, job: str, for_slurm: list[RunFolder]
) -> tuple[int, float]:
    """Return (exit code, final total reward); a search such as Optuna works on the reward, NaN for a failed job.

    A run that Slurm is to train is frozen and added to `for_slurm`; its reward is not known yet, so NaN.
    """
    try:
        prepared = prepare(overrides)
        plan = preflight(prepared.experiment, prepared.composed)
        if goes_to_slurm(prepared.experiment.launch):
            folder = create_run(prepared.experiment, prepared.composed, files=plan.files, sweep_dir=sweep_dir, job=job)
            for_slurm.append(folder)
            return EXIT_OK, math.nan
        folder = RunFolder(sweep_dir / job)
        try:
            run_once(console, prepared, plan, sweep_dir=sweep_dir, job=job)
        except Preempted as stopped:
            if not _goes_on(console, folder, job, stopped):
                return Preempted.exit_code, math.nan
    except Preempted:
        raise
    except UserError as error:
        console.print(redacted(f"job {job}: {error}"), style="red", markup=False, highlight=False)
        return EXIT_USER_ERROR, math.nan
    except Exception as error:  # one job's crash must not cost the others their night
        console.print(f"job {job} crashed", style="red")
        console.print(redacted(str(error) if isinstance(error, RlhfError) else traceback.format_exc()), markup=False)
        return EXIT_CRASH, math.nan
    run = summarise(folder)
    start_and_end = run.rewards.get(TOTAL)
    is_whole = run.status.state == FINISHED and start_and_end is not None
    return EXIT_OK, start_and_end[1] if is_whole and start_and_end else math.nan


def _goes_on(console: Console, folder: RunFolder, job: str, stopped: Preempted) -> bool:
    """Return whether a stopped job has been gone on with, to its end; False where it is left as it is.

    Raises Preempted where the sweep is to stop. As often as the job is stopped the user is asked.
    """
    while (choice := choice_after(console, job, stopped)) == "continue":
        try:
            with only_writer(folder):
                go_on(console, folder, resume=True)
        except Preempted as again:
            stopped = again
        else:
            return True
    if choice == "skip":
        return False
    raise stopped


def _check(overrides: list[str]) -> Path:
    """Judge every swept value once, with the others at their first, and return the sweep's folder.

    So a typo is reported once and at once, not by every job in turn.
    """
    parsed = OverridesParser.create().parse_overrides(overrides)
    values = [
        _values(override.input_line or text, override.is_sweep_override())
        for override, text in zip(parsed, overrides, strict=True)
    ]
    first = [options[0] for options in values]
    prepared = prepare(first)
    preflight(prepared.experiment, prepared.composed)
    if goes_to_slurm(prepared.experiment.launch):
        check_slurm(prepared.experiment.launch, Path(prepared.experiment.run.root))
    names = {experiment_name(prepared.composed)}
    for index, options in enumerate(values):
        for option in options[1:]:
            names.add(experiment_name(prepare([*first[:index], option, *first[index + 1 :]]).composed))
    name = names.pop() if len(names) == 1 else "sweep"
    run = prepared.experiment.run
    folder = Path(run.root).expanduser().resolve() / name / (run.name or time.strftime("%Y%m%d-%H%M%S"))
    if folder.exists():
        raise RunError(f"sweep folder {folder} exists already", hint="run.name=ANOTHER")
    return folder


def _values(text: str, is_sweep: bool) -> list[str]:
    """Return the overrides a swept override stands for; ranges, globs and distributions stand for themselves."""
    key, _, value = text.partition("=")
    if not is_sweep or "(" in value or value.startswith(("[", "{")):
        return [text]
    return [f"{key}={option}" for option in value.split(",")]
