"""Test that docs/development/reliability.md lists the marked tests, and that every row has a test."""

from __future__ import annotations

from pathlib import Path

from scripts.reliability.__main__ import PAGE, ROOT
from scripts.reliability.marked_tests import MarkedTest, marked_tests
from scripts.reliability.page import KILLED, Fault, page, problems, read_faults

FAULTS = read_faults()
ROWS = [Fault(1, "Signals", "a kill", "it goes on"), Fault(2, "Signals", "a key", "asked")]


def test_every_row_has_a_test_every_test_a_row_and_the_page_is_up_to_date() -> None:
    """If the page is not: python -m scripts.reliability"""
    assert problems(FAULTS, marked_tests(ROOT)) == []
    assert [fault.number for fault in FAULTS] == list(range(1, len(FAULTS) + 1))
    assert PAGE.read_text(encoding="utf-8").partition(KILLED)[0] == page(FAULTS, marked_tests(ROOT))


def found_in(tmp_path: Path, text: str) -> list[tuple[int, str, str]]:
    file = tmp_path / "tests" / "room" / "test_planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return [(test.number, test.name, test.target) for test in marked_tests(tmp_path)]


def test_marks_of_functions_classes_parameters_and_files(tmp_path: Path) -> None:
    text = """
pytestmark = [pytest.mark.processes, pytest.mark.fault(9)]

@pytest.mark.fault(1, 2)
def test_two(): ...

@pytest.mark.fault(3)
class TestAll:
    @pytest.mark.parametrize("a", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.fault(4)])])
    def test_inside(self, a): ...

def helper(): ...
"""
    assert found_in(tmp_path, text) == [
        (1, "test_two", "test-processes"),
        (2, "test_two", "test-processes"),
        (3, "test_inside", "test-processes"),
        (4, "test_inside", "test-processes"),
        (9, "test_two", "test-processes"),
        (9, "test_inside", "test-processes"),
    ]


def test_negative_control_a_row_without_a_test_and_a_test_without_a_row() -> None:
    stray = MarkedTest(7, "tests/test_a.py", "test_a", "test")
    assert problems(ROWS, [stray, MarkedTest(1, "tests/test_b.py", "test_b", "test")]) == [
        "2 has no test: a key",
        "tests/test_a.py: test_a is of no row: 7",
    ]
