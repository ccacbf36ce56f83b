"""Writes docs/reliability.md: what goes wrong, what rlhf makes of it, and the tests that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scripts.reliability.marked_tests import MarkedTest

FAULTS = Path(__file__).with_name("faults.yaml")

_HEAD = """# What goes wrong, and what becomes of the run

Each row has a number, and each number at least one test that brings the fault about. `python -m scripts.reliability`
writes this page from `scripts/reliability/faults.yaml` and the tests that carry `@pytest.mark.fault(N)`; a test of the
house fails where the page is another, a row has no test or a test names no row. Tests run with `make test`, or with the
target that stands beside them. How often random kills and signals were survived is in [chaos.md](chaos.md).
"""


@dataclass(frozen=True)
class Fault:
    """A row: what goes wrong and what rlhf makes of it, under the heading `group`."""

    number: int
    group: str
    fault: str
    ours: str


def read_faults(file: Path = FAULTS) -> list[Fault]:
    """Return the rows in their order."""
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))
    return [
        Fault(number, group, row["fault"], row["ours"])
        for group, rows in groups.items()
        for number, row in rows.items()
    ]


def problems(faults: Sequence[Fault], tests: Sequence[MarkedTest]) -> list[str]:
    """Return what is wrong between rows and tests: a row nobody tests, a test of no row."""
    numbers = [fault.number for fault in faults]
    tested = {test.number for test in tests}
    untested = [f"{fault.number} has no test: {fault.fault}" for fault in faults if fault.number not in tested]
    strays = [f"{test.file}: {test.name} is of no row: {test.number}" for test in tests if test.number not in numbers]
    return untested + strays


def page(faults: Sequence[Fault], tests: Sequence[MarkedTest]) -> str:
    """Return the page."""
    lines = [_HEAD]
    for group in dict.fromkeys(fault.group for fault in faults):
        lines += [f"## {group}", "", "| # | what goes wrong | what becomes of it | tests |", "|---|---|---|---|"]
        for fault in faults:
            if fault.group == group:
                links = "<br>".join(_link(test) for test in tests if test.number == fault.number)
                lines.append(f"| {fault.number} | {fault.fault} | {fault.ours} | {links} |")
        lines.append("")
    return "\n".join(lines)


def _link(test: MarkedTest) -> str:
    beside = "" if test.target == "test" else f" (`make {test.target}`)"
    return f"[{test.words}](../{test.file}){beside}"
