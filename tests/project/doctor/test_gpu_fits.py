"""Which torch runs on which driver and GPU, by NVIDIA's own rules, from what their tools print."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from rlhf_cli.project.doctor.examination import (
    Driver,
    Gpu,
    TorchBuild,
    gpu_condition,
    installed_torch,
    parse_driver,
    read_build,
    read_driver,
)
from rlhf_cli.project.doctor.machine import State

LISTED = "NVIDIA H100 80GB HBM3, 81559, 580.65.06, 9.0\nNVIDIA H100 80GB HBM3, 81559, 580.65.06, 9.0\n"
HEADING = """Sun Nov 22 14:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
"""
CUDA_BUILD = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.13.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = None
"""


def test_what_nvidia_smi_prints_is_read() -> None:
    driver = parse_driver(LISTED, HEADING)
    assert (driver.version, driver.cuda, driver.trouble) == ("580.65.06", "13.0", None)
    assert [gpu.name for gpu in driver.gpus] == ["NVIDIA H100 80GB HBM3"] * 2
    assert driver.gpus[0].capability == (9, 0)
    assert driver.gpus[0].memory_bytes == 81559 * 2**20  # nvidia-smi counts in MiB


@pytest.mark.parametrize(
    ("says", "trouble"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9", "NVIDIA-SMI has failed"),
        ("exit 3", "exit code 3"),
    ],
)
def test_a_driver_that_does_not_answer_is_told(tmp_path: Path, says: str, trouble: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    driver = read_driver(str(tool))
    assert trouble in str(driver.trouble)
    condition = gpu_condition(driver, TorchBuild("2.13.0"))
    assert condition.state == State.UNFIT
    assert not condition.prevents_training  # there is still the CPU
    assert read_driver(None) == Driver()


@pytest.mark.parametrize(
    ("driver_cuda", "capability", "torch_cuda", "state", "said"),
    [
        ("13.0", (9, 0), "13.0", State.OK, "built for CUDA 13.0"),
        # A driver runs what was built for an older CUDA, and for a newer minor version of its own.
        ("13.0", (9, 0), "12.8", State.OK, "built for CUDA 12.8"),
        ("12.4", (8, 0), "12.8", State.OK, "built for CUDA 12.8"),
        ("12.4", (9, 0), "13.0", State.UNFIT, "a driver for CUDA 13"),
        ("13.0", (9, 0), None, State.UNFIT, "built for no GPU"),
        # Volta is not in CUDA 13; Turing is, without bfloat16, and Ampere has that.
        ("13.0", (7, 0), "13.0", State.UNFIT, "compute capability 7.0"),
        ("13.0", (7, 0), "12.8", State.WARN, "no bfloat16"),
        ("13.0", (7, 5), "13.0", State.WARN, "no bfloat16"),
        ("13.0", (8, 0), "13.0", State.OK, "built for CUDA 13.0"),
        (None, None, "13.0", State.OK, "up to CUDA ?"),
    ],
)
def test_torch_fits_driver_and_gpu(
    driver_cuda: str | None, capability: tuple[int, int] | None, torch_cuda: str | None, state: State, said: str
) -> None:
    driver = Driver((Gpu("A GPU", 80, capability),), "580", driver_cuda)
    condition = gpu_condition(driver, TorchBuild("2.13.0+x", torch_cuda))
    assert (condition.state, said in f"{condition.found} {condition.fix}") == (state, True), condition
    assert (condition.fix is None) == (state == State.OK)


def test_the_build_is_read_without_running_it(tmp_path: Path) -> None:
    file = tmp_path / "version.py"
    file.write_text(CUDA_BUILD + "raise RuntimeError('it was run')\n")
    assert read_build(file) == TorchBuild("2.13.0+cu130", "13.0")
    file.write_text("no python(")
    assert read_build(file) is None
    build = installed_torch()
    assert build is not None
    # pip knows the same package as 2.13.0, or with what it was built for.
    assert build.version.partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
