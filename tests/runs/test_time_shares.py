"""What log events say together of where the time went, against sums made by hand."""

from __future__ import annotations

import pytest

from rlhf_cli.runs.time_shares import phase_label, time_shares

EVENTS = {
    "time/elapsed_s": [10.0, 30.0],
    "time/share/generation": [0.5, 0.1],
    "time/share/rest": [0.5, 0.9],
}


def of(events: dict[str, list[float]]):
    return time_shares(events, lambda name: events.get(name, []))


def test_an_event_of_more_seconds_weighs_more() -> None:
    """5 s and 3 s of generation in 40 s: 0.2, not the mean of the shares, 0.3."""
    shares = of(EVENTS)
    assert shares is not None
    assert shares.elapsed_s == 40.0
    assert shares.shares == {"rest": pytest.approx(0.8), "generation": pytest.approx(0.2)}
    assert list(shares.shares) == ["rest", "generation"]
    assert shares.seconds("generation") == pytest.approx(8.0)
    assert shares.seconds("saving") == 0.0


def test_what_only_the_last_events_have_took_nothing_before() -> None:
    shares = of({**EVENTS, "time/share/waiting": [0.2]})
    assert shares is not None
    assert shares.seconds("waiting") == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("key", "label"),
    [("reference_logps", "reference log-probabilities"), ("reward/judge", "reward judge"), ("of another version",) * 2],
)
def test_phases_and_rewards_have_labels(key: str, label: str) -> None:
    assert phase_label(key) == label
