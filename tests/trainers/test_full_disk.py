"""A disk that is full while a checkpoint is saved: path and bytes are named, the older checkpoint is whole."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.disk_space import bytes_below
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`small_disk(kilobytes)`: a file system of its own that has no room for more."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a file system can be mounted by root alone: {done.stderr.strip()}")
        return place

    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def run_on(place: Path) -> RunFolder:
    return RunFolder(place / "runs" / "quickstart" / "one")


def told_bytes(told: str) -> tuple[int, int]:
    """(free, needed) as the message has them."""
    free, needed = re.search(r"(\d+) bytes", told), re.search(r"at least (\d+) bytes", told)
    assert free is not None
    assert needed is not None
    return int(free[1]), int(needed[1])


@pytest.mark.parametrize(("kilobytes", "kept"), [(390, ["checkpoint-1"]), (160, [])])
@pytest.mark.fault(4)
def test_the_older_one_is_whole_and_nothing_else_is_left(
    train, small_disk, capsys, monkeypatch, kilobytes: int, kept: list[str]
) -> None:
    import rlhf_cli.plan.checks.machine_checks

    # Another program filled the disk.
    monkeypatch.setattr(rlhf_cli.plan.checks.machine_checks, "space_problems", lambda *_: ([], None))
    place = small_disk(kilobytes)
    code, _ = train(f"run.root={place}/runs", "trainer.args.save_steps=1")
    folder = run_on(place)
    told = capsys.readouterr().err
    assert code == 2
    assert "error: the disk is full" in told
    assert str(folder.checkpoints / f"checkpoint-{len(kept) + 1}") in told
    assert "Traceback" not in told
    assert [path.name for path in folder.checkpoints.iterdir()] == kept
    assert all(problem_with(path) is None for path in folder.checkpoints.iterdir())
    if kept:
        free, needed = told_bytes(told)
        assert free < needed
        assert needed >= bytes_below(folder.checkpoints / kept[0]) > 100_000
        assert "checkpoint-1 is complete" in told
    assert "the disk is full" in (read_status(folder).reason or "")
