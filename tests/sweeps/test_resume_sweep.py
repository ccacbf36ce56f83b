"""`rlhf resume SWEEP`: what is missing, stopped, killed or failed runs, what is done is left, and each job says why."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status
from tests.support.small_runs import SMALL

SWEEP = Path("runs/quickstart/swept")
FAILS = """
import os
def fails(completions, trainer_state, *, job, **kwargs):
    if job == 2 and trainer_state.global_step == 2 and not os.path.exists("mended"):
        raise ValueError("not mended yet")
    return [float(len(completion) % 7) for completion in completions]
"""
WORDS = [
    "rewards.mine.fn=./mine.py:fails",
    "rewards.mine.trial=false",
    "rewards.mine.args.job=1,2,3",
    "trainer.args.save_steps=1",
]


def states() -> dict[str, str]:
    return {path.parent.name: read_status(RunFolder(path.parent)).state for path in SWEEP.glob("*/config.yaml")}


def test_what_is_left_is_run_and_ends_as_it_would_have(workplace: Path, sweep, capsys) -> None:
    """Of three runs one fails after two steps, one is taken away, one is done.

    The one that failed goes on from its checkpoint, and its weights are those of the same run without a failure.
    """
    (workplace / "mine.py").write_text(FAILS)
    assert sweep(*WORDS)[0] == 1
    shutil.rmtree(SWEEP / "job=3")
    untouched = (SWEEP / "job=1" / "status.json").stat().st_mtime_ns
    capsys.readouterr()

    provenance = SWEEP / "job=2" / "provenance.json"
    provenance.write_text(re.sub(r'"trl": ".*"', '"trl": "1.0.0"', provenance.read_text()))
    assert main(["resume", str(SWEEP), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "warning: jobs began with other versions: trl 1.0.0 -> 1." in said
    assert "1 of 3 runs are done" in said
    assert "1 have never begun, and begin now" in said
    assert "goes on from step 2" in said
    assert "reward 'mine' failed on row 0" in said
    assert states() == {"job=1": "finished", "job=2": "failed"}

    Path("mended").touch()
    assert main(["resume", str(SWEEP), "-j", "2"]) == 0
    assert states() == {f"job={job}": "finished" for job in (1, 2, 3)}
    assert (SWEEP / "job=1" / "status.json").stat().st_mtime_ns == untouched
    assert "going on from checkpoint-2" in (SWEEP / "job=2" / "console.txt").read_text()
    capsys.readouterr()
    # `job` only says which one fails: all three are the same run.
    assert len({weights_hash(SWEEP / f"job={job}" / "model") for job in (1, 2, 3)}) == 1

    assert main(["resume", str(SWEEP)]) == 0
    assert "nothing to do: all 3 runs have finished" in capsys.readouterr().out


@pytest.fixture
def frozen(workplace: Path, monkeypatch: pytest.MonkeyPatch):
    """A sweep of which nothing has been run: `frozen(words)`; what would be run is in the list that it returns."""
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


def test_which_runs_go_on_follows_from_their_states(frozen) -> None:
    ran = frozen("seed=range(0,7)")
    for seed, state in enumerate(["finished", "failed", "preempted", "created", "queued", "running", "running"]):
        update_status(RunFolder((SWEEP / f"seed={seed}").resolve()), state=state, job_id="7")
    import os
    import socket

    update_status(RunFolder((SWEEP / "seed=5").resolve()), pid=os.getpid(), host=socket.gethostname())
    assert main(["resume", str(SWEEP)]) == 0
    assert ran.pop() == [("seed=1", True), ("seed=2", True), ("seed=3", False), ("seed=6", True)]
    assert main(["resume", str(SWEEP), "--failed"]) == 0
    assert ran.pop() == [("seed=1", True)]


def test_changed_code_is_refused_for_all_at_once_and_can_be_allowed(workplace: Path, frozen, capsys) -> None:
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


def test_another_users_words_are_asked_about_before_they_make_a_job(workplace: Path, frozen, capsys) -> None:
    """A job that is missing is made from the words in sweep.json; whoever packs the folder writes them."""
    frozen("seed=1,2")
    (workplace / "evil.py").write_text(EVIL)
    file = SWEEP / "sweep.json"
    shutil.rmtree(SWEEP / "seed=2")
    assert main(["resume", str(SWEEP), "--dry-run"]) == 0  # one's own
    content = json.loads(file.read_text())
    content["jobs"][1]["overrides"].append("+rewards.z.fn=./evil.py:f")
    file.write_text(json.dumps(content))
    capsys.readouterr()
    for words in ([], ["--dry-run"]):
        assert main(["resume", str(SWEEP), *words]) == 2
        assert "+rewards.z.fn=./evil.py:f" in capsys.readouterr().err
    assert not (workplace / "it-ran").exists()
    assert main(["resume", str(SWEEP), "--dry-run", "--trust"]) == 0
    assert "+rewards.z.fn=./evil.py:f" in capsys.readouterr().err
    assert (workplace / "it-ran").exists()


def test_another_users_search_is_asked_about(workplace: Path, capsys) -> None:
    SWEEP.mkdir(parents=True)
    (SWEEP / "sweep.json").write_text('{"overrides": ["+exp=quickstart", "+rewards.z.fn=./evil.py:f"], "jobs": []}')
    (SWEEP / "search.jsonl").touch()
    assert main(["resume", str(SWEEP)]) == 2
    assert "+rewards.z.fn=./evil.py:f" in capsys.readouterr().err
