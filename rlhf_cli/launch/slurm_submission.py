"""Submit frozen runs to Slurm with submitit, and explain why sbatch refuses one."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import ConfigError
from rlhf_cli.launch.freeze import create_run, experiment_name
from rlhf_cli.launch.run_states import JOB_NAME, SLURM_TIMEOUT_S, run_slurm
from rlhf_cli.launch.slurm_node import SLURM_FOLDER, RunInJob
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, QUEUED, update_status

if TYPE_CHECKING:
    from submitit import SlurmExecutor

_UNREACHABLE = ("Unable to contact slurm controller", "Could not establish a configuration source", "did not answer")
_NEVER = 1_000_000
"""submitit's limit of timeouts per job, disabled because we requeue runs ourselves."""


def check_slurm(launch: Launch, *, count: int = 1) -> None:
    """Raise ConfigError if `sbatch --test-only` refuses `count` such jobs, or if submitit or Slurm is missing."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "job.sh"
        script.write_text(sbatch_script(launch, Path(place), name="rlhf", count=count), encoding="utf-8")
        done = run_slurm("sbatch", "--test-only", str(script))
    if done is None:
        raise refusal(f"sbatch did not answer within {SLURM_TIMEOUT_S:g} s")
    if done.returncode != 0:
        raise refusal(done.stderr)


def check_sweep(launches: Sequence[Launch]) -> None:
    """Raise ConfigError if Slurm refuses one of the arrays that `submit_sweep` would submit for these runs."""
    for launch in {one.model_dump_json(): one for one in launches}.values():
        check_slurm(launch, count=launches.count(launch))


def refusal(said: str) -> ConfigError:
    """Return the error for sbatch's output when it refused a job."""
    for prefix in ("sbatch: ", "error: ", "allocation failure: "):
        said = "\n".join(line.removeprefix(prefix) for line in said.strip().splitlines())
    if any(text.lower() in said.lower() for text in _UNREACHABLE):
        what = "Slurm does not answer on this machine"
        expected = "a login node of a running cluster: `sinfo` lists its partitions"
        return ConfigError(what, where="launch.slurm", got=said, expected=expected, hint="launch=auto")
    expected = "no more than `sinfo -o '%P %c %m %G'` lists: partition, CPUs, MB of memory, GPUs of a node"
    advice = "launch.slurm.partition=NAME, or its other keys; launch.slurm.extra holds options of sbatch"
    return ConfigError("Slurm refuses the job", where="launch.slurm", got=said, expected=expected, advice=advice)


def _submit(console: Console, runs: list[RunFolder], folder: Path, name: str) -> None:
    """Submit frozen runs, several as one array, write their job ids, `123` or `123_4`, and print where to look.

    Files of Slurm go below `folder`. Raise ConfigError if Slurm refuses; the runs are then failed and can be resumed.
    """
    executor = _executor(_launch(runs[0]), folder, f"{JOB_NAME}{name}")
    for run in runs:
        # The job id follows later; the job waits for it before it writes.
        update_status(run, state=QUEUED, reason=None, job_id=None, pid=None, host=None)
    from submitit.core.utils import FailedJobError

    try:
        jobs = executor.submit_array([RunInJob(run.path) for run in runs])
    except FailedJobError as error:
        for run in runs:
            update_status(run, state=FAILED, reason=f"not submitted: {error}")
        raise refusal(str(error)) from None
    for run, job in zip(runs, jobs, strict=True):
        update_status(run, job_id=job.job_id)
    first, shown = jobs[0].job_id, RunFolder(folder).typed
    master, is_array = first.partition("_")[0], len(jobs) > 1
    what = f"array {master}: {len(jobs)} jobs, {first} to {jobs[-1].job_id}" if is_array else f"job {first}"
    lines = (
        f"submitted to Slurm: {what}",
        f"  logs:   {shown}/{SLURM_FOLDER}/{f'{master}_*' if is_array else first}_0_log.out",
        f"  watch:  rlhf status {shown}",
        f"  cancel: scancel {master}",
    )
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def sbatch_script(launch: Launch, folder: Path, *, name: str, count: int = 1) -> str:
    """Return the sbatch script for `count` runs. Raise ConfigError if submitit or Slurm is missing."""
    executor = _executor(launch, folder, name)
    if count > 1:
        executor.parameters["map_count"] = count  # as submitit does for an array
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "0")
    return text


