"""Write checkpoints whole or not at all, verify them, and say what a full disk lacks.

A checkpoint is written to `checkpoints/tmp-<step>/checkpoint-<step>`. When it is complete, its manifest is written,
everything is flushed to disk, and the folder is renamed to `checkpoints/checkpoint-<step>`. A process that is killed at
any moment therefore leaves either no checkpoint for that step or one that verifies.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import xxhash
from rich import filesize

from rlhf_cli.errors import RlhfError, RunError, message_of, with_causes
from rlhf_cli.runs.run_folder import RunFolder, checkpoint_folder, checkpoints_in, flush
from rlhf_cli.text.regular_files import read_object

MANIFEST = "manifest.json"
_HASH = "xxh3_128"
"""Detects damage by a kill, a disk or a copy at memory speed; SHA-256 would take twice as long as saving itself
(docs/development/reliability.md). It does not protect against tampering: no hash stored beside its file can.
"""
_STAGED = "tmp-*"
_REPLACED = "replaced"
_STATE = {  # part of the state -> its file names by transformers, FSDP and DeepSpeed; one match is enough
    "the optimizer's state": ("optimizer.pt", "optimizer.bin", "optimizer*/", "global_step*/", "rank*-optimizer.pt"),
    "the learning rate's schedule": ("scheduler.pt",),
    "the state of the random numbers": ("rng_state*.pth",),
}

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IN_WORDS = re.compile(rf"\(os error ({'|'.join(map(str, _FULL))})\)")  # safetensors raises no OSError
_OF_TORCH = re.compile("PytorchStreamWriter failed|inline_container|iostream error")  # of torch's own code
_BLOCK = 512  # bytes per block in stat(2), regardless of the file system's block size


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that verifies (or None), and a line per newer one that does not."""
    skipped: list[str] = []
    for _, path in reversed(checkpoints_in(folder)):
        problem = problem_with(path)
        if problem is None:
            return path, skipped
        skipped.append(f"{path.name}: {problem}")
    return None, skipped


def problem_with(checkpoint: Path) -> str | None:
    """Return why a checkpoint does not verify, or None; without a manifest it may be incomplete."""
    try:
        files = cast(Mapping[str, Mapping[str, object]], read_object(checkpoint / MANIFEST)["files"])
        listed = {name: (entry["size"], entry[_HASH]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"no {MANIFEST} in it"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__})"
    for name, (size, _) in listed.items():  # all sizes before the first hash: a truncated file is found soon
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes and its manifest says {size}"
    for name, (_, known) in listed.items():
        if _hash_of(checkpoint / name) != known:
            return f"{name} has changed since it was written (another {_HASH})"
    return None


def staging_place(folder: Path, step: int) -> Path:
    """Return the folder in which the checkpoint of `step` is staged; pass the checkpoint inside it to `commit`."""
    return folder / f"tmp-{step}"


def clear_staging(folder: Path) -> None:
    """Remove unfinished checkpoints of earlier saves."""
    for left_over in folder.glob(_STAGED):
        shutil.rmtree(left_over)


def commit(staged: Path) -> Path:
    """Move `tmp-<step>/checkpoint-<step>` into place, replacing an older one of that step, and return its path."""
    write_manifest(staged)
    place = staged.parent
    final = place.parent / staged.name
    if final.exists():
        # A rename needs an empty place. After a kill between the two renames, `finish_commit` makes the second one.
        final.rename(place / _REPLACED)
    try:
        staged.rename(final)
    except OSError:
        if not final.exists() and (place / _REPLACED).exists():
            (place / _REPLACED).rename(final)  # cleaning up the staging folder would otherwise remove the older one too
        raise
    flush(place.parent)
    shutil.rmtree(place)
    return final


