"""Tables that do not fit the width: split into several, or turned if these would be many."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rlhf_cli.display.terminal import BlockColumn, cut_end, cut_middle, show_blocks, span
from tests.support.terminal import printed

WIDE = 20
"""Characters of a metric's name: with a gap, one fits beside the head in 30 columns, two in 50."""


def table(num_metrics: int, num_rows: int = 2, *, has_head: bool = True) -> list[BlockColumn]:
    names = [chr(ord("a") + row) for row in range(num_rows)]
    head = [BlockColumn("run", names, is_head=True, is_number=False), BlockColumn("n", ["2"] * num_rows, is_head=True)]
    metrics = [BlockColumn(f"m{number}".ljust(WIDE, "-"), [f"0.{number}"] * num_rows) for number in range(num_metrics)]
    return [*(head if has_head else ()), *metrics]


@pytest.mark.parametrize(
    ("columns", "width", "is_turned"),
    [
        (table(3), 30, False),  # three tables
        (table(4), 30, True),
        (table(6), 50, False),
        (table(7), 50, True),
        (table(4, num_rows=9), 30, False),  # turned, it would be too wide
        (table(4, has_head=False), 30, False),
    ],
)
def test_many_tables_of_few_rows_become_one(columns: list[BlockColumn], width: int, is_turned: bool) -> None:
    lines = printed(lambda console: show_blocks(console, columns), width)
    metrics = [column for column in columns if not column.is_head]
    assert all(sum(metric.title in line for line in lines) == 1 for metric in metrics)
    if is_turned:
        assert lines[0].split() == ["run", "a", "b"]
        assert [line.split() for line in lines[1:]] == [["n", "2", "2"], *([m.title, *m.cells] for m in metrics)]
    else:
        assert metrics[0].title in lines[0]


def test_a_dim_row_is_a_dim_column_of_a_turned_table() -> None:
    out = io.StringIO()
    console = Console(file=out, width=30, force_terminal=True, color_system="standard")
    show_blocks(console, table(4), ["", "dim"])
    (line,) = (line for line in out.getvalue().splitlines() if line.startswith("m3"))
    assert line.count("\x1b[2m0.3\x1b[0m") == 1
    assert line.count("0.3") == 2


@pytest.mark.parametrize(
    ("text", "end", "middle"),
    [("abcdefgh", "abcdef…", "abc…fgh"), ("中文很宽的", "中文很…", "中 … 的"), ("中文", "中文", "中文")],
)
def test_texts_are_cut_to_cells_and_a_wide_sign_has_two(text: str, end: str, middle: str) -> None:
    assert (cut_end(text, 7), cut_middle(text, 7)) == (end, middle)


def test_a_duration_is_rounded_before_its_unit_is_chosen() -> None:
    assert [span(span_s) for span_s in (59.7, 3599.9, 40.2, None)] == ["1 min", "1 h 0 min", "40 s", ""]
