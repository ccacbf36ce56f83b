"""A policy's evaluations while it trained, as a person reads them."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.display.run_end import held_out
from tests.support.terminal import drawn


def event(step: int, total: float | None, **more: float | None) -> dict[str, Any]:
    return {"step": step, "eval_greedy/total": total, **{f"eval_{name}": value for name, value in more.items()}}


def test_totals_attempts_and_truncation() -> None:
    first = event(5, 0.25, **{"greedy/total/low": 0.125, "greedy/total/high": 0.5, "sampled/total": 0.5})
    last = event(
        10, None, **{"sampled/truncated": 0.0625, "pass@1/right": 0.25, "pass@4/right": 0.75, "maj@4/right": 0.5}
    )
    table = held_out([{"step": 1, "loss": 0.5}, first, last], best_step=5)
    assert table is not None
    head, *rows = drawn(table)
    assert head.split() == ["held", "out", "greedy", "total", "sampled", "total", "pass@4", "right", "truncated"]
    assert rows[0].split() == ["step", "5", "best", "0.25", "[0.12,", "0.50]", "0.500", "-", "-"]
    assert rows[1].split() == ["step", "10", "-", "-", "0.750", "0.062"]


@pytest.mark.parametrize("best", [None, 1, 3])
def test_of_many_the_first_the_last_and_the_best(best: int | None) -> None:
    table = held_out([event(step, 0.5) for step in range(1, 24)], best)
    assert table is not None
    steps = [line[:12].strip() for line in drawn(table)[1:]]
    assert (steps[0].removesuffix(" best"), steps[-1]) == ("step 1", "step 23")
    assert len(steps) == (3 if best == 3 else 2)
    assert [step for step in steps if "best" in step] == ([f"step {best} best"] if best else [])


def test_without_an_evaluation_there_is_no_table() -> None:
    assert held_out([{"step": 1, "loss": 0.1}], None) is None
