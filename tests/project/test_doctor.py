"""The conditions of `rlhf doctor`: driver and torch (NVIDIA's rules), versions (PEP 440), disks, logins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf_cli.project import doctor
from rlhf_cli.project.doctor import (
    Driver,
    State,
    can_train,
    disk_condition,
    gpu_condition,
    package_conditions,
    read_build,
    read_driver,
    version_of,
    wandb_login_condition,
)

LISTED = "NVIDIA H100 80GB HBM3, 81559, 580.65.06\nNVIDIA A100, 40960, 580.65.06\n"
HEADING = "| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |\n"
CUDA_BUILD = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.13.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = None
"""


def nvidia_smi(folder: Path, script: str) -> str:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return str(tool)


def test_the_output_of_nvidia_smi_is_parsed(tmp_path: Path) -> None:
    """nvidia-smi counts in MiB: 81559 are 85.5 GB."""
    (tmp_path / "listed").write_text(LISTED)
    (tmp_path / "heading").write_text(HEADING)
    tool = nvidia_smi(tmp_path, f'case "$1" in --query*) cat {tmp_path}/listed;; *) cat {tmp_path}/heading;; esac')
    gpus = ("NVIDIA H100 80GB HBM3 85.5 GB", "NVIDIA A100 42.9 GB")
    assert read_driver(tool) == Driver(gpus, "580.65.06", "13.0")


@pytest.mark.parametrize(
    ("says", "trouble"),
    [("echo 'NVIDIA-SMI has failed to talk.'; exit 9", "NVIDIA-SMI has failed"), ("exit 3", "exit code 3")],
)
def test_a_driver_that_does_not_answer(tmp_path: Path, says: str, trouble: str) -> None:
    """Training on the CPU is possible."""
    condition = gpu_condition(read_driver(nvidia_smi(tmp_path, says)), ("2.13.0", None))
    found = (condition.state, trouble in condition.found, condition.prevents_training)
    assert found == (State.UNFIT, True, False)
    assert read_driver(None) == Driver()


@pytest.mark.parametrize(
    ("driver_cuda", "torch_cuda", "state", "said"),
    [
        # A driver supports older CUDA versions, and newer minor versions of its own.
        ("13.0", "12.8", State.OK, "built for CUDA 12.8"),
        ("12.4", "12.8", State.OK, "built for CUDA 12.8"),
        ("12.4", "13.0", State.UNFIT, "a newer driver for CUDA 13.0"),
        ("13.0", None, State.UNFIT, "built without CUDA"),
        (None, "13.0", State.OK, "up to CUDA ?"),
    ],
)
def test_torch_fits_the_driver(driver_cuda: str | None, torch_cuda: str | None, state: State, said: str) -> None:
    condition = gpu_condition(Driver(("A GPU",), "580", driver_cuda), ("2.13.0+x", torch_cuda))
    assert (condition.state, said in f"{condition.found} {condition.fix}") == (state, True), condition
    assert (condition.fix is None) == (state == State.OK)


def test_the_build_is_read_without_running_it(tmp_path: Path) -> None:
    file = tmp_path / "version.py"
    file.write_text(CUDA_BUILD + "raise RuntimeError('it was run')\n")
    assert read_build(file) == ("2.13.0+cu130", "13.0")
    assert read_build(tmp_path / "gone.py") is None


@pytest.mark.parametrize(
    ("change", "name", "state", "prevents"),
    [
        ({}, "needed packages", State.OK, False),
        ({"matplotlib": None}, "plot", State.MISSING, False),
        ({"pillow": None}, "plot", State.UNFIT, False),  # matplotlib needs it
        ({"trl": "1.17.0"}, "trl", State.UNFIT, True),
        ({"trl": None}, "trl", State.MISSING, True),
        ({"optuna": "4.9"}, "search", State.UNFIT, False),
        # PEP 440: 1.16.1.dev0 is between 1.16 and 1.17, and <1.17 excludes pre-releases of 1.17.
        ({"trl": "1.16.1.dev0"}, "needed packages", State.OK, False),
    ],
)
def test_versions(
    change: dict[str, str | None], name: str, state: State, prevents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: change.get(package, version_of(package)))
    found = package_conditions()
    conditions = {condition.name: condition for condition in found}
    assert conditions[name].state == state
    assert (conditions[name].fix is None) == (state == State.OK)
    assert can_train(found) is not prevents
    assert "dev" not in conditions


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = disk_condition("runs", tmp_path / "not" / "yet", "run.root=FOLDER")
    assert (there.state in (State.OK, State.WARN), str(tmp_path / "not" / "yet") in there.found) == (True, True)
    (tmp_path / "file").touch()
    blocked = disk_condition("runs", tmp_path / "file" / "runs", "run.root=FOLDER")
    assert (blocked.prevents_training, blocked.fix) == (True, "run.root=FOLDER")
    assert not disk_condition("hub cache", tmp_path / "file" / "hub", "x").prevents_training
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=2**30))
    assert disk_condition("runs", tmp_path, "x").state == State.WARN


def test_wandbs_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, key = place / "netrc", "plantedkeyofthetests" * 2
    monkeypatch.setenv("NETRC", str(file))
    assert wandb_login_condition().state == State.MISSING
    file.write_text(f"machine api.wandb.ai login user password {key}\n")
    file.chmod(0o600)
    assert wandb_login_condition().found == "a key for api.wandb.ai, from `wandb login`"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.com")  # another server needs another key
    assert wandb_login_condition().state == State.MISSING
    file.write_text(f"machine without sense {key}")
    broken = wandb_login_condition()
    assert (broken.state, key in str(broken)) == (State.UNFIT, False)
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert wandb_login_condition().found == "a key, from WANDB_API_KEY"
