"""Which processes a run has, on which devices, and how much memory each of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.plan import devices
from rlhf_cli.plan.devices import Device, planned_device
from tests.support.machines import have_gpus

SLURM = {"gpus_per_node": 4}


@pytest.mark.parametrize(
    ("words", "gpus", "here", "of_the_run", "uses_gpu", "on_cpu"),
    [
        ({}, 0, 1, 1, False, True),
        ({}, 3, 3, 3, True, False),
        ({"nodes": 5}, 2, 2, 10, True, False),
        ({"rollout_gpus": 1}, 4, 3, 3, True, False),
        ({"rollout_gpus": 4}, 4, 1, 1, True, False),
        ({"device": "cpu"}, 3, 1, 1, False, True),
        ({"device": "cuda"}, 0, 1, 1, True, False),
        ({"processes": 4, "nodes": 2}, 0, 4, 8, False, True),
        # the nodes of a Slurm job are other machines
        ({"slurm": SLURM, "nodes": 2}, 3, 3, 8, True, False),
        ({"slurm": {}, "nodes": 2}, 3, 3, 2, False, False),
        ({"slurm": SLURM, "device": "cpu", "nodes": 2}, 0, 1, 2, False, True),
        ({"slurm": SLURM, "processes": 2, "nodes": 3}, 0, 2, 6, True, False),
    ],
)
def test_processes(words, gpus, here, of_the_run, uses_gpu, on_cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: tuple("01234"[:gpus]))
    monkeypatch.setattr(devices, "OTHER_GPUS", Path("/nowhere"))
    launch = Launch.model_validate(words)
    assert (devices.count_processes(launch), devices.planned_processes(launch)) == (here, of_the_run)
    assert (devices.uses_gpu(launch), devices.runs_on_cpu(launch)) == (uses_gpu, on_cpu)
    monkeypatch.setenv(devices.ON_SLURM_NODE, "1")
    assert devices.runs_on_cpu(launch) is (on_cpu if launch.device != "auto" else not gpus)
    monkeypatch.setattr(devices, "OTHER_GPUS", Path("/"))
    assert devices.runs_on_cpu(launch) is (launch.device == "cpu")


@pytest.mark.parametrize(
    ("words", "processes", "host", "device"),
    [
        ({"device": "cpu", "nodes": 2}, 8, 1000, Device(False, False, 8, 250)),
        ({"device": "cpu", "nodes": 2}, 1, 1000, Device(num_bytes=1000)),
        ({"device": "cpu", "precision": "bf16"}, 1, 9, Device(False, True, 1, 9)),
        ({"device": "cpu"}, 4, 3, Device(processes=4)),
        ({"device": "cuda"}, 2, 1000, Device(True, True, 2, 7000)),
        ({"device": "cuda", "precision": "float32"}, 2, 1000, Device(True, False, 2, 7000)),
        ({"device": "cuda", "slurm": SLURM}, 2, 1000, Device(True, True, 2, None)),
    ],
)
def test_the_device_of_a_process(
    words: dict[str, object], processes: int, host: int, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "host_bytes", lambda: host)
    monkeypatch.setattr(devices, "gpu_bytes", lambda: 7000)
    assert planned_device(Launch.model_validate(words), processes) == device


@pytest.mark.parametrize(
    ("version_2", "version_1", "num_bytes"),
    [(None, None, 40960), ("max\n", "5000", 5000), ("4000\n", "9000", 4000), ("90000", None, 40960)],
)
def test_a_container_may_have_less_memory_than_its_machine(
    version_2: str | None, version_1: str | None, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control groups of both versions."""
    files = {"memory.max": version_2, "memory.limit_in_bytes": version_1}

    def read(file: Path) -> str:
        if (text := files[file.name]) is None:
            raise FileNotFoundError(file)
        return text

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=40960))
    assert devices.host_bytes() == num_bytes


def test_what_nvidia_smi_says_of_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last GPU of a list that CUDA takes is the one before that which does not exist: CUDA ignores the rest."""
    have_gpus(tmp_path, monkeypatch)(4)
    assert devices.visible_gpus() == ("0", "1", "2", "3")
    for visible, seen in {"3,1": "3 1", "3, 4,1": "3", "GPU-8f,-1,0": "GPU-8f", "": ""}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert devices.visible_gpus() == tuple(seen.split())
    found = {name: devices.gpu_identity(name) for name in ("3", "4", "GPU-2", "GPU-", "G", "MIG-GPU-1")}
    assert found == {"3": "GPU-3", "4": "4", "GPU-2": "GPU-2", "GPU-": "GPU-0", "G": "G", "MIG-GPU-1": "MIG-GPU-1"}
    monkeypatch.setattr(devices, "_nvidia_smi", lambda *options: ["8.0", " 9.0", "[N/A]", "12.1"])
    assert devices.compute_capabilities() == (8.0, 9.0, 12.1)


def test_a_command_that_fails_or_hangs_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert devices.answer_of("sh", "-c", "echo out; echo err >&2; exit 3") == "out\n"
    assert devices.answer_of("./no-such-command") == ""
    monkeypatch.setattr(devices, "_PROBE_TIMEOUT_S", 0.1)
    assert devices.answer_of("sh", "-c", "echo early; exec sleep 3") == ""
    assert capfd.readouterr() == ("", "")
