"""Find configuration files: a folder is a group, a question that the user answers (`trainer`); a file is an option."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

APPENDED_GROUPS = ("exp", "sweep", "debug")
"""Groups outside the defaults list of train.yaml: they are appended, so that they override every default."""

_PACKAGE = Path(__file__).resolve().parents[1]

Groups = dict[str, dict[str, Path]]
"""Group name -> option name -> file."""


@cache
def shipped_dir() -> Path:
    """Return `conf/`: in the package of a wheel, beside it in a checkout. Raise FileNotFoundError if it is missing."""
    folder = _shipped("conf", "conf")
    if (folder / "train.yaml").is_file():
        return folder
    raise FileNotFoundError(f"no conf/train.yaml beside or inside {_PACKAGE}: the installation is incomplete")


def shipped_page(name: str) -> str:
    """Return the text of a page of docs/reference that the package reads. Raise FileNotFoundError without it."""
    return _shipped(name, f"docs/reference/{name}").read_text(encoding="utf-8")


def _shipped(inside: str, beside: str) -> Path:
    # An editable install leaves a stale copy in the package, so a checkout uses its own folder.
    is_checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    return _PACKAGE.parent / beside if is_checkout else _PACKAGE / inside


def search_dirs() -> list[Path]:
    """Return the user's `./conf`, unless it does not exist or is the shipped one, and the shipped folder."""
    user = Path.cwd() / "conf"
    is_theirs = user.is_dir() and user.resolve() != shipped_dir().resolve()
    return [user, shipped_dir()] if is_theirs else [shipped_dir()]


def find(config_path: str) -> Path | None:
    """Return the file for a config path such as `trainer/grpo`, or None."""
    files = (folder / f"{config_path}.yaml" for folder in search_dirs())
    return next((file for file in files if file.is_file()), None)


def groups() -> Groups:
    """Return all groups and options. The user's file overrides a shipped one of the same name."""
    options_by_group: Groups = {}
    for folder in reversed(search_dirs()):
        for root, _, files in os.walk(folder):
            group = Path(root).relative_to(folder).as_posix()
            if group == ".":
                continue
            for file in sorted(files):
                if file.endswith(".yaml"):
                    options_by_group.setdefault(group, {})[file.removesuffix(".yaml")] = Path(root, file)
    return dict(sorted(options_by_group.items()))


def caption(file: Path) -> str:
    """Return the first comment line of a configuration file, which `rlhf list` shows; '' without a comment."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.strip()
        if text.startswith("#") and not text.startswith("# @package"):
            return text.lstrip("# ").strip()
        if text and not text.startswith("#"):
            break
    return ""
