"""The line of where the time went, of log events written by hand."""

from __future__ import annotations

from rlhf_cli.display.run_end import time_line


def said(*events: dict[str, float]) -> str | None:
    line = time_line([{"step": number, **event} for number, event in enumerate(events, 1)])
    return None if line is None else line.plain


def test_the_longest_first_with_shares_that_sum_up_and_the_smallest_together() -> None:
    """120 s and 80 s: a reward 60 + 60, generation 60 + 16, saving 2, the rest 2 and 0: 60, 38 and 1 % of 200 s."""
    first = {"time/elapsed_s": 120.0, "time/share/generation": 0.5, "time/share/reward/judge": 0.5}
    second = {"time/elapsed_s": 80.0, "time/share/generation": 0.2, "time/share/reward/judge": 0.75}
    more = {"time/share/saving": 0.025, "time/share/rest": 0.025}
    whole = said({**first, "time/share/saving": 0.0, "time/share/rest": 0.0}, {**second, **more})
    assert whole is not None
    assert whole.startswith("time 3 min: reward judge 60%, generation 38%, ")
    many = {f"time/share/reward/{name}": 0.1 for name in "abcde"}
    assert said({"time/elapsed_s": 4.0, "time/share/generation": 0.5, **many}) == (
        "time 4 s: generation 50%, reward a 10%, reward b 10%, 3 more 30%"
    )


def test_a_run_that_timed_nothing_has_none() -> None:
    assert said({"loss": 1.0}) is None
