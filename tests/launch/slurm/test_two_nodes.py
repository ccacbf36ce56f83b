"""A run of two nodes, left to a real Slurm that this machine pretends to be two nodes of."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import read_json
from tests.launch.slurm.own_slurm import brought_up
from tests.launch.slurm.test_real_slurm import ON_SLURM, SLOW, are, end_of, rows, run_folder, slow, wait_until
from tests.support.small_runs import SMALL

pytestmark = [pytest.mark.slurm]

HALF = "trainer.args.per_device_train_batch_size=4"


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[dict[str, str]]:
    yield from brought_up(2)


@pytest.fixture
def slurm(two_nodes: dict[str, str], workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in two_nodes.items():
        monkeypatch.setenv(name, value)
    return workplace


def test_two_nodes_are_told_to_save_and_end_where_two_processes_do(slurm: Path, capsys) -> None:
    """Slurm warns the first node's batch process; the rank of the other node stops at the same step.
    The job continues by itself, and its model equals that of two uninterrupted processes on one machine.
    """
    (slurm / "slow.py").write_text(SLOW)
    words = ["trainer.args.max_steps=12", HALF, *slow(1.5)]
    nodes = ["launch.nodes=2", "launch.processes=1"]
    assert main(["train", *ON_SLURM, *words, *nodes, "run.name=nodes"]) == 0
    folder = run_folder(slurm, "nodes")
    (row,) = wait_until(capsys, folder.path, lambda rows: int(str(rows[0]["step"])) >= 1)
    subprocess.run(["scancel", "--signal=USR1", "--batch", str(row["job_id"])], check=True)
    (row,) = wait_until(capsys, folder.path, are("finished", "failed", "killed"))
    log = (folder.path / "slurm" / f"{row['job_id']}_0_log.out").read_text()
    assert (row["state"], end_of(row["job_id"])) == ("finished", "COMPLETED"), log
    first, second = map(json.loads, (folder.path / "slurm" / "attempts.jsonl").read_text().splitlines())
    assert (first["exit_code"], first["was_warned"], second["exit_code"]) == (75, True, 0)
    assert 0 < first["step_at_end"] == second["step_at_start"] < 12
    assert (folder.path / "log-machine2.txt").is_file()
    assert read_json(folder.provenance)["world_size"] == 2
    assert main(["train", *SMALL, *words, "launch.processes=2", "run.name=alone"]) == 0
    assert weights_hash(folder.model) == weights_hash(run_folder(slurm, "alone").model)
    assert rows(capsys, str(folder.path))[0]["step"] == 12
