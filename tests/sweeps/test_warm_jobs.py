"""Jobs that are forks of one process learn and end like processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import SMALL

pytestmark = pytest.mark.whole

MISCHIEF = """
import os, random, signal
import torch

def mischief(completions, trainer_state, *, what, **kwargs):
    if trainer_state.global_step == 1:
        print("said aloud", flush=True)
        if what == "state":  # this would change a later run in the same process
            torch.manual_seed(0), random.seed(0), torch.set_default_dtype(torch.float64)
            torch.nn.functional.log_softmax = torch.nn.functional.softmax
            torch.nn.functional.silu = torch.nn.functional.relu
            os.environ["HF_HOME"] = "/nowhere"
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "raise":
            raise ValueError("one is too many")
    return [float(sum(map(ord, text)) % 7) for text in completions]
"""
WORDS = ["rewards.mine.fn=./mine.py:mischief"]


def states(runs: list[RunFolder]) -> dict[str, str]:
    return {run.path.name: read_status(run).state for run in runs}


@pytest.mark.fault(28)
def test_a_job_that_fails_does_not_change_the_others(workplace: Path, sweep, train, capsys) -> None:
    """The last job has the same weights as the same run alone, and the killed process ends only its own job."""
    (workplace / "mine.py").write_text(MISCHIEF)
    code, runs = sweep(*WORDS, "rewards.mine.args.what=kill,raise,state,none", "-j2")
    assert code == 1
    assert all("said aloud" in run.console.read_text() for run in runs)
    assert states(runs) == {
        "what=kill": "failed",
        "what=none": "finished",
        "what=raise": "failed",
        "what=state": "finished",
    }
    out = capsys.readouterr().out
    assert "SIGKILL" in out
    assert "one is too many" in out
    assert "Traceback" in next(run for run in runs if run.path.name == "what=raise").console.read_text()
    by_name = {run.path.name: weights_hash(run.model) for run in runs}
    _, alone = train(*WORDS, "rewards.mine.args.what=none")
    assert by_name["what=none"] == weights_hash(alone.model)
    assert by_name["what=none"] != by_name["what=state"]  # negative control: the mischief changes a run


STOPS = """
import os, signal
def stop(completions, trainer_state, *, sweep, **kwargs):
    if trainer_state.global_step == 1 and not os.path.exists("stopped"):
        open("stopped", "w").close()
        os.kill(sweep, signal.SIGINT)
    return [0.0] * len(completions)
"""


@pytest.mark.fault(20)
def test_a_signal_saves_the_running_job_and_starts_no_other(workplace: Path, sweep, capsys) -> None:
    (workplace / "mine.py").write_text(STOPS)
    words = ["rewards.mine.fn=./mine.py:stop", f"rewards.mine.args.sweep={os.getpid()}", "trainer.args.max_steps=200"]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    code, runs = sweep(*words, "seed=1,2,3")
    assert code == 75
    assert states(runs) == {"seed=1": "preempted", "seed=2": "created", "seed=3": "created"}
    assert runs[0].last_checkpoint() is not None
    assert read_status(runs[0]).reason == "Ctrl-C"
    out = capsys.readouterr().out
    assert out.count("Ctrl-C: saving") == 1
    assert "`rlhf resume runs/quickstart/swept`" in out
    assert {number: signal.getsignal(number) for number in before} == before


SLOW = "import time\ndef slow(completions, **kwargs):\n    time.sleep(0.3)\n    return [0.0] * len(completions)\n"


@pytest.mark.processes
def test_a_killed_sweep_leaves_no_process_behind(workplace: Path, tmp_path: Path) -> None:
    """The jobs end, and with them the process that forked them."""
    (workplace / "mine.py").write_text(SLOW)
    words = ["rewards.mine.fn=./mine.py:slow", "trainer.args.max_steps=500", "seed=1,2", "run.name=swept", "-j2"]
    command = [sys.executable, "-m", "rlhf_cli", "train", "-m", *SMALL, *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as sweep:
        runs = [RunFolder(workplace / "runs" / "quickstart" / "swept" / f"seed={seed}") for seed in (1, 2)]
        until = time.monotonic() + 120
        while not all(run.metrics.is_file() for run in runs) and time.monotonic() < until:
            time.sleep(0.2)
        children = {status.pid for run in runs if (status := read_status(run)).state == "running"}
        assert len(children) == 2
        sweep.kill()
    until = time.monotonic() + 10
    while (found := [read_status(run).state for run in runs]) != ["killed"] * 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert found == ["killed"] * 2
