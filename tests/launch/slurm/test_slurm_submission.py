"""The script for sbatch, and the refusals before it, with a stand-in for Slurm."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.schema.run_sections import Launch, Slurm
from rlhf_cli.launch import run_states
from rlhf_cli.launch import slurm as slurm_jobs
from rlhf_cli.launch.slurm import sbatch_script
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status
from tests.support.small_runs import SMALL
from tests.support.stand_in_slurm import StandInSlurm, stand_in

ON_SLURM = [*(word for word in SMALL if not word.startswith("launch=")), "launch=slurm", "run.name=one"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    return stand_in(tmp_path / "slurm-commands", monkeypatch)


def options(script: str) -> dict[str, str]:
    """The options of sbatch in a script, `--requeue` as `requeue: ''`."""
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH ")]
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


def test_every_key_is_an_option_of_sbatch(slurm: StandInSlurm) -> None:
    """The names are those of sbatch's manual: --mem in M, --signal=B:SIGNAL@SECONDS, --array=FIRST-LAST%AT_ONCE."""
    same = {"partition": "gpu", "account": "us", "qos": "long", "time": "2-00:00:00"}
    asked = Slurm(
        **{**same, "gpus_per_node": 4, "cpus_per_task": 8, "mem_gb": 1.5, "max_parallel": 2},
        setup=["module load cuda"],
        extra={"constraint": "a100", "exclusive": True, "mail_user": "me", "overcommit": False},
    )
    script = sbatch_script(Launch(slurm=asked, grace_s=90), Path("/shared/run"), name="rlhf:x", count=3)
    assert options(script) == {
        "job-name": "rlhf:x",
        "comment": "/shared/run",
        "output": "/shared/run/slurm/%A_%a_0_log.out",
        "open-mode": "append",
        "requeue": "",
        "nodes": "1",
        "signal": "B:USR1@90",
        "array": "0-2%2",
        **same,
        "gpus-per-node": "4",
        "cpus-per-task": "8",
        "mem": "1536M",
        "constraint": "a100",
        "exclusive": "",
        "mail-user": "me",
    }
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands[0] == "module load cuda"
    # Slurm's warning goes to the batch process alone, so Python has to be that process, not a child of the shell.
    assert commands[-1].startswith(f"exec {sys.executable} ")


def test_a_sweep_is_one_array(slurm: StandInSlurm, place: Path, capsys) -> None:
    assert main(["train", "-m", *ON_SLURM, "seed=1,2,3", "launch.slurm.max_parallel=2"]) == 0
    runs = [RunFolder(place / "runs" / "quickstart" / "one" / f"seed={seed}") for seed in (1, 2, 3)]
    found = [(read_status(run).state, read_status(run).job_id) for run in runs]
    assert found == [("queued", f"42_{number}") for number in range(3)]
    assert [run.read_config()["seed"] for run in runs] == [1, 2, 3]
    assert options(slurm.submitted)["array"] == "0-2%2"
    assert sum("--test-only" not in call for call in slurm.calls if call.startswith("sbatch")) == 1
    assert "array 42: 3 jobs, 42_0 to 42_2" in capsys.readouterr().out


