"""Where the time went and what is said of it: logs of a few events with shares that are planted."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.diagnosis.finding import Finding, Fine, Seen, Unseen
from rlhf_cli.diagnosis.logged import Log
from rlhf_cli.diagnosis.run_setup import RunSetup
from rlhf_cli.diagnosis.time_findings import time_spent

REWARDS = {"judge": {"args": {"max_concurrency": 8}}, "slow": {"fn": "./mine.py:slow"}, "rm": {"model": "run:a"}}


def seen(shares: dict[str, float], elapsed_s: float = 100.0, events: int = 5, **config: Any) -> list[Seen]:
    """What is said of so many log events of equal shares; what is left of the time is backward."""
    whole = {**shares, "backward": 1 - sum(shares.values())}
    event = {"loss": 1.0, "time/elapsed_s": elapsed_s, **{f"time/share/{key}": share for key, share in whole.items()}}
    log = Log.of([{"step": number, **event} for number in range(1, events + 1)])
    return list(time_spent(log, RunSetup.of({"rewards": REWARDS, **config})))


@pytest.mark.parametrize(
    ("shares", "config", "words"),
    [
        ({"reward/judge": 0.6}, {}, ["rewards.judge.args.max_concurrency=32", "rewards.judge.isolate=true"]),
        ({"reward/slow": 0.35}, {}, ["rewards.slow.isolate=true"]),
        ({"reward/rm": 0.35}, {}, ["rewards.rm.batch_size=64", "rewards.rm.dtype=bfloat16"]),
        ({"saving": 0.2}, {"trainer": {"args": {"save_steps": 50}}}, ["trainer.args.save_steps=200"]),
        ({"saving": 0.2}, {"trainer": {"args": {"save_steps": 0.1}}}, []),
        ({"logging": 0.12}, {}, ["trainer.args.logging_steps=3"]),
        ({"evaluation": 0.5}, {"trainer": {"args": {"eval_steps": 20}}}, ["trainer.args.eval_steps=200"]),
        (
            {"generation": 0.9},
            {"trainer": {"args": {"max_completion_length": 512}}, "launch": {"rollout": "hf", "device": "auto"}},
            ["launch.rollout=vllm", "trainer.args.max_completion_length=256"],
        ),
        (
            {"generation": 0.9},
            {"launch": {"rollout": "hf", "device": "cpu"}},
            ["trainer.args.max_completion_length=128"],
        ),
        ({"waiting": 0.3}, {}, ["profile=trace"]),
    ],
)
def test_what_takes_too_much_is_found_with_what_to_type(
    shares: dict[str, float], config: dict[str, Any], words: list[str]
) -> None:
    """A share of 0.2 that is to be 0.05 happens a quarter as often; 0.12 a third, rounded up; 0.5 a tenth."""
    (found,) = seen(shares, **config)
    ((key, share),) = shares.items()
    assert isinstance(found, Finding)
    assert (found.subject, found.severity) == (key, "note")
    assert f"{share:.0%} of the time" in found.what
    assert [change.words for change in found.changes] == words


@pytest.mark.parametrize("shares", [{"reward/slow": 0.2}, {"generation": 0.6}, {"saving": 0.05}, {"forward": 0.9}])
def test_negative_control_a_phase_that_is_worth_it_is_fine(shares: dict[str, float]) -> None:
    (fine,) = seen(shares)
    assert isinstance(fine, Fine)


def test_seconds_that_nobody_misses_are_fine() -> None:
    """60 % of 5 x 10 s are 30 s, below a minute; of 5 x 30 s they are more."""
    assert isinstance(seen({"reward/slow": 0.6}, elapsed_s=10.0)[0], Fine)
    assert isinstance(seen({"reward/slow": 0.6}, elapsed_s=30.0)[0], Finding)


def test_without_a_profile_and_after_two_events_nothing_can_be_said() -> None:
    assert isinstance(seen({"saving": 0.9}, events=2)[0], Unseen)
    (unseen,) = time_spent(Log.of([{"step": 1, "loss": 1.0}]), RunSetup())
    assert isinstance(unseen, Unseen)
    assert "profile=off" in unseen.why


def padded(ratio: float, trainer: str) -> list[Seen]:
    event = {"time/elapsed_s": 100.0, "time/share/forward": 0.4, "time/share/backward": 0.6}
    event |= {"passes/slots": 100.0 * ratio, "passes/tokens": 100.0, "passes/slots_per_token": ratio}
    log = Log.of([{"step": number, **event} for number in range(1, 5)])
    return list(time_spent(log, RunSetup(trainer=trainer)))


def test_padding_is_said_where_the_passes_take_the_time() -> None:
    """Of 2 slots a token one is padding: half."""
    (found,) = padded(2.0, "sft")
    assert isinstance(found, Finding)
    assert found.what.startswith("50% of the token slots")
    assert [change.words for change in found.changes] == ["trainer.args.packing=true"]
    assert isinstance(padded(1.2, "sft")[0], Fine)
    (elsewhere,) = padded(2.0, "dpo")
    assert isinstance(elsewhere, Finding)
    assert elsewhere.changes == ()
