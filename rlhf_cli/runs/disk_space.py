"""Recognise errors from a full disk, and report how much space was needed."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from rich.filesize import decimal as size

from rlhf_cli.errors import RlhfError, RunError, message_of, with_causes
from rlhf_cli.runs.run_folder import RunFolder

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IN_WORDS = re.compile(rf"\(os error ({'|'.join(str(number) for number in _FULL)})\)")
"""safetensors reports the OS error number, and raises no OSError."""
_OF_TORCH = re.compile("PytorchStreamWriter failed|inline_container|iostream error")
"""torch reports that a writer or a stream failed, in words about its own code."""
_BLOCK = 512
"""Bytes per block in stat(2), regardless of the file system's block size."""


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
    wanted = "more than there is" if needed is None else f"at least {needed} bytes ({size(needed)})"
    what = "the file is larger than the limit allows" if is_limit else "the disk is full"
    got = f"{free} bytes ({size(free)}) free; {said.splitlines()[0]}"
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
