"""Checkpoints on disk: staged, hashed, renamed, verified; no torch in sight. A full disk names what to resume."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.runs import checkpoint_folders as module
from rlhf_cli.runs.checkpoint_folders import MANIFEST, bytes_below, commit, full_disk, newest_whole, problem_with
from rlhf_cli.runs.run_folder import checkpoints_in, flush


def staged(folder: Path, step: int, weights: bytes = b"weights") -> Path:
    """What a trainer leaves before it is committed, a folder in a folder among it."""
    path = module.staging_place(folder, step) / f"checkpoint-{step}"
    (path / "shards").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(weights)
    (path / "trainer_state.json").write_text("{}")
    (path / "shards" / "0.bin").write_bytes(b"shard")
    return path


def whole(folder: Path, *steps: int) -> list[Path]:
    return [commit(staged(folder, step)) for step in steps]


class Killed(BaseException):
    """The kill of a process, at a call that reaches the disk."""


def calls_until_killed(path: Path, call: int) -> int:
    """Commit `path` and be killed at that call which reaches the disk; how many there were, if fewer all of them."""
    calls = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return real(*args, **kwargs)

        return wrapper

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "write_text"), (module.shutil, "rmtree")):
            patch.setattr(owner, name, dying(getattr(owner, name)))
        commit(path)
    return calls


def newest_weights(folder: Path) -> bytes | None:
    """The weights of the newest whole checkpoint; no other is skipped."""
    newest, skipped = newest_whole(folder)
    assert skipped == []
    return None if newest is None else (newest / "model.safetensors").read_bytes()


def test_the_manifest_says_size_and_hash_of_every_file_when_all_else_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    final = commit(staged(tmp_path, 7))
    files = json.loads((final / MANIFEST).read_text())["files"]
    assert sorted(files) == ["model.safetensors", "shards/0.bin", "trainer_state.json"]
    # XXH3_128bits("weights", 7) of Debian's libxxhash 0.8.1, called from C
    assert files["model.safetensors"] == {"size": 7, "xxh3_128": "bdbda1eb6e05adc4800d98e5524fefbc"}
    order = [*(final / file for file in (*sorted(files), MANIFEST)), final / "shards", final, tmp_path]
    assert flushed == [path.stat().st_ino for path in order]


def test_what_was_left_unfinished_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    whole(tmp_path, 6)
    staged(tmp_path, 7)
    (tmp_path / "notes").mkdir()
    module.clear_staging(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-6", "notes"]


@pytest.mark.parametrize("call", range(1, 12))
@pytest.mark.fault(1, 2)
def test_killed_at_any_flush_or_rename_leaves_none_or_a_whole_one(tmp_path: Path, call: int) -> None:
    """Every call that reaches the disk is, in its turn, the one that never returns."""
    whole(tmp_path, 6)
    # 3 files, the manifest and its flush, 2 folders, the rename, its flush, the staging place
    assert calls_until_killed(staged(tmp_path, 7), call) == min(call, 10)
    assert newest_whole(tmp_path) == (tmp_path / ("checkpoint-6" if call <= 8 else "checkpoint-7"), [])


@pytest.mark.parametrize("call", range(1, 13))
@pytest.mark.fault(2)
def test_killed_while_one_of_that_step_is_replaced(tmp_path: Path, call: int) -> None:
    """It is the only one. The eighth call moves the old one away, the ninth moves the new one there."""
    commit(staged(tmp_path, 7, b"old and longer"))
    assert calls_until_killed(staged(tmp_path, 7, b"new"), call) == min(call, 11)
    assert [path.name for _, path in checkpoints_in(tmp_path)] == ([] if call == 9 else ["checkpoint-7"])
    flushed: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "flush", flushed.append)
        module.finish_commit(tmp_path)
    assert newest_weights(tmp_path) == (b"old and longer" if call <= 8 else b"new")
    assert call != 9 or flushed == [tmp_path]
    assert call <= 11 or [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]


def test_a_disk_that_refuses_the_new_one_leaves_the_old_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaning up after the error would remove the old one with the staging folder."""
    commit(staged(tmp_path, 7, b"old"))
    path, first, rename = staged(tmp_path, 7, b"new"), staged(tmp_path, 8), Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self in (path, first):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    for staging in (path, first):
        with pytest.raises(OSError, match="No space left"):
            commit(staging)
    module.clear_staging(tmp_path)
    assert newest_weights(tmp_path) == b"old"
    assert not (tmp_path / "checkpoint-8").exists()


