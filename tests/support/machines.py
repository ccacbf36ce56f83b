"""Machines for tests: an nvidia-smi that reports a given number of GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

HaveGpus = Callable[[int], None]
_NUMBERS = itertools.count()


def have_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HaveGpus:
    """Return `have(4)`: from now on nvidia-smi lists four GPUs, and CUDA_VISIBLE_DEVICES is not set."""

    def have(count: int) -> None:
        folder = tmp_path / f"bin-{next(_NUMBERS)}"
        folder.mkdir()
        lines = "".join(f"echo 'GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number})'\n" for number in range(count))
        (folder / "nvidia-smi").write_text("#!/bin/sh\n" + lines)
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return have