def test_every_array_of_a_sweep_is_tried_first_and_a_resumed_one_submits_runs_that_lost_their_job(
    slurm: StandInSlurm, place: Path
) -> None:
    """One submission was killed before it had an id, one job was cancelled before it began, one is queued."""

    def counted(word: str) -> int:
        return sum(word in call for call in slurm.calls)

    assert main(["train", "-m", *ON_SLURM, "launch.slurm.mem_gb=1,2,4"]) == 0
    assert (counted("--test-only"), counted("squeue")) == (3, 0)
    sweep = place / "runs" / "quickstart" / "one"
    runs = [RunFolder(sweep / f"mem_gb={size}") for size in (1, 2, 4)]
    for run, job_id in zip(runs, (None, "41", "42"), strict=True):
        update_status(run, job_id=job_id)
    slurm.says("squeue", "41|CANCELLED|None|rlhf:a|/a\n42|PENDING|Resources|rlhf:a|/a\n")
    assert main(["resume", str(sweep)]) == 0
    assert [read_status(run).job_id for run in runs] == ["42"] * 3
    assert (counted("--test-only"), counted("squeue")) == (5, 1)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("no sbatch", ["there is no sbatch", "launch=auto"]),
        ("no srun", ["there is no srun", "launch=auto"]),
        ("no submitit", ["submitit, which submits to Slurm, is not installed", "pip install"]),
        ("no answer", ["sbatch did not answer within 0.1 s", "launch=auto"]),
        (  # as sbatch 22.05 prints it
            "sbatch: error: invalid partition specified: gpo\nallocation failure: Invalid partition name specified",
            ["specified: gpo", "launch.slurm.partition=NAME", "sinfo -o"],
        ),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", ["Slurm does not answer"]),
    ],
)
def test_what_cannot_be_submitted_makes_no_folder(
    slurm: StandInSlurm, place: Path, capsys, monkeypatch, problem: str, said: list[str]
) -> None:
    which, lacks = shutil.which, problem.removeprefix("no ")
    monkeypatch.setattr(shutil, "which", lambda name, **named: None if name == lacks else which(name, **named))
    if problem == "no submitit":
        monkeypatch.setitem(sys.modules, "submitit", None)
    elif problem == "no answer":
        (slurm.folder / "sbatch").write_text("#!/bin/sh\nexec sleep 20\n")
        for module in (run_states, slurm_jobs):
            monkeypatch.setattr(module, "SLURM_TIMEOUT_S", 0.1)
    elif lacks == problem:
        slurm.refuses(problem)
    assert main(["train", *ON_SLURM, "launch.slurm.partition=gpo"]) == 2
    error = capsys.readouterr().err
    assert [text for text in said if text not in error] == []
    assert not (place / "runs").exists()


def test_what_sbatch_refuses_in_the_end_can_be_resumed(slurm: StandInSlurm, place: Path, capsys) -> None:
    """A limit on the number of jobs is not tested by --test-only."""
    (slurm.folder / "fails").write_text("sbatch: error: AssocMaxSubmitJobLimit\n")
    assert main(["train", *ON_SLURM]) == 2
    assert "AssocMaxSubmitJobLimit" in capsys.readouterr().err
    folder = RunFolder(place / "runs" / "quickstart" / "one")
    assert read_status(folder).state == "failed"
    (slurm.folder / "fails").unlink()
    assert main(["resume", str(folder.path)]) == 0
    assert read_status(folder).state == "queued"


def test_a_run_is_frozen_queued_and_left_and_started_by_slurm_alone(slurm: StandInSlurm, place: Path, capsys) -> None:
    assert main(["train", *ON_SLURM, "launch.slurm.time=4:00:00"]) == 0
    folder = RunFolder(place / "runs" / "quickstart" / "one")
    status = read_status(folder)
    assert (status.state, status.job_id, status.pid) == ("queued", "42", None)
    assert folder.read_config()["launch"]["slurm"]["time"] == "4:00:00"
    assert not folder.model.exists()
    assert options(slurm.submitted)["time"] == "4:00:00"
    assert (folder.path / "slurm" / "42_submitted.pkl").is_file()
    out = capsys.readouterr().out
    assert "logs:   runs/quickstart/one/slurm/42_0_log.out" in out
    assert "rlhf status runs/quickstart/one" in out

    both = (["resume", str(folder.path)], ["train", *ON_SLURM, "launch.slurm.time=4:00:00", "run.resume=auto"])
    waits = {"output": "42|PENDING|Resources|rlhf:a|/a\n"}
    for said, words in itertools.product((waits, {"error": "slurm_load_jobs error: connect failure\n"}), both):
        slurm.says("squeue", **said)
        assert main(words) == 2
        assert re.search(r"queued.*\n.*\n.*job 42", capsys.readouterr().err)
    slurm.says("squeue", "42|CANCELLED|None|rlhf:a|/a\n")
    for words, lost in itertools.product(both, ({"state": "preempted"}, {"job_id": None}, {})):
        update_status(folder, **lost)
        assert main(words) == 0
        assert (read_status(folder).state, read_status(folder).job_id) == ("queued", "42")
