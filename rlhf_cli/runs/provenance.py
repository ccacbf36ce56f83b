"""Write provenance.json and compare it: versions, hashes, seeds, who made the run."""

from __future__ import annotations

import contextlib
import functools
import getpass
import hashlib
import hmac
import importlib.metadata
import os
import platform
import re
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import rlhf_cli
from rlhf_cli.runs.run_folder import PENDING_CONFIG, RunFolder, read_json, write_json, write_text
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.user_files import cache_folder

_WEIGHTS = ("*.safetensors", "*.bin")
_NO_WEIGHTS = "training_args.bin"  # has paths of the run that saved the model, so it may differ for the same weights
_PACKAGES = ("torch", "trl", "transformers", "accelerate", "datasets", "peft", "hydra-core", "wandb")
_KEY_BYTES = 32
"""The user's key is in the cache folder and is created when first needed. A run's mark is the HMAC-SHA256 of what it
runs, submits and sends. It stays valid if the folder moves, on every machine that shares the cache, and becomes invalid
if any of this changes. User and host names are only displayed: anyone who packs a folder can write them.
"""


def write_provenance(folder: RunFolder, config: str, files: Mapping[str, Path], **asked: object) -> None:
    """Write what is known before the first rank starts; `files` (reward code and data) are hashed by their name.

    `config` is the text of the frozen configuration, which is written afterwards; `asked` are further keys and values.
    """
    cpus = Path("/proc/cpuinfo").read_text(errors="replace") if Path("/proc/cpuinfo").is_file() else ""
    named = re.search(r"^model name\s*: *(.+)$", cpus, re.MULTILINE)
    content = {
        "command": shlex.join(["rlhf", *sys.argv[1:]]),
        "cwd": str(Path.cwd()),
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **asked,
        "versions": versions(),
        "host": {
            "name": socket.gethostname(),
            "platform": f"{platform.system()} {platform.release()}",
            "cpus": os.cpu_count(),
            "processor": named[1] if named else platform.processor() or platform.machine(),
        },
        "git": git_state(Path.cwd()),
        "wandb_id": secrets.token_hex(5),
        "sha256": {"config": _hash_of(config), **{name: sha256(path) for name, path in files.items()}},
    }
    write_json(folder.provenance, content, durable=True)


def add_to_provenance(folder: RunFolder, **seen: object) -> None:
    """Add facts only the worker knows: the world size, the devices, the dtype."""
    write_json(folder.provenance, {**read_json(folder.provenance), **seen}, durable=True)


def note_files(folder: RunFolder, files: Mapping[str, Path]) -> None:
    """Add the hashes of files not yet in the provenance, such as code imported during training."""
    known = read_json(folder.provenance)
    noted = section(known, "sha256")
    if new := {name: sha256(path) for name, path in files.items() if name not in noted}:
        write_json(folder.provenance, {**known, "sha256": {**noted, **new}}, durable=True)


def rewrite_config(folder: RunFolder, content: str, *, files: Mapping[str, Path], note: JsonTree) -> None:
    """Replace the frozen configuration of a resumed run; append `note` to the list `resumed` of the provenance.

    A kill at any moment leaves a configuration whose hash is known.
    """
    known = read_json(folder.provenance)
    hashes = {**section(known, "sha256"), **{name: sha256(path) for name, path in files.items()}}
    to_be = _hash_of(content)
    write_json(folder.provenance, {**known, "sha256": {**hashes, PENDING_CONFIG: to_be}}, durable=True)
    write_text(folder.config, content, durable=True)
    before = known.get("resumed")
    entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": shlex.join(["rlhf", *sys.argv[1:]]), **note}
    resumed = [*(before if isinstance(before, list) else []), entry]
    write_json(folder.provenance, {**known, "sha256": {**hashes, "config": to_be}, "resumed": resumed}, durable=True)


def weights_hash(model: Path) -> str | None:
    """Return the hash of a folder's weights, without tokenizer, card and configuration; None if it has none."""
    found = (file for kind in _WEIGHTS for file in model.glob(kind) if file.is_file() and file.name != _NO_WEIGHTS)
    files = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(found))
    return _hash_of_weights(files) if files else None


@functools.cache
def _hash_of_weights(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Return the hash of weights of these sizes and times, which the jobs of a sweep share."""
    return _hash_of_files({f"{file.name}\0{size}\0": file for file, size, _ in files})


@functools.cache
def code_hash() -> str:
    """Return the hash of this package's own code: the version does not change during development."""
    package = Path(rlhf_cli.__file__).parent
    files = sorted(package.rglob("*.py"))
    return _hash_of_files({f"{file.relative_to(package).as_posix()}\0": file for file in files})


def git_state(cwd: Path) -> dict[str, str | bool] | None:
    """Return the commit and whether tracked files differ from it; None outside a repository or without git."""
    words = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines, head = done.stdout.splitlines(), "# branch.oid "
    commit = next((line.removeprefix(head) for line in lines if line.startswith(head)), "(initial)")
    if commit == "(initial)":
        return None
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}


def sha256(path: Path) -> str | None:
    """Return the hash of a file, of a folder's weights, or of the names and contents of all its files; None without."""
    if path.is_file():
        return _hash_of_files({"": path})
    if not path.is_dir():
        return None
    if (weights := weights_hash(path)) is not None:
        return weights
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return _hash_of_files({f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0": file for file in files})


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_of_files(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for heading, file in files.items():
        digest.update(heading.encode())
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


@functools.cache
def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the training libraries, None for those that are not installed."""
    of_packages = {package: version_of(package) for package in _PACKAGES}
    return {"rlhf": rlhf_cli.__version__, "python": platform.python_version(), **of_packages}


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def other_versions(folder: RunFolder) -> str | None:
    """Return `torch 2.12.0 -> 2.13.0, ...` for packages whose version is not the one the run began with, else None."""
    begun = section(read_json(folder.provenance), "versions")
    changed = {name: now for name, now in versions().items() if name in begun and begun[name] != now}
    return ", ".join(f"{name} {begun[name]} -> {now}" for name, now in changed.items()) or None


def made_by(code: Sequence[str]) -> dict[str, str]:
    """Return the maker's entry for provenance.json; without a mark if there is no code or no key."""
    maker = {"user": str(os.getuid())}
    with contextlib.suppress(OSError, KeyError):  # a container's user may have no name
        maker["user"] = getpass.getuser()
    key = _key(create=True) if code else None
    return {**maker, "mark": _mark(key, code)} if key is not None else maker


def is_made_by_us(record: Path, code: Sequence[str]) -> bool:
    """Return whether the mark in a provenance.json or sweep.json is of this user's key and exactly this code."""
    mark, key = section(read_json(record), "made_by").get("mark"), _key(create=False)
    return key is not None and isinstance(mark, str) and hmac.compare_digest(mark.encode(), _mark(key, code).encode())


def _mark(key: bytes, code: Sequence[str]) -> str:
    return hmac.new(key, "\0".join(sorted(code)).encode(), hashlib.sha256).hexdigest()


def _key(*, create: bool) -> bytes | None:
    """Return this user's key, or None if it is missing, owned by another user, or cannot be written."""
    file = cache_folder("maker") / f"key-{os.getuid()}"
    with contextlib.suppress(OSError):
        if create and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_name(f".{file.name}.{os.getpid()}")
            temporary.touch(0o600)
            temporary.write_bytes(secrets.token_bytes(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):  # another process was faster: its key is used then
                os.link(temporary, file)
            temporary.unlink()
        if file.stat().st_uid == os.getuid():
            return file.read_bytes()
    return None
