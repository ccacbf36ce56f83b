"""`rlhf resume SWEEP` runs the missing, stopped, killed and failed jobs, and leaves finished ones alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_cli.cli import main
from rlhf_cli.launch import resuming
from rlhf_cli.plan.checks import machine_checks
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status
from rlhf_cli.sweeps.sweep_folder import report
from tests.support.small_runs import SMALL

pytestmark = pytest.mark.whole

SWEEP = Path("runs/quickstart/swept")
FAILS = """
import os
def fails(completions, trainer_state, *, job, **kwargs):
    if job == 2 and trainer_state.global_step == 2 and not os.path.exists("mended"):
        raise ValueError("not mended yet")
    return [float(len(completion) % 7) for completion in completions]
"""
WORDS = [
    *("rewards.mine.fn=./mine.py:fails", "rewards.mine.trial=false", "rewards.mine.args.job=1,2,3"),
    "trainer.args.save_steps=1",
]


OTHER = "1.0.0.dev20260101+of.a.branch"  # its line is longer than 80 columns, and not broken


def states() -> dict[str, str]:
    return {path.parent.name: read_status(RunFolder(path.parent)).state for path in SWEEP.glob("*/config.yaml")}


def test_unfinished_jobs_end_as_without_the_interruption(workplace: Path, sweep, capsys) -> None:
    """One of three jobs fails after two steps, one is deleted, one is done.

    The failed job continues from its checkpoint and ends with the weights of the same run without a failure.
    """
    (workplace / "mine.py").write_text(FAILS)
    assert sweep(*WORDS)[0] == 1
    shutil.rmtree(SWEEP / "job=3")
    untouched = (SWEEP / "job=1" / "status.json").stat().st_mtime_ns
    capsys.readouterr()

    provenance = SWEEP / "job=2" / "provenance.json"
    provenance.write_text(re.sub(r'"trl": ".*"', f'"trl": "{OTHER}"', provenance.read_text()))
    assert main(["resume", str(SWEEP), "--dry-run", "--json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["dry_run"] is True
    said = f"trl {OTHER} -> 1.", "1 of 3 runs are done", "continues from step 2", "reward 'mine' failed on row 0"
    for part in said:
        assert part in streams.err
    assert states() == {"job=1": "finished", "job=2": "failed"}

    Path("mended").touch()
    assert main(["resume", str(SWEEP), "-j", "2"]) == 0
    assert states() == {f"job={job}": "finished" for job in (1, 2, 3)}
    assert (SWEEP / "job=1" / "status.json").stat().st_mtime_ns == untouched
    assert "checkpoint-2" in (SWEEP / "job=2" / "console.txt").read_text()
    capsys.readouterr()
    # `job` only selects which one fails: all three are the same run.
    assert len({weights_hash(SWEEP / f"job={job}" / "model") for job in (1, 2, 3)}) == 1

    assert main(["resume", str(SWEEP)]) == 0
    assert "nothing to do: all 3 runs have finished" in capsys.readouterr().out


@pytest.fixture
def frozen(workplace: Path, monkeypatch: pytest.MonkeyPatch):
    """Return `frozen(*words)`, which freezes a sweep without running it; its result lists the jobs of later calls."""
    from rlhf_cli.sweeps import sweep

    ran: list[list[tuple[str, bool]]] = []

    def note(console, jobs, options) -> int:
        ran.append([(job.name, job.resume) for job in jobs])
        return 0

    monkeypatch.setattr(sweep, "run_jobs", note)

    def freeze(*words: str) -> list[list[tuple[str, bool]]]:
        assert main(["train", "-m", *SMALL, "run.name=swept", *words]) == 0
        ran.clear()
        return ran

    return freeze


def test_the_state_of_a_job_decides_whether_it_is_resumed(frozen) -> None:
    ran = frozen("seed=range(0,8)")
    runs = [RunFolder((SWEEP / f"seed={seed}").resolve()) for seed in range(8)]
    written = ["finished", "failed", "preempted", "created", "queued", *["running"] * 3]
    for run, state in zip(runs, written, strict=True):
        update_status(run, state=state, job_id="7")
    update_status(runs[5], pid=os.getpid(), host=socket.gethostname())
    update_status(runs[7], pid=os.getpid(), host="another-machine")
    assert main(["resume", str(SWEEP)]) == 0
    unfinished = [("seed=1", True), ("seed=2", True), ("seed=3", False), ("seed=6", True)]
    assert ran.pop() == unfinished
    assert main(["resume", str(SWEEP), "--take-over"]) == 0
    assert ran.pop() == [*unfinished, ("seed=7", True)]
    assert main(["resume", str(SWEEP), "--failed"]) == 0
    assert ran.pop() == [("seed=1", True)]
    assert main(["resume", str(SWEEP), "--watch", "los"]) == 2
    assert not ran


def test_a_missing_job_of_a_resumed_sweep_has_no_deadline_that_has_passed(frozen, monkeypatch) -> None:
    deadline = "2090-01-01T06:00"
    ran = frozen("seed=1,2", f"launch.must_save_by={deadline}")
    shutil.rmtree(SWEEP / "seed=2")
    for module in (resuming, machine_checks):
        monkeypatch.setattr(module, "has_passed", deadline.__eq__)
    assert main(["resume", str(SWEEP)]) == 0
    assert ran.pop() == [("seed=1", False), ("seed=2", False)]
    frozen_again = [RunFolder((SWEEP / f"seed={seed}").resolve()).read_config()["launch"] for seed in (1, 2)]
    assert [launch["must_save_by"] for launch in frozen_again] == [None, None]


def test_changed_code_is_refused_for_all_jobs_together_and_can_be_allowed(workplace: Path, frozen, capsys) -> None:
    (workplace / "mine.py").write_text(FAILS)
    ran = frozen(*WORDS)
    (workplace / "mine.py").write_text(FAILS + "# changed\n")
    assert main(["resume", str(SWEEP)]) == 2
    assert capsys.readouterr().err.count("mine.py") == 3
    assert ran == []
    assert main(["resume", str(SWEEP), "--allow", "code"]) == 0
    assert [name for name, _ in ran.pop()] == ["job=1", "job=2", "job=3"]


EVIL = """
from pathlib import Path
Path("it-ran").touch()

