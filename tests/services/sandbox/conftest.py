"""The sandbox in each kind that this machine can make, and a look at what runs here."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.services.sandbox.running import Isolation, protections, run_code
from tests.services.sandbox.sandbox_processes import Run

WITHOUT_OUR_CODE = {
    "bubblewrap": "bwrap --unshare-pid --unshare-net --ro-bind / / --proc /proc true",
    "namespaces": "unshare --user --map-root-user --mount-proc --pid --fork --net --ipc --uts true",
    "limits": "true",
}
"""Kind -> a command of others that can do what it needs."""


@pytest.fixture(params=WITHOUT_OUR_CODE)
def mode(request: pytest.FixtureRequest) -> Isolation:
    wanted: Isolation = request.param
    try:
        protections(wanted)
    except RewardError as error:
        words = WITHOUT_OUR_CODE[wanted].split()
        if shutil.which(words[0]) is not None and not subprocess.run(words, capture_output=True).returncode:
            raise  # a fault of ours is no reason to skip
        pytest.skip(f"{wanted} does not work here: {error.got}")
    return wanted


@pytest.fixture
def run(mode: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run_code` in one mode, with temporary folders of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return partial(run_code, isolation=mode, timeout_s=5.0)
