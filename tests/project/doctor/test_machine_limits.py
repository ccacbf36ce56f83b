"""Limits of containers, in files as the kernel writes them (its cgroup-v2 document)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.project.doctor.machine import (
    State,
    cores_condition,
    cpu_quota,
    disk_condition,
    memory_condition,
    memory_limit,
    read_meminfo,
    shared_memory_condition,
)

GIB = 1024**3
MEMINFO = "MemTotal:       32768000 kB\nMemFree:         1024000 kB\nMemAvailable:   16384000 kB\n"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def write(groups: Path, files: dict[str, str]) -> Path:
    """Write the files of groups, and return the file that says in which group this process is."""
    for name, text in files.items():
        file = groups / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    own = groups.parent / "own"
    own.write_text("0::/pods/mine\n")
    return own


def test_the_smallest_limit_around_a_process_counts(groups: Path) -> None:
    own = write(
        groups,
        {
            "pods/mine/memory.max": "max",
            "pods/memory.max": str(8 * GIB),
            "pods/mine/cpu.max": "250000 100000",
            "pods/cpu.max": "max 100000",
            "other/memory.max": "1",
        },
    )
    assert memory_limit(groups, own) == 8 * GIB
    assert cpu_quota(groups, own) == 2.5


def test_memory_is_warned_of_by_the_containers_limit(groups: Path, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    assert read_meminfo(meminfo) == (32768000 * 1024, 16384000 * 1024)
    assert memory_condition(groups, groups, meminfo).state == State.OK
    own = write(groups, {"pods/mine/memory.max": str(2 * GIB)})
    condition = memory_condition(groups, own, meminfo)
    assert (condition.state, "limit is 2.1 GB" in condition.found) == (State.WARN, True)
    assert "quota is 0.5" in cores_condition(groups, write(groups, {"pods/mine/cpu.max": "50000 100000"})).found


def test_disk_and_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = disk_condition("runs", tmp_path / "not" / "yet", "run.root=FOLDER")
    assert there.state in (State.OK, State.WARN)
    assert str(tmp_path / "not" / "yet") in there.found
    (tmp_path / "file").write_text("")
    blocked = disk_condition("runs", tmp_path / "file" / "runs", "run.root=FOLDER")
    assert (blocked.prevents_training, blocked.fix) == (True, "run.root=FOLDER")
    assert not disk_condition("hub cache", tmp_path / "file" / "hub", "x").prevents_training
    usage = type("Usage", (), {"total": GIB // 16, "free": GIB})  # docker's /dev/shm: 64 MiB
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage)
    assert shared_memory_condition(tmp_path).state == State.WARN
    assert disk_condition("runs", tmp_path, "x").state == State.WARN
    assert shared_memory_condition(tmp_path / "nowhere").state == State.WARN
