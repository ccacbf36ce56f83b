"""A training asks its stopping rules at every log event, and ends between steps once one has held long enough."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.analysis.diagnosis import live_rules
from rlhf_cli.analysis.diagnosis.live_rules import StopByRule
from rlhf_cli.analysis.diagnosis.stopping_rules import StoppingRules
from rlhf_cli.config.schema.run_sections import StopRule
from rlhf_cli.runs.run_folder import RunFolder

ARGS = SimpleNamespace(device="cpu")
STOPS = {"should_save": True, "should_training_stop": True}
Shown = list[str]


def by_rule(place: Path, shown: Shown, *, when: str = "kl > 1", is_main: bool = True) -> StopByRule:
    """Return the callback of one rule that has to hold in two log events."""
    rule = StopRule.model_validate({"when": when, "for": 2})
    return StopByRule(RunFolder(place), shown.append, StoppingRules({"": rule}, []), is_main)


def asked(callback: StopByRule, step: int, logs: dict[str, float]) -> dict[str, bool]:
    """Return what the callback tells the trainer at a log event of a training of ten steps."""
    control = SimpleNamespace()
    callback.on_log(ARGS, SimpleNamespace(global_step=step, max_steps=10), control, logs=logs)  # type: ignore[arg-type]
    return vars(control)


def test_it_saves_and_stops_once(tmp_path: Path) -> None:
    shown: Shown = []
    callback = by_rule(tmp_path, shown)
    assert [asked(callback, step, {"kl": 2.0}) for step in (1, 2, 3)] == [{}, STOPS, {}]
    assert callback.has_stopped
    assert callback.reason == callback.rules.fired is not None
    (line,) = shown
    assert line.startswith("step 2: ")
    assert callback.reason in line


@pytest.mark.parametrize(("steps", "stops"), [((0, 0), False), ((8, 9), True), ((9, 10), False)])
def test_it_stops_between_steps(tmp_path: Path, steps: Sequence[int], stops: bool) -> None:
    """Not before the first step, as in an evaluation at the start, and not after the last."""
    shown: Shown = []
    callback = by_rule(tmp_path, shown)
    assert [asked(callback, step, {"kl": 2.0}) for step in steps] == [{}, STOPS if stops else {}]
    assert (callback.has_stopped, bool(callback.reason), bool(shown)) == (stops, stops, stops)


def test_another_rank_stops_with_the_main_one_and_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: Shown = []
    other = by_rule(tmp_path, shown, is_main=False)
    assert [asked(other, step, {"kl": 2.0}) for step in (1, 2)] == [{}, {}]
    monkeypatch.setattr(live_rules, "on_any_rank", lambda flag, device: True)
    assert asked(other, 3, {"kl": 2.0}) == STOPS
    assert (other.has_stopped, other.reason, shown) == (True, None, [])


def test_counts_go_on_where_a_run_goes_on(tmp_path: Path) -> None:
    RunFolder(tmp_path).metrics.write_text(json.dumps({"step": 1, "time_s": 0.0, "kl": 2.0}) + "\n")
    nothing: Any = None
    for is_main, stops in ((True, STOPS), (False, {})):
        callback = by_rule(tmp_path, [], is_main=is_main)
        callback.on_train_begin(nothing, nothing, nothing)
        assert asked(callback, 2, {"kl": 2.0}) == stops


@pytest.mark.parametrize(("events", "at_end"), [(4, True), (5, False)])
def test_a_metric_that_is_not_logged_is_named_after_five_events_or_at_the_end(
    tmp_path: Path, events: int, at_end: bool
) -> None:
    nothing: Any = None
    for is_main in (True, False):
        shown: Shown = []
        callback = by_rule(tmp_path, shown, when="kll > 1", is_main=is_main)
        for step in range(1, events + 1):
            asked(callback, step, {"kl": 2.0})
        assert len(shown) == (is_main and not at_end)
        callback.on_train_end(nothing, nothing, nothing)
        assert len(shown) == is_main
        assert all("kll" in line for line in shown)
