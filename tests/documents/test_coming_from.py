"""Test that every name in docs/reference/coming-from.md exists: theirs in their sources, ours in the configuration."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.config import trl_args
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.project.key_reference import all_keys
from rlhf_cli.tables.trl_trainers import TRAINERS

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent / "names_of_others"
_CODE = re.compile(r"`([^`]+)`")


@cache
def rows() -> list[tuple[str, str, str]]:
    """(project, left cell, right cell) of every row."""
    found, project = [], ""
    for line in (ROOT / "docs" / "reference" / "coming-from.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            project = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 2:
            found.append((project, *cells))
    return found


@cache
def theirs(project: str) -> frozenset[str]:
    if project == "TRL":
        return frozenset(name for row in TRAINERS.values() for name in trl_args.fields_of(row.name))
    return frozenset((LISTS / f"{project.lower()}.txt").read_text(encoding="utf-8").split())


@cache
def our_keys() -> frozenset[str]:
    args = {f"trainer.args.{name}" for name in (*theirs("TRL"), *PpoArgs.model_fields)}
    return frozenset({key.key for key in all_keys()} | args)


def is_ours(word: str) -> bool:
    if word.startswith("rlhf "):
        verb, *rest = word.removeprefix("rlhf ").split()
        return verb in VERBS and (verb != "list" or rest[1] in groups()[rest[0]])
    key, _, value = word.partition("=")
    if key in groups() and value:
        return value in groups()[key]
    argument = key.removeprefix("trainer.args.")
    return key in our_keys() and (argument == key or argument not in RESERVED_ARGS)


def names(column: int) -> list[tuple[str, str]]:
    return [(row[0], name) for row in rows() for name in _CODE.findall(row[column])]


def test_theirs() -> None:
    assert {row[0] for row in rows()} == {"TRL", "verl", "OpenRLHF"}
    assert len(rows()) > 100
    assert [(project, name) for project, name in names(1) if name not in theirs(project)] == []


def test_ours() -> None:
    assert [name for name in sorted({name for _, name in names(2)}) if not is_ours(name)] == []


@pytest.mark.parametrize("name", ["trainer.args.bf16", "rewards.NAME.wieght", "trainer=grop", "rlhf resme", "sed"])
def test_negative_control(name: str) -> None:
    assert not is_ours(name)
