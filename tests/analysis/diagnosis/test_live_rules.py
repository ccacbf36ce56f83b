"""A training asks its stopping rules at every log event, counts events in a row, and reports each finding once."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from rlhf_cli.analysis.diagnosis import live_rules
from rlhf_cli.analysis.diagnosis.live_rules import StopByRule, StoppingRules, WarnOfFindings
from rlhf_cli.config.schema.run_sections import StopRule, StopRules, entries_of, parsed
from rlhf_cli.runs.metrics_file import Event, MetricsWriter
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.metrics import FINDING_KINDS, REPRODUCED
from tests.support.planted_logs import GRPO, events_of, found, noisy, reward


def rule(when: str, log_events: int = 1) -> StopRule:
    return StopRule.model_validate({"when": when, "for": log_events})


def fired_at(rules: StoppingRules, metric: str, *values: float | None) -> int | None:
    """The first step, from 1 on, at which a rule fires."""
    for step, value in enumerate(values, 1):
        if rules.take(step, {metric: value}) is not None:
            return step
    return None


@pytest.mark.parametrize(
    ("when", "meets", "does_not"),
    [("kl > 0.5", 0.51, 0.5), ("kl >= 0.5", 0.5, 0.49), ("kl<-1e-3", -0.002, 0.0), ("kl <= 2", 2.0, 2.1)],
)
def test_the_grammar(when: str, meets: float, does_not: float) -> None:
    assert parsed(when)[0] == "kl"
    assert rule(when).holds(meets)
    assert not rule(when).holds(does_not)
    assert not rule(when).holds(math.nan)


@pytest.mark.parametrize(
    "when", ["kl", "kl > ", "> 3", "kl = 3", "kl == 3", "kl > many", "kl > nan", "kl > 1 > 2", "a b > 1"]
)
def test_what_is_no_rule(when: str) -> None:
    with pytest.raises(ValueError, match=r"number|METRIC"):
        StopRule.model_validate({"when": when})


def test_the_shapes() -> None:
    rules = TypeAdapter(StopRules).validate_python
    one = {"when": "kl > 1", "for": 3}
    assert rules(None) is rules(False) is rules("off") is None
    assert list(entries_of(rules(one))) == [""]
    assert list(entries_of(rules([one, one]))) == ["0", "1"]
    assert list(entries_of(rules({"far": one}))) == ["far"]
    wrong_keys = {"far": "kl > 1"}, {**one, "every": 2}, {**one, "for": 0}, {"for": 2}, {"when": 3}
    for wrong in (3, 0, "kl > 1", [3], *wrong_keys):
        with pytest.raises(ValueError, match=r"when|for|StopRule"):
            rules(wrong)


def test_so_many_in_a_row() -> None:
    def rules() -> StoppingRules:
        return StoppingRules({"": rule("kl > 1", 3)}, [])

    assert (fired_at(rules(), "kl", 2.0, 2.0, 2.0), fired_at(rules(), "kl", 2.0, 2.0, 1.0, 2.0, 2.0, 2.0)) == (3, 6)
    assert fired_at(rules(), "kl", 2.0, 2.0, None, 2.0, 2.0) is None  # NaN
    stopped = rules()
    assert fired_at(stopped, "kl", 2.0, 3.0, 4.0) == 3
    assert stopped.fired == "stopped by rule: kl > 1: 2, 3, 4 at steps 1 to 3"


def test_a_step_is_known_without_being_logged() -> None:
    assert fired_at(StoppingRules({"": rule("step >= 3")}, []), "loss", 1.0, 1.0, 1.0, 1.0) == 3
    of_reproduce = StoppingRules({REPRODUCED: rule("step >= 3")}, [])
    assert "by rule" not in str(of_reproduce.take(3, {"loss": 1.0}))


def test_events_without_the_metric_count_neither_way() -> None:
    rules = StoppingRules({"far": rule("kl > 1", 2)}, [])
    events = [{"kl": 2.0}, {"loss": 0.0}, {"eval_loss": 1.0}, {"kl": 2.5}]
    said = [rules.take(step, event) for step, event in enumerate(events, 1)]
    assert said == [None, None, None, "stopped by rule 'far': kl > 1: 2, 2.5 at steps 1 to 4"]


def test_a_rewards_name_is_its_raw_mean() -> None:
    assert fired_at(StoppingRules({"": rule("correct > 0.9")}, ["correct"]), "rewards/correct/mean", 0.5, 0.95) == 2
    assert fired_at(StoppingRules({"": rule("total > 0.9")}, ["correct"]), "reward", 0.5, 0.95) == 2
    assert fired_at(StoppingRules({"": rule("loss > 0.9")}, ["loss"]), "loss", 0.5, 0.95) == 2  # the metric's name wins


def test_the_count_goes_on_where_the_run_goes_on() -> None:
    """Without what was logged it begins anew, and a rule that has held already needs to hold once more."""
    rules = StoppingRules({"": rule("kl > 1", 3)}, [])
    rules.replay([{"step": 1, "kl": 0.0}, {"step": 2, "kl": 2.0}, {"step": 3, "kl": 2.0}])
    assert rules.take(4, {"kl": 5.0}) == "stopped by rule: kl > 1: 2, 2, 5 at steps 2 to 4"
    assert StoppingRules({"": rule("kl > 1", 3)}, []).take(4, {"kl": 5.0}) is None
    rules = StoppingRules({"": rule("kl > 1", 2)}, [])
    rules.replay([{"step": 1, "kl": 2.0}, {"step": 2, "kl": 2.0}])
    assert [rules.take(step, {"kl": kl}) is None for step, kl in ((3, 0.0), (4, 2.0), (5, 2.0))] == [True, True, False]


def test_a_rule_with_an_unknown_metric_is_reported_once_with_the_nearest_name() -> None:
    rules = StoppingRules({"logged": rule("loss < 0"), "": rule("my_metrik > 1")}, ["a"])
    said = []
    for step in range(1, 9):
        rules.take(step, {"my_metric": 0.0, "loss": 0.1})
        said += [(step, text) for text in rules.never_logged()]
    assert [step for step, text in said if "my_metrik" in text and "my_metric is" in text] == [5]
    assert list(rules.never_logged(at_end=True)) == []
    seen = StoppingRules({"": rule("loss < 0")}, [])
    for step in range(1, 9):
        seen.take(step, {"loss": 0.1})
    assert list(seen.never_logged(at_end=True)) == []


def test_what_an_evaluation_logs_is_waited_for_until_there_was_one() -> None:
    rules = StoppingRules({"": rule("eval_rewrd > 1")}, ["a"])
    for step in range(1, 9):
        rules.take(step, {"loss": 0.1})
    assert list(rules.never_logged()) == []
    rules.take(9, {"eval_reward": 0.1})
    assert len(list(rules.never_logged())) == 1
    rules = StoppingRules({"": rule("kll > 1")}, [])
    for step in range(1, 9):
        rules.take(step, {"eval_loss": 0.1, "epoch": 1.0})
    assert list(rules.never_logged()) == []


def test_what_is_said_is_of_the_last_five_and_of_the_first_rule() -> None:
    rules = StoppingRules({"0": rule("kl > 1", 6), "late": rule("kl > 1", 7)}, [])
    said = [rules.take(step, {"kl": 1.0 + step}) for step in range(1, 8)]
    assert said[4] is None
    assert said[5] == "stopped by rule: kl > 1: ... 3, 4, 5, 6, 7 at steps 1 to 6"
    assert said[6] == said[5]  # the first that fired is the one that ends the run
    once = StoppingRules({"once": rule("kl > 1")}, [])
    assert once.take(3, {"kl": 2, "train_runtime": 1.0}) is None
    assert once.take(3, {"kl": "far"}) is None
    assert once.take(3, {"kl": 2.00004}) == "stopped by rule 'once': kl > 1: 2 at step 3"


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
def test_a_metric_that_is_not_logged_is_named(tmp_path: Path, events: int, at_end: bool) -> None:
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


DEAD = {**reward("a", mean=[1.0] * 40, std=0.0), **reward("b", mean=noisy(0.2, 0.8, 0.05)), "loss": [0.1] * 40}


def told(folder: Path, kinds: Sequence[str], events: Sequence[Event], max_steps: int = 40, first: int = 0) -> list[str]:
    """Return the lines that a training says on the events from `first` on; the others were logged before a resume."""
    (folder / "config.yaml").write_text("trainer: {name: grpo, args: {num_iterations: 4}}\n")
    writer, nothing, lines = MetricsWriter(RunFolder(folder).metrics), None, list[str]()
    for step, event in enumerate(events[:first], 1):
        writer.write(step, event)
    warn, state = WarnOfFindings(RunFolder(folder), lines.append, kinds), SimpleNamespace(max_steps=max_steps)
    warn.on_train_begin(nothing, state, nothing)  # type: ignore[arg-type]
    for state.global_step, event in enumerate(events[first:], first + 1):
        warn.on_log(nothing, state, nothing, logs=event)  # type: ignore[arg-type]
    return lines


def test_each_finding_is_reported_once_and_as_soon_as_possible(tmp_path: Path) -> None:
    """Ten log events are enough for a reward that is constant: step 10, of 40."""
    (line,) = told(tmp_path, list(FINDING_KINDS), events_of(DEAD))
    assert line.startswith("warning: step 10: reward a ")


def test_findings_before_a_resume_are_not_reported_again(tmp_path: Path) -> None:
    assert told(tmp_path, list(FINDING_KINDS), events_of(DEAD), first=20) == []


def test_kinds_that_are_off_are_not_reported(tmp_path: Path) -> None:
    assert told(tmp_path, [kind for kind in FINDING_KINDS if kind != "dead_reward"], events_of(DEAD)) == []
    assert told(tmp_path, [], events_of(DEAD)) == []


def test_notes_are_not_reported(tmp_path: Path) -> None:
    never_clipped = {**reward("a", mean=noisy(0.2, 0.8, 0.05)), "ppo/clip_fraction": [0.0] * 40}
    assert found(never_clipped, replace(GRPO, args={"num_iterations": 4}), kind="clipping")
    assert told(tmp_path, ["clipping"], events_of(never_clipped)) == []


def test_checks_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 events: at 10, 20, ... 100, and then each a tenth later: 110, 121, ... 24 more until 1,000."""
    looks: list[int] = []
    real = live_rules.look
    monkeypatch.setattr(live_rules, "look", lambda log, *others: looks.append(log.num_events) or real(log, *others))
    told(tmp_path, ["dead_reward"], [{"loss": 0.1}] * 1000, max_steps=1000)
    assert looks[:10] == list(range(10, 101, 10))
    assert 30 <= len(looks) <= 36


def test_at_the_terminal_in_the_log_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_finding_that_is_gone_is_withdrawn(tmp_path: Path) -> None:
    """Constant for 20 events and then not: `rlhf why` judges the whole log and finds nothing."""
    late = [1.0] * 20 + noisy(0.2, 0.8, 0.05)[:20]
    curves = {**reward("a", mean=late, std=[0.0] * 20 + [0.5] * 20), "loss": [0.1] * 40}
    lines = told(tmp_path, ["dead_reward"], events_of(curves))
    assert [line.partition(": ")[0] for line in lines] == ["warning", "step 30"]
    assert lines[0].startswith("warning: step 10: ")
    assert not found(curves, kind="dead_reward")
