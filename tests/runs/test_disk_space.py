"""The message about a full disk, in a file or in a library's words, names the place and the checkpoint to resume."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.runs.checkpoint_folders import bytes_below, full_disk


def test_a_folder_takes_the_bytes_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("one", "deep/two"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 400)
    assert 204_800 <= bytes_below(tmp_path) < 300_000
    assert bytes_below(tmp_path / "none") == 0
    byte, hole = tmp_path / "byte" / "file", tmp_path / "hole" / "file"
    byte.parent.mkdir()
    byte.write_bytes(b"1")
    assert bytes_below(byte.parent) == max(1, byte.stat().st_blocks * 512)
    hole.parent.mkdir()
    hole.touch()
    os.truncate(hole, 10**6)
    assert bytes_below(hole.parent) == 10**6 > hole.stat().st_blocks * 512


@pytest.mark.parametrize("steps", [(3,), (2, 3)])
def test_a_run_with_several_checkpoints_may_keep_fewer(steps: tuple[int, ...], tmp_path: Path) -> None:
    for step in steps:
        (tmp_path / f"checkpoint-{step}").mkdir()
    run: Any = SimpleNamespace(path=tmp_path, last_checkpoint=lambda: tmp_path / "checkpoint-3")
    found = full_disk(run, OSError(errno.ENOSPC, "No space left on device"))
    assert ("save_total_limit=1" in str(found)) == (len(steps) > 1)


@pytest.mark.parametrize("last", [None, "checkpoint-3"])
def test_a_full_disk(last: str | None, tmp_path: Path) -> None:
    run: Any = SimpleNamespace(path=tmp_path, last_checkpoint=lambda: last and tmp_path / last)
    full, file = OSError(errno.ENOSPC, "No space left on device", f"{tmp_path}/a/b"), f"{tmp_path}/a/b"
    torch_s = RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")
    torch_s.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    in_words = RuntimeError("No space left on device (os error 28)")
    for error, place in ((full, file), (in_words, str(tmp_path)), (torch_s, str(tmp_path))):
        found = full_disk(run, error)
        assert isinstance(found, RunError)
        assert (found.where, "checkpoint-3" in str(found.advice)) == (place, last is not None)
        assert "save_total_limit" not in str(found.advice)  # it would free nothing
        assert found.expected
        assert "No space left on device" in str(found.got)
        assert "inline_container" not in str(found)
        assert "limit allows" not in str(found)
        assert full_disk(run, found) is None  # it has its advice already
        later = ValueError("the archive was not closed")
        later.__cause__ = error
        assert full_disk(run, later) is not None
    assert "PytorchStreamWriter" not in str(full_disk(run, RuntimeError("PytorchStreamWriter failed writing file")))
    for limit in (OSError(errno.EFBIG, "File too large", file), RuntimeError("File too large (os error 27)")):
        assert "limit allows" in str(full_disk(run, limit))
    assert full_disk(run, PermissionError(errno.EACCES, "Permission denied")) is None
