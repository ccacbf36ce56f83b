"""Keeps checkpoints whole or not there: staged, hashed, renamed into place, and verified before one is used.

A checkpoint is written to `checkpoints/tmp-<step>/checkpoint-<step>`. When all of it is there its manifest is written,
everything is flushed to the disk, and the folder is renamed to `checkpoints/checkpoint-<step>`. So a process that is
killed at any moment leaves either no checkpoint of that step or one that verifies.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import shutil
from pathlib import Path

import xxhash

MANIFEST = "manifest.json"
_HASH = "xxh3_128"
"""Finds what a kill, a disk or a copy did to a file, at the speed of memory: SHA-256 takes twice as long as saving does
(docs/chaos.md). It keeps nobody out who means harm, and nor would any hash that lies beside what it is of.
"""
_HASHES = (_HASH, "sha256")
"""The names under which a manifest may have a hash; older ones have SHA-256."""
_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")
_STAGED = "tmp-*"
_REPLACED = "replaced"


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every folder entry with a checkpoint's name, the newest last, whether it is whole or not.

    Only names are read, so it is cheap enough for a status line.
    """
    checkpoints = [(int(match[1]), path) for path in folder.glob("*") if (match := _CHECKPOINT.match(path.name))]
    return sorted(checkpoints)


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint under `folder` that verifies, and a line for every newer one with what is wrong.

    The checkpoint is None where none verifies. Every byte of what is verified is read.
    """
    skipped: list[str] = []
    for _, path in reversed(checkpoints_in(folder)):
        problem = problem_with(path)
        if problem is None:
            return path, skipped
        skipped.append(f"{path.name}: {problem}")
    return None, skipped


def problem_with(checkpoint: Path) -> str | None:
    """Return why a checkpoint does not verify, None where every file is as its manifest says.

    A checkpoint without a manifest does not verify: nobody can say whether it was written to its end.
    """
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        listed = {name: (entry["size"], _kind(entry), entry[_kind(entry)]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"no {MANIFEST} in it"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__})"
    # All sizes before the first hash: a truncated file shows without reading gigabytes.
    for name, (size, _, _) in listed.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes and its manifest says {size}"
    for name, (_, kind, known) in listed.items():
        with (checkpoint / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, xxhash.xxh3_128 if kind == _HASH else kind)
            if digest.hexdigest() != known:
                return f"{name} is not what was written (another {kind})"
    return None


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Return where the checkpoint of `step` lies in `folder`, whether or not it is there: transformers' own name."""
    return folder / f"checkpoint-{step}"


def staging_place(folder: Path, step: int) -> Path:
    """Return the folder where the checkpoint of `step` is put together: `commit` takes the checkpoint inside it."""
    return folder / f"tmp-{step}"


def clear_staging(folder: Path) -> None:
    """Remove what earlier saves left unfinished."""
    for left_over in folder.glob(_STAGED):
        shutil.rmtree(left_over)


def commit(staged: Path) -> Path:
    """Make `tmp-<step>/checkpoint-<step>` a checkpoint and return its path; an older one of that name is replaced."""
    write_manifest(staged)
    place = staged.parent
    final = place.parent / staged.name
    if final.exists():
        # A folder cannot be renamed onto one that is not empty. Killed between the two renames, `finish_commit` makes
        # the second.
        final.rename(place / _REPLACED)
    try:
        staged.rename(final)
    except OSError:
        if not final.exists() and (place / _REPLACED).exists():
            (place / _REPLACED).rename(final)  # who removes what was staged would remove the older one with it
        raise
    flush(place.parent)
    shutil.rmtree(place)
    return final


def finish_commit(folder: Path) -> None:
    """Put in place what a process was about to when it was killed: the new checkpoint of a step, the older one gone.

    For whoever goes on with a run, while nobody else writes into `folder`.
    """
    for replaced in folder.glob(f"{_STAGED}/{_REPLACED}"):
        step = replaced.parent.name.partition("-")[2]
        staged, final = (checkpoint_folder(place, int(step)) for place in (replaced.parent, folder))
        if not final.exists() and problem_with(staged) is None:
            staged.rename(final)
            flush(folder)


def write_manifest(folder: Path) -> None:
    """Flush every file under `folder` to the disk and list their sizes and hashes in manifest.json, written last."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / MANIFEST)
    content = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, _HASH: _flushed_and_hashed(file)}
        for file in files
    }
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": content}, indent=2) + "\n", encoding="utf-8")
    flush(manifest)
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        flush(inner)
    flush(folder)


def _kind(entry: dict[str, object]) -> str:
    """Return the name of the hash that a file's entry has. Raises KeyError where it has none that is known."""
    return next((kind for kind in _HASHES if kind in entry), _HASH)


def _flushed_and_hashed(file: Path) -> str:
    """Flush a file that has just been written to the disk, and return its hash.

    It is read where it lies in the page cache: a copy of it would cost more than the hash. For a file from a disk that
    would not do, whose errors would come as a signal.
    """
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return xxhash.xxh3_128(content).hexdigest()
        except (ValueError, OSError):  # it is empty, or lies where nothing can be mapped
            return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def flush(path: Path) -> None:
    """Flush a file or a folder to the disk: a rename may reach it before the content it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
