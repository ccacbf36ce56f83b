"""Tables that do not fit the width, and texts cut to it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rlhf_cli.display.terminal import cut_end, cut_middle, show_blocks, span
from tests.support.terminal import printed


def test_a_table_too_wide_is_split_and_each_part_repeats_the_heads() -> None:
    """Of three columns of 20, one fits beside the heads in 30 columns. One name may be a head and a column."""
    metrics = [(name.ljust(20, "-"), ["0.1", "0.2"]) for name in ("run", "b", "c")]
    heads = [("run", ["1-1", "long name"]), ("n", ["2", "10"])]
    lines = printed(lambda console: show_blocks(console, heads, metrics), 40)
    assert lines[:4] == [
        f"run         n  {metrics[0][0]}",
        f"1-1         2  {'0.1':>20}",
        f"long name  10  {'0.2':>20}",
        "",
    ]
    assert [line for line in lines if line.startswith("run")] == [f"run         n  {title}" for title, _ in metrics]


def test_a_row_may_be_dim() -> None:
    out = io.StringIO()
    console = Console(file=out, width=30, force_terminal=True, color_system="standard")
    show_blocks(console, [("run", ["a", "b"])], [("m", ["0.1", "0.3"])], ["", "dim"])
    assert "\x1b[2m0.3" in out.getvalue()
    assert "\x1b[2m0.1" not in out.getvalue()


@pytest.mark.parametrize(
    ("text", "end", "middle"),
    [("abcdefgh", "abcdef…", "abc…fgh"), ("中文很宽的", "中文很…", "中 … 的"), ("中文", "中文", "中文")],
)
def test_texts_are_cut_to_cells_and_a_wide_sign_has_two(text: str, end: str, middle: str) -> None:
    assert (cut_end(text, 7), cut_middle(text, 7)) == (end, middle)


def test_a_duration_is_rounded_before_its_unit_is_chosen() -> None:
    texts = {59.7: "1 min", 3599.9: "1 h 0 min", 40.2: "40 s", 187_300.0: "2 d 4 h", None: ""}
    assert {span_s: span(span_s) for span_s in texts} == texts
