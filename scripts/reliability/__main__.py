"""Write docs/development/reliability.md and report faults without a test: python -m scripts.reliability"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.reliability.marked_tests import marked_tests
from scripts.reliability.page import KILLED, page, problems, read_faults

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "development" / "reliability.md"


def main() -> int:
    """Write the page; return 1 if a fault has no test or a test no fault."""
    faults, tests = read_faults(), marked_tests(ROOT)
    _, heading, killed = PAGE.read_text(encoding="utf-8").partition(KILLED)
    PAGE.write_text(page(faults, tests) + heading + killed, encoding="utf-8")
    wrong = problems(faults, tests)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(faults)} faults, {len(tests)} tests: {PAGE.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
