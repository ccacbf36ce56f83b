"""How a run without rewards went, as a person reads it."""

from __future__ import annotations

from rlhf_cli.display.run_end import learning
from tests.support.terminal import drawn


def test_start_end_and_change() -> None:
    events = [{"step": step, "loss": 1.0 / step, "eval_accuracy": 0.25 * step} for step in (1, 2)]
    table = learning(events)
    assert table is not None
    head, *rows = drawn(table)
    assert head.split() == ["measure", "start", "end", "change"]
    assert [row.split()[-3:] for row in rows] == [["1.000", "0.500", "-0.500"], ["0.250", "0.500", "+0.250"]]
    assert rows[0].startswith("loss")
    assert rows[1].startswith("accuracy, held out")


def test_nothing_logged() -> None:
    assert learning([]) is None
