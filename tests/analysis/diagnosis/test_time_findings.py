"""Findings on the time of phases, from logs with planted shares."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.analysis.diagnosis import run_diagnosis
from rlhf_cli.analysis.diagnosis.logged import CheckResult, Finding, Log, PassedCheck, RunSetup, SkippedCheck
from rlhf_cli.analysis.diagnosis.run_diagnosis import run_check
from rlhf_cli.display.run_tables import time_line

RM = {"model": "run:a"}
REWARDS = {"judge": {"args": {"max_concurrency": 8}}, "slow": {"fn": "./mine.py:slow"}, "rm": RM}
APART = {"apart": {"fn": "./mine.py:slow", "isolate": True}, "world": {"environment": "get_reward"}}


def seen(shares: dict[str, float], elapsed_s: float = 100.0, events: int = 5, **config: Any) -> list[CheckResult]:
    """Return the results for `events` log events with these shares; the rest of the time is backward."""
    whole = {**shares, "backward": 1 - sum(shares.values())}
    event = {"loss": 1.0, "time/elapsed_s": elapsed_s, **{f"time/share/{key}": share for key, share in whole.items()}}
    log = Log.of([{"step": number, **event} for number in range(1, events + 1)])
    return run_check("time", log, RunSetup.of({"rewards": REWARDS, **config}))


@pytest.mark.parametrize(
    ("shares", "config", "words"),
    [
        ({"reward/judge": 0.6}, {}, ["rewards.judge.args.max_concurrency=32"]),
        ({"reward/slow": 0.35}, {}, ["rewards.slow.isolate=true"]),
        *(({f"reward/{name}": 0.35}, {"rewards": APART}, []) for name in APART),
        ({"reward/rm": 0.35}, {}, ["rewards.rm.batch_size=64", "rewards.rm.dtype=bfloat16"]),
        ({"saving": 0.2}, {"trainer": {"args": {"save_steps": 50}}}, ["trainer.args.save_steps=200"]),
        ({"saving": 0.2}, {"trainer": {"args": {"save_steps": 0.1}}}, []),
        ({"saving": 0.2}, {"trainer": {"args": {"save_steps": 50, "save_strategy": "epoch"}}}, []),
        ({"reward/rm": 0.35}, {"rewards": {"rm": {**RM, "dtype": "bfloat16"}}}, ["rewards.rm.batch_size=64"]),
        ({"logging": 0.12}, {}, ["trainer.args.logging_steps=3"]),
        ({"evaluation": 0.5}, {"trainer": {"args": {"eval_steps": 20}}}, ["trainer.args.eval_steps=200"]),
        (
            {"generation": 0.9},
            {"trainer": {"args": {"max_completion_length": 512}}, "launch": {"rollout": "hf", "device": "auto"}},
            ["launch.rollout=vllm", "trainer.args.max_completion_length=256"],
        ),
        ({"waiting": 0.3}, {}, ["trainer.args.max_completion_length=128"]),
    ],
)
def test_a_slow_phase_has_advice(
    shares: dict[str, float], config: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of 0.2 that is to be 0.05 happens a quarter as often; 0.12 a third, rounded up; 0.5 a tenth."""
    monkeypatch.setattr(run_diagnosis, "visible_gpus", lambda: ("0",))
    monkeypatch.setattr(run_diagnosis, "version_of", lambda package: "0.28.0")
    (found,) = seen(shares, **config)
    ((key, share),) = shares.items()
    assert (found.subject, found.severity) == (key, "note")
    assert f"{share:.0%} of the time" in found.what
    assert [change.words for change in found.changes] == words


def test_no_advice_for_vllm_where_check_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, version, launch, model in (
        *(((), "0.28.0", {}, {}), (("0",), None, {}, {}), (("0",), "0.28.0", {"device": "cpu"}, {})),
        *((("0",), "0.28.0", {"rollout": "vllm"}, {}), (("0",), "0.28.0", {}, {"build": {}})),
    ):
        monkeypatch.setattr(run_diagnosis, "visible_gpus", lambda gpus=gpus: gpus)
        monkeypatch.setattr(run_diagnosis, "version_of", lambda package, version=version: version)
        (found,) = seen({"generation": 0.9}, launch={"rollout": "hf", "device": "auto", **launch}, model=model)
        assert [change.words for change in found.changes] == ["trainer.args.max_completion_length=128"], launch


@pytest.mark.parametrize(
    ("key", "least"),
    [("generation", 0.75), ("saving", 0.125), ("logging", 0.125), ("evaluation", 0.375), ("waiting", 0.25),
     ("rest", 0.375), ("reward/slow", 0.375)],
)  # fmt: skip
def test_each_phase_has_its_own_limit(key: str, least: float) -> None:
    """A tenth, a fifth, three or seven tenths: a little above each limit, and a little below."""
    assert isinstance(seen({key: least})[0], Finding)
    assert isinstance(seen({key: 0.75 * least})[0], PassedCheck)


def test_evidence_of_a_slow_reward() -> None:
    event = {"time/elapsed_s": 100.0, "time/share/reward/judge": 0.5, "time/share/rest": 0.5}
    event |= {"rewards/judge/seconds": 12.5}
    log = Log.of([{"step": step, **event} for step in (2, 4, 6)])
    first, second = run_check("time", log, RunSetup())
    assert first.what == "reward judge takes 50% of the time"
    said = [(one.metric, one.says, one.steps) for one in first.evidence]
    assert said == [
        ("time/share/reward/judge", "50% of 300 s", (2, 4, 6)),
        ("rewards/judge/seconds", "12 s per call", (2, 4, 6)),
    ]
    assert (first.first_step, first.last_step, first.kind) == (2, 6, "time")
    assert [change.words for change in first.changes] == ["rewards.judge.isolate=true"]
    assert (second.what, len(second.evidence)) == ("the rest takes 50% of the time", 1)


def test_phases_below_a_minute_and_logs_without_a_profile_have_no_finding() -> None:
    """0.75 of 80 s are a minute; of 79 s they are less."""
    for elapsed_s, kind in ((16.0, Finding), (15.8, PassedCheck)):
        assert isinstance(seen({"generation": 0.75}, elapsed_s=elapsed_s)[0], kind)
    assert isinstance(seen({"saving": 0.5}, events=3)[0], Finding)
    assert isinstance(seen({"saving": 0.5}, events=2)[0], SkippedCheck)
    assert seen({"forward": 0.25}) == [PassedCheck("backward takes the most time: 75% of 500 s", kind="time")]
    (unseen,) = run_check("time", Log.of([{"step": 1, "loss": 1.0}]), RunSetup())
    assert isinstance(unseen, SkippedCheck)
    assert "profile=phases" in unseen.why


def test_the_end_of_a_training_counts_as_on_its_last_screen() -> None:
    """In a short run most of the time may be the last saving, which the event that ends the training has."""
    step = {"time/elapsed_s": 10.0, "time/share/backward": 1.0, "time/share/saving": 0.0}
    end = {"train_runtime": 100.0, "time/elapsed_s": 70.0, "time/share/waiting": 0.95, "time/share/saving": 0.05}
    events = [{"step": number, **one} for number, one in enumerate([step] * 3 + [end], 1)]
    (fine,) = run_check("time", Log.of(events), RunSetup())
    assert fine.says == "waiting for other ranks takes the most time: 66% of 100 s"
    assert str(time_line(events)).startswith("time 1 min: waiting for other ranks 66%, backward 30%")