def test_nothing_is_put_in_place_that_does_not_verify(tmp_path: Path) -> None:
    commit(staged(tmp_path, 7, b"old"))
    path = staged(tmp_path, 7, b"new")
    assert calls_until_killed(path, 9) == 9
    (path / "model.safetensors").write_bytes(b"cut")
    (path / "shards" / "0.bin").unlink()
    module.finish_commit(tmp_path)
    assert newest_weights(tmp_path) is None


OF_WEIGHTS = '{"files": {"model.safetensors": {"size": 7, "md5": ""}}}'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (MANIFEST, None, "no manifest.json in it"),
        (MANIFEST, '{"files": {"a', "its manifest.json cannot be read"),
        (MANIFEST, "[]", "its manifest.json cannot be read (ValueError)"),
        (MANIFEST, OF_WEIGHTS, "its manifest.json cannot be read (KeyError)"),
        ("shards/0.bin", None, "shards/0.bin is missing"),
        ("model.safetensors", "", "model.safetensors has 0 bytes and its manifest says 7"),
        ("model.safetensors", "Weights", "model.safetensors has changed since it was written (another xxh3_128)"),
    ],
)
@pytest.mark.fault(3)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    """And the newest one without a problem is taken."""
    old, path = whole(tmp_path, 6, 7)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_text(content)
    assert (problem_with(path) or "").startswith(problem)
    found, (skipped,) = newest_whole(tmp_path)
    assert (found, skipped) == (old, f"checkpoint-7: {problem_with(path)}")


def test_newer_ones_that_do_not_verify_are_named_newest_first(tmp_path: Path) -> None:
    _, good, cut_off, bare = whole(tmp_path, 4, 5, 6, 7)
    (cut_off / "model.safetensors").write_bytes(b"we")
    (bare / MANIFEST).unlink()
    found, skipped = newest_whole(tmp_path)
    assert found == good
    assert [one.partition(":")[0] for one in skipped] == ["checkpoint-7", "checkpoint-6"]


def test_flushing_leaves_no_file_open(place: Path) -> None:
    """A run flushes thousands of files, and a process may have a thousand open."""
    (place / "file").write_text("x")
    opened = len(os.listdir("/proc/self/fd"))
    for path in (place / "file", place):
        flush(path)
    assert len(os.listdir("/proc/self/fd")) == opened


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


@pytest.mark.parametrize("steps", [(), (3,), (2, 3)])
def test_a_full_disk(steps: tuple[int, ...], tmp_path: Path) -> None:
    """A run with several checkpoints may keep fewer; with one, that would free nothing."""
    for step in steps:
        (tmp_path / f"checkpoint-{step}").mkdir()
    run: Any = SimpleNamespace(path=tmp_path, last_checkpoint=lambda: tmp_path / "checkpoint-3" if steps else None)
    full, file = OSError(errno.ENOSPC, "No space left on device", f"{tmp_path}/a/b"), f"{tmp_path}/a/b"
    torch_s = RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")
    torch_s.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    in_words = RuntimeError("No space left on device (os error 28)")
    for error, place in ((full, file), (in_words, str(tmp_path)), (torch_s, str(tmp_path))):
        found = full_disk(run, error)
        assert isinstance(found, RunError)
        assert (found.where, "checkpoint-3" in str(found.advice)) == (place, bool(steps))
        assert ("save_total_limit=1" in str(found)) == (len(steps) > 1)
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


def test_a_whole_checkpoint_without_its_state_is_refused_unless_it_may_be_lost(tmp_path: Path) -> None:
    (tmp_path / "optimizer.pt").write_bytes(b"1")
    assert module.missing_state(tmp_path, may_lose=False) == [], "without a manifest it is not used at all"
    (tmp_path / MANIFEST).write_text("{}")
    lost = ["the learning rate's schedule", "the state of the random numbers"]
    assert module.missing_state(tmp_path, may_lose=True) == lost
    with pytest.raises(RunError) as caught:
        module.missing_state(tmp_path, may_lose=False)
    assert caught.value.where == str(tmp_path)
