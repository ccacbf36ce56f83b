"""Headers of tables stay whole on a terminal of 80 columns, however long the rewards' names are."""

from __future__ import annotations

import pytest

from rlhf_cli.analysis.audit.tried_rows import TriedAnswer
from rlhf_cli.display.evaluation_tables import show_best_of_n
from rlhf_cli.display.row_tables import answers_table
from rlhf_cli.display.run_end import held_out
from rlhf_cli.display.sweep_tables import JobRow, SweepRows, sweep_table
from rlhf_cli.measure.best_of_n import BestOfK, BestOfN
from rlhf_cli.numerics.intervals import Estimate
from tests.support.terminal import drawn, printed

NAMES = [f"a_reward_of_a_long_name_{letter}" for letter in "abcd"]
HALF = Estimate(0.5, 0.4, 0.6, 8)


def test_of_the_best_of_n() -> None:
    curve = [BestOfK(k, HALF, dict.fromkeys(NAMES, HALF), HALF, 0.1) for k in (1, 2)]
    lines = printed(lambda console: show_best_of_n(console, BestOfN("total", curve, 8, 0)))
    assert all(any(name in line for line in lines) for name in NAMES)
    assert "…" not in "\n".join(lines)


def test_of_held_out_attempts() -> None:
    event = {"step": 1, "eval_greedy/total": 0.5, **{f"eval_pass@4/{name}": 0.5 for name in NAMES}}
    table = held_out([event], None)  # type: ignore[list-item]
    assert table is not None
    assert "…" not in "\n".join(drawn(table))


def test_of_tried_answers() -> None:
    answer = TriedAnswer("gold", "32", 1.0, dict.fromkeys(NAMES, 1.0), {})
    assert "…" not in "\n".join(drawn(answers_table([answer])))


@pytest.mark.parametrize(
    ("metric", "shown"),
    [("rewards/an_exact_answer/mean", "an_exact_answer"), ("completions/mean_length", "completions/mean_length")],
)
def test_of_a_sweep(metric: str, shown: str) -> None:
    rows = SweepRows([JobRow("weight=0.5,seed=1", "running", 7, 25, (1.0, 2.0), 9.0)], metric, 60.0, 60.0)
    head, *_ = drawn(sweep_table(rows, height=12, width=80))
    assert head.split() == ["run", "state", "step", shown, "left"]
