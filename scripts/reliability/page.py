"""Write docs/development/reliability.md: faults, what rlhf does about each, and the tests that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scripts.reliability.marked_tests import MarkedTest

FAULTS = Path(__file__).with_name("faults.yaml")
KILLED = "## Runs killed at random moments\n"
"""The heading of the part of the page that `make chaos` writes."""

_HEAD = """# Faults, and what happens to the run

Each row has at least one test that causes the fault. `python -m scripts.reliability` writes this page from
`scripts/reliability/faults.yaml` and the tests marked `@pytest.mark.fault(N)`. Another test fails if the page is out of
date or a row has no test. The tests run with `make test`, or with the target beside them. The
[last section](#runs-killed-at-random-moments) shows how often runs survived random kills and signals.
"""


@dataclass(frozen=True)
class Fault:
    """A row below the heading `group`: a fault and what rlhf does about it."""

    number: int
    group: str
    fault: str
    ours: str


def read_faults(file: Path = FAULTS) -> list[Fault]:
    """Return the rows in order."""
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))
    return [
        Fault(number, group, row["fault"], row["ours"])
        for group, rows in groups.items()
        for number, row in rows.items()
    ]


def problems(faults: Sequence[Fault], tests: Sequence[MarkedTest]) -> list[str]:
    """Return rows without a test and tests without a row."""
    numbers = [fault.number for fault in faults]
    tested = {test.number for test in tests}
    untested = [f"{fault.number} has no test: {fault.fault}" for fault in faults if fault.number not in tested]
    strays = [f"{test.file}: {test.name} is of no row: {test.number}" for test in tests if test.number not in numbers]
    return untested + strays


def page(faults: Sequence[Fault], tests: Sequence[MarkedTest]) -> str:
    """Return the page."""
    lines = [_HEAD]
    for group in dict.fromkeys(fault.group for fault in faults):
        lines += [f"## {group}", "", "| # | fault | what rlhf does | tests |", "|---|---|---|---|"]
        for fault in faults:
            if fault.group == group:
                links = ", ".join(dict.fromkeys(_link(test) for test in tests if test.number == fault.number))
                lines.append(f"| {fault.number} | {fault.fault} | {fault.ours} | {links} |")
        lines.append("")
    return "\n".join([*lines, ""])


def _link(test: MarkedTest) -> str:
    beside = "" if test.target == "test" else f" (`make {test.target}`)"
    return f"[{Path(test.file).stem.removeprefix('test_')}](../../{test.file}){beside}"
