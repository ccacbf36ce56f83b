"""The table of where the time went, of log events written by hand."""

from __future__ import annotations

from rlhf_cli.screen.time_table import time_went
from tests.support.terminal import printed


def lines(*events: dict[str, float]) -> list[str]:
    table = time_went([{"step": number, **event} for number, event in enumerate(events, 1)])
    return [] if table is None else [line.rstrip() for line in printed(lambda console: console.print(table))]


def test_the_longest_first_with_shares_that_sum_up_and_what_is_small_in_one_line() -> None:
    """120 s and 80 s: a reward 60 + 60, generation 60 + 16, saving 2, the rest 2; a share of 0.01 each."""
    first = {"time/elapsed_s": 120.0, "time/share/generation": 0.5, "time/share/reward/judge": 0.5}
    second = {"time/elapsed_s": 80.0, "time/share/generation": 0.2, "time/share/reward/judge": 0.75}
    more = {"time/share/saving": 0.025, "time/share/rest": 0.025, "passes/slots": 300.0, "passes/tokens": 200.0}
    said = lines({**first, "time/share/saving": 0.0, "time/share/rest": 0.0}, {**second, **more})
    assert said == [
        "where 3 min of training went",
        "reward judge  60%  2 min  ████████████████████████",
        "generation    38%  1 min  ███████████████",
        "2 more         2%    4 s",
        "1.50 token slots were computed for each real token",
    ]


def test_a_run_that_timed_nothing_has_none() -> None:
    assert lines({"loss": 1.0}) == []
