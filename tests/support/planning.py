"""What `rlhf check` does, and a look at whether it wrote anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError
from rlhf_cli.launch.freeze import existing_run
from rlhf_cli.plan.checks.facts import Check, Report, Subject
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.run_plan import Plan
from tests.support.suggestions import WRONG, useless

Write = Callable[[str, str], Path]
Refused = Callable[..., UserError]
Judged = Callable[..., Experiment]
ROWS = "".join(json.dumps({"prompt": f"{a}+1=", "a": a, "b": 1}) + "\n" for a in range(20))
MINE = ("exp=quickstart", "data=file", "data.path=rows.jsonl")


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder with its size and time."""
    found = {path.relative_to(folder).as_posix(): path.stat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def planned(*words: str) -> Plan:
    """What `rlhf check` does with these words; the folder is afterwards as it was before."""
    before = listing(Path.cwd())
    try:
        return _planned(list(words))
    except UserError as error:
        WRONG.extend(useless(list(words), error, _planned))
        raise
    finally:
        assert listing(Path.cwd()) == before, "something was written"


def _planned(words: list[str]) -> Plan:
    prepared = prepare(words, keep_run_names=True)
    composed, experiment = prepared.composed, prepared.experiment
    plan = preflight(experiment, composed)
    existing_run(experiment, composed)
    return plan


def subject_of(*words: str, processes: int = 1) -> Subject:
    """The experiment that these words describe, as the checks take it."""
    prepared = prepare(list(words), keep_run_names=True)
    return Subject(prepared.experiment, prepared.composed, processes)


def _typed(error: UserError) -> str | None:
    return "; ".join(text for text in (error.hint, error.advice) if text is not None) or None


def told(findings: Check[Any]) -> list[tuple[object, ...]]:
    """Of each error its key, what it got, what it expected, what to do; of each notice its subject and its text."""
    report = Report()
    report.run(findings, None)
    errors = [
        (str(one.where).partition(" (")[0], one.got, one.expected, _typed(one)) for one in report.problems.values()
    ]
    return [*((notice.subject, notice.text) for notice in report.notices), *errors]


def unsaid(found: list[tuple[object, ...]], parts: str) -> list[str]:
    """Of the one finding, the parts (set apart by ` / `) that it does not say; without parts the list is empty.

    Its text has two blanks between the parts, and ends in END.
    """
    assert len(found) == bool(parts), found
    said = "  ".join([*map(str, found[0]), "END"]) if found else ""
    return [part for part in parts.split(" / ") if part not in said]


def table(text: str, **short: str) -> list[list[str]]:
    """The cells of a table, with these short forms written out; `A.` is for trainer.args."""
    for name, meant in short.items():
        text = text.replace(name, meant)
    return [
        [cell.strip().replace("A.", "trainer.args.") for cell in line.split("|")] for line in text.strip().split("\n")
    ]
