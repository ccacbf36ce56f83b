"""Start a real Slurm on this machine for the tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.slurm.one_machine import bring_down, bring_up, missing


def brought_up(num_nodes: int) -> Iterator[dict[str, str]]:
    """Yield the environment that points Slurm's commands at it; skips where Slurm or munge is not installed, or a
    container does not let it come up, with its last words.
    """
    if absent := missing():
        pytest.skip(f"not installed here: {', '.join(absent)} (apt-get install slurm-wlm munge)")
    folder = Path(tempfile.mkdtemp(prefix="rlhf-slurm-"))  # short: munge's socket lies in it
    try:
        try:
            environment = bring_up(folder, num_nodes)
        except RuntimeError as error:
            pytest.skip(f"no Slurm comes up here: {error}")
        yield environment
    finally:
        bring_down(folder)
        shutil.rmtree(folder, ignore_errors=True)
