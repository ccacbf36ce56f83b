"""Test that the judge of broken runs notices losses and processes left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from scripts.chaos.judgement import problems
from scripts.chaos.outcomes import Blow, Broken, Ended, Result
from scripts.chaos.small_experiment import prepare, words
from scripts.chaos.strikes import Case, draw, killed_cases

GOOD = Result("weights", "critic", "metrics")
FINISHED = Ended(0, "finished after 20 steps", (), 0.1, went_on_from=4, first_step_s=7.0)
KILLED = Blow("SIGKILL", "command", 3.0, Ended(-9, "", (), 0.2), "killed", None, 5, 4, True, {"status": FINISHED})
STOPPED = replace(
    KILLED,
    signal="SIGTERM",
    state="preempted",
    checkpoint=5,
    ended=Ended(75, "stopped: saved step 5; `rlhf resume x`", (), 0.2, 0, 6.0),
)
LATER = replace(FINISHED, went_on_from=5)


def broken(*blows: Blow, last: Ended = FINISHED, result: Result = GOOD) -> Broken:
    return Broken(0, 0, "grpo-1", "none", blows, last, result, GOOD)


def test_a_run_without_losses_has_no_problems_and_another_result_is_a_loss() -> None:
    assert problems(broken(KILLED)) == []
    assert problems(broken(STOPPED, last=LATER)) == []
    at_once = replace(STOPPED, ended=Ended(75, "stopped by SIGTERM: nothing was being trained", (), 0.1))
    assert problems(broken(STOPPED, at_once, last=LATER)) == []
    for part in ("model", "critic", "metrics"):
        (said,) = problems(broken(KILLED, result=replace(GOOD, **{part: "another"})))
        assert part in said
    (said,) = problems(broken(KILLED, replace(KILLED, checkpoint=2)))
    assert said == "checkpoint 4 was lost: 2 is the newest later on"


@pytest.mark.parametrize(
    ("blow", "last", "said"),
    [
        (KILLED, replace(FINISHED, code=1), "going on ended with 1"),
        (KILLED, replace(FINISHED, said="Traceback (most recent call last):"), "going on ended with 0"),
        (KILLED, replace(FINISHED, went_on_from=2), "checkpoint 4 verified, and it went on from 2"),
        (KILLED, replace(FINISHED, orphans=("7: sleep",)), "left behind after going on: 7: sleep"),
        (replace(KILLED, ended=replace(KILLED.ended, orphans=("7: x",))), FINISHED, "left behind after the blow: 7: x"),
        (replace(KILLED, ended=replace(KILLED.ended, code=0)), FINISHED, "it was killed and ended with 0"),
        (replace(KILLED, unreadable="status.json"), FINISHED, "not readable: status.json"),
        (replace(KILLED, readers={"status": replace(FINISHED, code=1)}), FINISHED, "rlhf status ended with 1"),
        (replace(KILLED, victim="rank"), FINISHED, "a rank was killed and it ended with -9"),
        (replace(STOPPED, ended=replace(STOPPED.ended, code=-15)), LATER, "it was asked to stop and ended with -15"),
        (replace(STOPPED, state="running"), LATER, "its state is running"),
        (replace(STOPPED, checkpoint=4), LATER, "what it saved is not where it was: says 5, checkpoint 4, step 5"),
        (replace(STOPPED, step=6), LATER, "what it saved is not where it was"),
        (replace(STOPPED, ended=replace(STOPPED.ended, said="no checkpoint yet")), LATER, "step 5 was not saved"),
        (
            replace(STOPPED, ended=replace(STOPPED.ended, said="nothing was being trained")),
            LATER,
            "it had begun, and says that it had not",
        ),
    ],
)
def test_a_broken_promise_is_a_problem(blow: Blow, last: Ended, said: str) -> None:
    assert any(said in line for line in problems(broken(blow, last=last)))


def test_a_blow_depends_on_the_seed_only() -> None:
    once, again, other = (draw(Case("ppo", 2), signal.SIGKILL, seed=seed, run=3, blow=1) for seed in (0, 0, 1))
    assert once == again != other
    drawn = [draw(killed_cases()[run % 6], signal.SIGKILL, seed=0, run=run, blow=run % 2) for run in range(40)]
    assert {strike.victim for strike in drawn} == {"command", "rank", "group"}
    assert {strike.in_save for strike in drawn} == {True, False}


@pytest.mark.parametrize("case", [Case("grpo", 2), Case("ppo", 1)], ids=lambda case: case.name)
def test_the_run_that_is_broken_passes_check(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rewards call the package, and only the longer runs of `make chaos` train with them."""
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    _, *given = words(case, "run", "none", tmp_path)
    assert main(["check", *given]) == 0


ORPHAN = """
import os, subprocess, sys, time
from scripts.chaos.process_tree import adopt_orphans, end, left_behind
adopt_orphans()
hidden = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({seconds})'], " \\
    "start_new_session=True, env={{}})"
subprocess.run([sys.executable, "-c", hidden], check=True)
found, waited_s = left_behind(patience_s={patience_s})
end(found)
print(len(found), left_behind(5.0)[0])
"""


@pytest.mark.parametrize(("seconds", "patience_s", "said"), [(60, 0.5, "1 []"), (0.1, 20.0, "0 []")])
def test_a_planted_orphan_is_found(seconds: float, patience_s: float, said: str) -> None:
    """The orphan has its own session, an empty environment and no parent."""
    program = ORPHAN.format(seconds=seconds, patience_s=patience_s)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == said