def f(completions, **columns):
    return [0.0] * len(completions)
"""


class TestOfAnotherUser:
    """Whose words, searches and frozen runs may name functions: the folder's author wrote them."""

    @pytest.fixture
    def evil(self, workplace: Path) -> Path:
        (workplace / "evil.py").write_text(EVIL)
        return workplace / "it-ran"

    def test_the_overrides_of_a_missing_job_need_trust(self, evil: Path, frozen, capsys) -> None:
        frozen("seed=1,2,3")
        file = SWEEP / "sweep.json"
        for name in ("seed=2", "seed=3"):
            shutil.rmtree(SWEEP / name)
        assert main(["resume", str(SWEEP), "--dry-run"]) == 0  # the user's own sweep
        content = json.loads(file.read_text())
        content["jobs"][1]["overrides"].append("+rewards.z.fn=./evil.py:f")
        file.write_text(json.dumps(content))
        capsys.readouterr()
        for words in ([], ["--dry-run"]):
            assert main(["resume", str(SWEEP), *words]) == 2
            assert "+rewards.z.fn=./evil.py:f" in capsys.readouterr().err
        assert not evil.exists()
        assert main(["resume", str(SWEEP), "--dry-run", "--trust"]) == 0
        assert capsys.readouterr().err.count("+rewards.z.fn=./evil.py:f") == 1
        assert evil.exists()

    def test_the_words_of_a_search_need_trust(self, evil: Path, capsys) -> None:
        SWEEP.mkdir(parents=True)
        (SWEEP / "sweep.json").write_text('{"overrides": ["+exp=quickstart", "+rewards.z.fn=./evil.py:f"], "jobs": []}')
        (SWEEP / "search.jsonl").touch()
        assert main(["resume", str(SWEEP)]) == 2
        assert "+rewards.z.fn=./evil.py:f" in capsys.readouterr().err

    def test_a_frozen_trial_needs_trust(self, evil: Path, frozen, capsys) -> None:
        """The words of the search are the user's own."""
        frozen("seed=1,2")
        (SWEEP / "search.jsonl").touch()
        config = SWEEP / "seed=1" / "config.yaml"
        config.write_text(config.read_text().replace("rlhf_cli.rewards.toy:digits_only", "./evil.py:f"))
        assert main(["resume", str(SWEEP)]) == 2
        assert "./evil.py:f" in capsys.readouterr().err
        assert not evil.exists()


def test_a_sweep_has_a_report_once_a_run_has_begun(frozen, capsys) -> None:
    frozen("seed=1,2")
    capsys.readouterr()
    report(Console(), SWEEP)
    assert capsys.readouterr().out == ""
    update_status(RunFolder(SWEEP / "seed=1"), state="failed")
    report(Console(), SWEEP)
    assert "report" in capsys.readouterr().out