def _executor(launch: Launch, folder: Path, name: str) -> SlurmExecutor:
    slurm = launch.slurm
    assert slurm is not None
    try:
        from submitit import SlurmExecutor
    except ImportError:
        what = "submitit, which submits to Slurm, is not installed"
        raise ConfigError(what, where="launch.slurm", hint="pip install 'rlhf-cli[slurm]'") from None
    if missing := [name for name in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(name) is None]:
        what = f"Slurm is not on this machine: there is no {missing[0]}"
        expected = "a login node of a Slurm cluster"
        raise ConfigError(what, where="launch.slurm", expected=expected, hint="launch=auto")
    # `exec` replaces the script's shell with Python, so that Python is the process that Slurm's warning reaches.
    python = f"exec {shlex.quote(sys.executable)}"
    executor = SlurmExecutor(folder / SLURM_FOLDER, max_num_timeout=_NEVER, python=python)
    modules = os.pathsep.join(entry for entry in sys.path if entry)  # of this process, for example a checkout
    gpus = {"gpus_per_node": slurm.gpus_per_node} if slurm.gpus_per_node else {}
    memory = {"mem": f"{round(slurm.mem_gb * 1024)}M"} if slurm.mem_gb is not None else {}
    executor.update_parameters(
        job_name=name,
        partition=slurm.partition,
        account=slurm.account,
        qos=slurm.qos,
        time=slurm.time,
        nodes=launch.nodes,
        **({"ntasks_per_node": 1} if launch.nodes > 1 else {}),
        cpus_per_task=slurm.cpus_per_task,
        comment=str(folder),
        setup=[*slurm.setup, f"export PYTHONPATH={shlex.quote(modules)}"],
        array_parallelism=slurm.max_parallel,
        wckey=None,
        stderr_to_stdout=True,
        use_srun=False,
        additional_parameters={
            # Signal only the batch process: see slurm_node.
            "signal": f"B:USR1@{round(launch.grace_s)}",
            "requeue": True,
            **{key.lstrip("-"): value for key, value in slurm.extra.items() if value is not False},
        },
        **gpus,
        **memory,
    )
    return executor


def submit_once(console: Console, prepared: Prepared, plan: Plan) -> RunFolder:
    """Freeze and submit a checked experiment, and return its folder. Raise RunError or ConfigError if that fails."""
    check_slurm(prepared.experiment.launch)  # before there is a folder
    folder = create_run(prepared.experiment, prepared.composed, files=plan.files)
    show_start(console, prepared.experiment, plan, title=experiment_name(prepared.composed), folder=folder.shown)
    submit_frozen(console, folder)
    return folder


def submit_frozen(console: Console, folder: RunFolder) -> None:
    """Submit a frozen run and print where to look. Raise ConfigError if Slurm refuses the job."""
    _submit(console, [folder], folder.path, folder.label)
    console.print(f"run folder: {folder.shown}", soft_wrap=True)


def submit_sweep(console: Console, runs: list[RunFolder], sweep_dir: Path) -> None:
    """Submit frozen runs as one array per value of `launch`. Raise ConfigError if Slurm refuses an array."""
    arrays: dict[str, list[RunFolder]] = {}
    for run in runs:
        arrays.setdefault(_launch(run).model_dump_json(), []).append(run)
    for of_one_launch in arrays.values():
        _submit(console, of_one_launch, sweep_dir, "/".join(sweep_dir.parts[-2:]))


def _launch(run: RunFolder) -> Launch:
    return Launch.model_validate(run.read_config()["launch"])
