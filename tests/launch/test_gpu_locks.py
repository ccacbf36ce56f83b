"""GPU locks are in a folder that only this user can write, even if another user made the one in /tmp first."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.launch.gpu_locks import holders_of, take


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RLHF_GPU_LOCKS", raising=False)
    return tmp_path / "tmp" / f"rlhf-gpus-{os.getuid()}"


@pytest.mark.parametrize("kind", ["another user's", "open to all", "a link", "a file"])
def test_a_folder_that_another_user_can_write_is_not_used(kind: str, taken: Path, tmp_path: Path) -> None:
    if kind == "another user's":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder to another user")
        taken.mkdir()
        os.chown(taken, 65534, 65534)
    elif kind == "open to all":
        taken.mkdir()
        taken.chmod(0o777)
    elif kind == "a link":
        (tmp_path / "theirs").mkdir()
        taken.symlink_to(tmp_path / "theirs")
    else:
        taken.touch()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    if taken.is_dir():
        for name in ("0.txt", "0.lock"):
            (taken / name).symlink_to(precious)
    held: Any = take(["0"], "runs/a")
    assert take(["0"], "runs/b") is None
    assert "runs/a" in holders_of(["0"])[0]
    held.release()
    assert precious.read_text() == "mine"


def test_a_link_in_a_folder_that_was_named_is_not_followed(taken: Path, tmp_path: Path, monkeypatch) -> None:
    named, precious = tmp_path / "named", tmp_path / "precious"
    named.mkdir()
    precious.write_text("mine")
    monkeypatch.setenv("RLHF_GPU_LOCKS", str(named))
    (named / "0.txt").symlink_to(precious)
    held: Any = take(["0"], "runs/a")
    held.release()
    (named / "0.lock").unlink(missing_ok=True)
    (named / "0.lock").symlink_to(precious)
    with pytest.raises(RunError) as refused:
        take(["0"], "runs/a")
    assert str(named) in str(refused.value.where)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("full", ["lock", "txt", "folder"])
def test_a_full_disk_holds_no_gpu(taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """An empty lock may still have room where its record has none."""
    opened = os.open

    def open_until_full(path: os.PathLike[str], *args: int, **named: int) -> int:
        if str(path).endswith(f"1.{full}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *args, **named)

    if full == "folder":
        (tmp_path / "file").touch()
        monkeypatch.setenv("RLHF_GPU_LOCKS", str(tmp_path / "file" / "locks"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_until_full)
        with pytest.raises(RunError) as refused:
            take(["0", "1"], "runs/a")
    assert ("Not a directory" if full == "folder" else "No space left on device") in str(refused.value.got)
    assert "export RLHF_GPU_LOCKS=" in str(refused.value.hint)
    if full != "folder":
        held: Any = take(["0", "1"], "runs/b")
        held.release()  # neither GPU was still held
        assert taken.stat().st_mode & 0o777 == 0o700


def test_a_pipe_in_place_of_a_record_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that RLHF_GPU_LOCKS names may be shared with other users."""
    monkeypatch.setenv("RLHF_GPU_LOCKS", str(tmp_path))
    os.mkfifo(tmp_path / "0.txt")
    (tmp_path / "1.txt").write_bytes(b"\xff")
    assert holders_of(["0", "1"]) == []