def finish_commit(folder: Path) -> None:
    """Move a checkpoint into place whose `commit` a kill interrupted; no other process may write into `folder`."""
    for replaced in folder.glob(f"{_STAGED}/{_REPLACED}"):
        step = replaced.parent.name.partition("-")[2]
        staged, final = (checkpoint_folder(place, int(step)) for place in (replaced.parent, folder))
        if not final.exists() and problem_with(staged) is None:
            staged.rename(final)
            flush(folder)


def write_manifest(folder: Path) -> None:
    """Flush every file under `folder` to disk, then write their sizes and hashes to manifest.json."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / MANIFEST)
    for file in files:
        flush(file)
    content = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, _HASH: _hash_of(file)} for file in files
    }
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": content}, indent=2) + "\n", encoding="utf-8")
    flush(manifest)
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        flush(inner)
    flush(folder)


def _hash_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def missing_state(checkpoint: Path, *, may_lose: bool) -> list[str]:
    """Return which parts of the state a checkpoint lacks, by file names; raise RunError unless it `may_lose` them."""
    if not (checkpoint / MANIFEST).is_file():
        return []  # it does not verify, so an older one will be used
    missing = [what for what, names in _STATE.items() if not any(any(checkpoint.glob(name)) for name in names)]
    if missing and not may_lose:
        what = f"the checkpoint lacks {' and '.join(missing)}, so the run cannot continue exactly"
        expected = "a checkpoint written with trainer.args.save_only_model=false, and all of its files"
        advice = "run.resume_weights_only=true keeps the weights; optimizer, schedule and random numbers start again"
        raise RunError(what, where=str(checkpoint), expected=expected, advice=advice)
    return missing


def is_full(error: BaseException) -> bool:
    """Return whether an error or one of its causes means a full disk, an exceeded quota or a file size limit."""
    return any(
        getattr(one, "errno", None) in _FULL or _IN_WORDS.search(text) or _OF_TORCH.search(text)
        for one in with_causes(error)
        for text in (message_of(one),)
    )


def no_room(path: Path, *, needed: int | None, kept: Path | None, error: BaseException) -> RunError:
    """Return the error with the bytes needed (None: unknown) and free, and the newest checkpoint `kept`."""
    free = free_bytes(path)
    is_limit = getattr(error, "errno", None) == errno.EFBIG or f"(os error {errno.EFBIG})" in message_of(error)
    are_others = kept is not None and len([*kept.parent.glob("checkpoint-*")]) > 1
    texts = [message_of(one) or type(one).__name__ for one in with_causes(error)]
    said = next((text for text in texts if not _OF_TORCH.search(text)), "torch could not write all of the file")
    wanted = "more than there is" if needed is None else f"at least {needed} bytes ({filesize.decimal(needed)})"
    what = "the file is larger than the limit allows" if is_limit else "the disk is full"
    got = f"{free} bytes ({filesize.decimal(free)}) free; {said.splitlines()[0]}"
    expected = f"{wanted} for the file, which was removed again"
    advice = "make room, then `rlhf resume`"
    advice += f": {kept.name} is complete, and the run continues from it" if kept is not None else ""
    advice += "; trainer.args.save_total_limit=1 keeps one checkpoint" if are_others else ""
    return RunError(what, where=str(path), got=got, expected=expected, advice=advice)


def full_disk(run: RunFolder, error: Exception) -> RunError | None:
    """Return the error with advice if a run's `error` means a full disk, else None."""
    if isinstance(error, RlhfError) or not is_full(error):
        return None
    named = error.filename if isinstance(error, OSError) else None
    path = Path(named) if isinstance(named, str) else run.path
    return no_room(path, needed=None, kept=run.last_checkpoint(), error=error)


def free_bytes(path: Path) -> int:
    """Return the free bytes at a path that need not exist yet; quotas are ignored."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def bytes_below(folder: Path) -> int:
    """Return the disk usage of all files below a folder, or 0 if it does not exist."""
    stats = [file.stat() for file in folder.rglob("*") if file.is_file()]
    return sum(max(stat.st_size, getattr(stat, "st_blocks", 0) * _BLOCK) for stat in stats)
