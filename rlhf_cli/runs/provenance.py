"""Writes provenance.json: what it would take to make this run again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import rlhf_cli
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json

_WEIGHTS = ("*.safetensors", "*.bin")
_PACKAGES = ("torch", "trl", "transformers", "accelerate", "datasets", "peft", "hydra-core", "wandb")


def write_provenance(
    folder: RunFolder,
    *,
    choices: dict[str, str | None],
    overrides: list[str],
    seed: int,
    files: dict[str, Path],
    environment: dict[str, str] | None = None,
    made_by: dict[str, str] | None = None,
) -> None:
    """Write what the parent knows before the first rank starts.

    `choices` are the group options (exp, model, data, ...), `files` name -> file or folder whose content decides the
    result: reward code and data. `environment` are the variables that the configuration refers to, and by which to tell
    whether they have changed; `made_by` is what maker.py says of the maker.
    """
    content = {
        "command": shlex.join(["rlhf", *sys.argv[1:]]),
        "cwd": str(Path.cwd()),
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "choices": choices,
        "overrides": overrides,
        "seed": seed,
        **({"environment": environment} if environment else {}),
        **({"made_by": made_by} if made_by else {}),
        "versions": {"rlhf": rlhf_cli.__version__, "python": platform.python_version(), **_versions()},
        "host": {
            "name": socket.gethostname(),
            "platform": f"{platform.system()} {platform.release()}",
            "cpus": os.cpu_count(),
        },
        "git": git_state(Path.cwd()),
        "sha256": {"config": sha256(folder.config), **{name: sha256(path) for name, path in files.items()}},
    }
    write_json(folder.provenance, content)


def add_to_provenance(folder: RunFolder, **seen: object) -> None:
    """Add what only the worker sees: the world size, the devices, the dtype."""
    write_json(folder.provenance, {**read_json(folder.provenance), **seen})


def weights_hash(model: Path) -> str | None:
    """Return the hash of a model folder's weights alone; None where it is no folder or holds none.

    Two folders whose tokenizers, cards or configurations differ have the same where their weights are the same.
    """
    files = sorted(file for pattern in _WEIGHTS for file in model.glob(pattern))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        _update(digest, file)
    return digest.hexdigest() if files else None


def git_state(cwd: Path) -> dict[str, str | bool] | None:
    """Return the commit and whether the tree differs from it; None outside a repository or without git."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def sha256(path: Path) -> str | None:
    """Return the hash of a file's bytes, or of the names and bytes of a folder's files; None when there is neither."""
    digest = hashlib.sha256()
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:
        return None
    for file in files:
        if path.is_dir():
            digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0".encode())
        _update(digest, file)
    return digest.hexdigest()


def _update(digest: hashlib._Hash, file: Path) -> None:
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions
