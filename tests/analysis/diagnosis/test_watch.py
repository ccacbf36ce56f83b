"""A training reports each finding once, as soon as possible, unless its kind is off."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.analysis.diagnosis.run_diagnosis import Watch
from rlhf_cli.runs.metrics_file import MetricsWriter
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.support.planted_logs import GRPO, events_of, found, noisy, reward

DEAD = {**reward("a", mean=[1.0] * 40, std=0.0), **reward("b", mean=noisy(0.2, 0.8, 0.05)), "loss": [0.1] * 40}


def said(watch: Watch, first: int = 0) -> list[tuple[int, str]]:
    """Return (step, kind) of every reported finding."""
    events = events_of(DEAD)[first:]
    return [(step, one.kind) for step, event in enumerate(events, first + 1) for one in watch.take(step, event)]


def test_each_finding_is_reported_once_and_as_soon_as_possible() -> None:
    """Ten log events are enough for a reward that is constant: step 10, of 40."""
    assert said(Watch(GRPO, list(FINDING_KINDS), 40)) == [(10, "dead_reward")]


def test_findings_before_a_resume_are_not_reported_again() -> None:
    assert said(Watch(GRPO, list(FINDING_KINDS), 40, events_of(DEAD)[:20]), 20) == []


def test_kinds_that_are_off_are_not_reported() -> None:
    assert said(Watch(GRPO, [kind for kind in FINDING_KINDS if kind != "dead_reward"], 40)) == []
    assert said(Watch(GRPO, [], 40)) == []


def test_notes_are_not_reported() -> None:
    never_clipped = {**reward("a", mean=noisy(0.2, 0.8, 0.05)), "ppo/clip_fraction": [0.0] * 40}
    setup = SimpleNamespace(**{**vars(GRPO), "args": {"num_iterations": 4}, "number": lambda name, default: 4.0})
    watch = Watch(setup, ["clipping"], 40)  # type: ignore[arg-type]
    assert [watch.take(step, event) for step, event in enumerate(events_of(never_clipped), 1)] == [[]] * 40


def test_checks_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 events: at 10, 20, ... 100, and then each a tenth later: 110, 121, ... 24 more until 1,000."""
    from rlhf_cli.analysis.diagnosis import run_diagnosis as module

    looks: list[int] = []
    real = module.look
    monkeypatch.setattr(module, "look", lambda log, *others: looks.append(log.num_events) or real(log, *others))
    watch = Watch(GRPO, ["dead_reward"], 1000)
    for step in range(1, 1001):
        watch.take(step, {"loss": 0.1})
    assert looks[:10] == list(range(10, 101, 10))
    assert 30 <= len(looks) <= 36


def test_at_the_terminal_in_the_log_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_cli.analysis.diagnosis.live_rules import WarnOfFindings

    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path)
    folder.config.write_text("trainer: {name: grpo}\n")
    printed = io.StringIO()
    nothing: Any = None

    def train(first: int, last: int, kinds: list[str]) -> None:
        warn = WarnOfFindings(folder, lambda line: print(line, file=printed), kinds)
        writer = MetricsWriter(folder.metrics)
        state: Any = SimpleNamespace(global_step=first, max_steps=40)
        warn.on_train_begin(nothing, state, nothing)
        for step, event in list(enumerate(events_of(DEAD), 1))[first:last]:
            state.global_step = step
            writer.write(step, event)
            warn.on_log(nothing, state, nothing, logs=dict(event))
        warn.on_train_end(nothing, state, nothing)

    with caplog.at_level(logging.WARNING, logger="rlhf"):
        train(0, 12, [])
        assert printed.getvalue() == ""
        folder.metrics.unlink()
        train(0, 12, list(FINDING_KINDS))
        train(12, 40, list(FINDING_KINDS))  # the run went on
    (line,) = printed.getvalue().splitlines()
    assert line.startswith("warning: step 10: ")
    assert "rewards.a.weight=0" in line
    assert "rlhf why ." in line
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_finding_that_is_gone_is_withdrawn() -> None:
    """Constant for 20 events and then not: `rlhf why` judges the whole log and finds nothing."""
    late = [1.0] * 20 + noisy(0.2, 0.8, 0.05)[:20]
    curves = {**reward("a", mean=late, std=[0.0] * 20 + [0.5] * 20), "loss": [0.1] * 40}
    watch, told = Watch(GRPO, ["dead_reward"], 40), list[tuple[int, str]]()
    for step, event in enumerate(events_of(curves), 1):
        told += [(step, f"new {one.kind}") for one in watch.take(step, event)]
        told += [(step, f"gone {one.kind}") for one in watch.gone]
    assert told == [(10, "new dead_reward"), (30, "gone dead_reward")]
    assert not found(curves, kind="dead_reward")
