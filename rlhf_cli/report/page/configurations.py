"""Describe how runs differ, what they have in common, and the commands and versions that produced them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rlhf_cli.comparison.logged_run import LoggedRun
from rlhf_cli.comparison.what_differs import axes, differences, value_text
from rlhf_cli.json_values import section
from rlhf_cli.redaction import HIDDEN, is_secret_key, redacted

_MOST_VALUES = 60


@dataclass(frozen=True)
class Difference:
    """A key in which runs differ. `values` maps each value as text -> the runs that have it.

    `follows` is the key that this one changes with, or '' if it changes by itself.
    """

    key: str
    values: dict[str, list[int]]
    follows: str


@dataclass(frozen=True)
class Configurations:
    """The configuration of several runs. `common` maps dotted key -> the shared value, as text."""

    differing: list[Difference]
    common: dict[str, str]


@dataclass(frozen=True)
class Origin:
    """An entry of provenance.json that some runs share. `runs` is None if all runs share it."""

    what: str
    says: str
    runs: list[int] | None


def configurations(runs: Sequence[LoggedRun]) -> Configurations:
    """Return the differing and the common keys. Secrets are hidden, as in every file that is written."""
    keys = differences(runs) if len(runs) > 1 else []
    heads = {key: axis.key for axis in (axes(runs) if len(runs) > 1 else []) for key in axis.others}
    differing = []
    for key in keys:
        values: dict[str, list[int]] = {}
        for place, run in enumerate(runs):
            values.setdefault(_shown(key, run.settings[key]) if key in run.settings else "(not set)", []).append(place)
        head = heads.get(key, key)
        differing.append(Difference(key, dict(list(values.items())[:_MOST_VALUES]), "" if head == key else head))
    first: Mapping[str, object] = runs[0].settings if runs else {}
    same = [key for key in first if all(key in run.settings and run.settings[key] == first[key] for run in runs)]
    return Configurations(differing, {key: _shown(key, first[key]) for key in same})


def origins(runs: Sequence[LoggedRun]) -> list[Origin]:
    """Return the commands, versions, commits, machines and starting models of the runs.

    List a value shared by all once.
    """
    asked: dict[str, Callable[[LoggedRun], object]] = {
        "command": lambda run: run.provenance.get("command"),
        "in folder": lambda run: run.provenance.get("cwd"),
        "resumed by": _resumed,
        "versions": lambda run: _pairs(section(run.provenance, "versions")),
        "git": _git,
        "machine": lambda run: _pairs(section(run.provenance, "host")),
        "device": lambda run: run.provenance.get("device"),
        "processes": lambda run: run.provenance.get("world_size"),
        "starting model": lambda run: run.starting_model,
        "hashes": lambda run: _pairs({k: v for k, v in section(run.provenance, "sha256").items() if k != "config"}),
    }
    found = []
    for what, of in asked.items():
        values: dict[str, list[int]] = {}
        for place, run in enumerate(runs):
            if (value := of(run)) not in (None, ""):
                values.setdefault(redacted(str(value)), []).append(place)
        for says, places in list(values.items())[:_MOST_VALUES]:
            found.append(Origin(what, says, None if len(places) == len(runs) else places))
    return found


def link_to(run: LoggedRun, out: Path) -> str | None:
    """Return a link from the page to the run's folder, or None if the run has no folder.

    The link is relative, so that both can be moved together. It begins with a dot, so that a folder name cannot be read
    as a URL.
    """
    if run.folder is None:
        return None
    relative = os.path.relpath(run.folder.path.resolve(), out.resolve().parent).replace(os.sep, "/")
    return quote(relative if relative.startswith(".") else f"./{relative}") + "/"


def _shown(key: str, value: object) -> str:
    """Return a value as text, with secrets hidden. A `${...}` reference is shown, because it holds no secret itself."""
    text = value_text(value)
    is_hidden = is_secret_key(key.rpartition(".")[2]) and isinstance(value, str) and not value.startswith("${")
    return HIDDEN if is_hidden and value else redacted(text)


def _pairs(tree: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in tree.items())


def _git(run: LoggedRun) -> str:
    git = section(run.provenance, "git")
    return f"{git.get('commit')}{', with changes' if git.get('dirty') else ''}" if git else ""


def _resumed(run: LoggedRun) -> str:
    resumed = run.provenance.get("resumed")
    commands = (
        [str(one.get("command")) for one in resumed if isinstance(one, dict)] if isinstance(resumed, list) else []
    )
    return "; ".join(commands)
