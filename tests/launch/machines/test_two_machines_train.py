"""A GRPO run of two machines, a process each, is that of two processes on one machine, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import read_status
from tests.support.listening import listening
from tests.support.small_runs import SMALL, starting_model

HALF = "trainer.args.per_device_train_batch_size=4"
ROOT = str(Path(__file__).parents[3])


def rlhf(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlhf_cli", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.processes
def test_two_machines_end_where_two_processes_do(workplace: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    first = rlhf("train", *SMALL, HALF, "launch.nodes=2", f"launch.rdzv={address}", "run.name=machines")
    second = rlhf("join", address)
    addresses = set[str]()
    while first.poll() is None:
        addresses |= listening(first.pid) | listening(second.pid)
        time.sleep(0.1)
    assert addresses == {"127.0.0.1"}  # the machines meet there, and nobody listens anywhere else
    said = [process.communicate(timeout=300)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    alone = rlhf("train", *SMALL, HALF, "launch.processes=2", "run.name=processes")
    assert alone.communicate(timeout=300)[0].rstrip().endswith("run folder: runs/quickstart/processes")
    machines, processes = (RunFolder(workplace / "runs" / "quickstart" / name) for name in ("machines", "processes"))
    assert (read_status(machines).state, read_json(machines.provenance)["world_size"]) == ("finished", 2)
    assert weights_hash(machines.model) == weights_hash(processes.model)
    assert series(read_metrics(machines.metrics), "reward") == series(read_metrics(processes.metrics), "reward")
    # The control: they have learned something that could have differed.
    assert weights_hash(machines.model) != weights_hash(starting_model(machines))
