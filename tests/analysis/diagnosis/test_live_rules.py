"""A training asks its stopping rules at every log event, counts events in a row, and reports each finding once."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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


@pytest.mark.parametrize(
    ("when", "meets", "does_not"),
    [("kl > 0.5", 0.51, 0.5), ("kl >= 0.5", 0.5, 0.49), ("kl<-1e-3", -0.002, 0.0), ("kl <= 2", 2.0, 2.1)],
)
def test_the_grammar(when: str, meets: float, does_not: float) -> None:
    assert parsed(when)[0] == "kl"
    assert [rule(when).holds(value) for value in (meets, does_not, math.nan)] == [True, False, False]


@pytest.mark.parametrize("when", ["kl", "kl > ", "> 3", "kl == 3", "kl > many", "kl > nan", "kl > 1 > 2", "a b > 1"])
def test_what_is_no_rule(when: str) -> None:
    with pytest.raises(ValueError, match=r"number|METRIC"):
        rule(when)


def test_the_shapes() -> None:
    rules = TypeAdapter(StopRules).validate_python
    one = {"when": "kl > 1", "for": 3}
    assert rules(None) is rules(False) is rules("off") is None
    shapes = [list(entries_of(rules(shape))) for shape in (one, [one, one], {"far": one})]
    assert shapes == [[""], ["0", "1"], ["far"]]
    wrong_keys = {"far": "kl > 1"}, {**one, "every": 2}, {**one, "for": 0}, {"for": 2}, {"when": 3}
    for wrong in (3, 0, "kl > 1", [3], *wrong_keys):
        with pytest.raises(ValueError, match=r"when|for|StopRule"):
            rules(wrong)


def said_by(rules: StoppingRules, *events: dict[str, Any], first: int = 1) -> list[str | None]:
    """Return what the rules say at the log events of the steps from `first` on."""
    return [rules.take(step, event) for step, event in enumerate(events, first)]


def kls(*values: float | None) -> list[dict[str, Any]]:
    return [{"kl": value} for value in values]


def test_so_many_in_a_row() -> None:
    """A null ends a row; an event without the metric neither counts nor ends it."""
    stopped = "stopped by rule: kl > 1: 2, 3, 4 at steps"
    for events, last in (
        (kls(2.0, 3.0, 4.0), f"{stopped} 1 to 3"),
        (kls(2.0, 2.0, 1.0, 2.0, 3.0, 4.0), f"{stopped} 4 to 6"),
        (kls(2.0, 2.0, None, 2.0, 2.0), None),
        ([{"kl": 2.0}, {"loss": 0.0}, {"kl": 3.0}, {"eval_loss": 1.0}, {"kl": 4.0}], f"{stopped} 1 to 5"),
    ):
        rules = StoppingRules({"": rule("kl > 1", 3)}, [])
        assert said_by(rules, *events) == [*[None] * (len(events) - 1), last]
        assert rules.fired == last


def test_what_a_rule_is_about() -> None:
    """A step is known without being logged; a reward's name is its raw mean, unless a metric has the name."""
    for when, metric in (
        *(("step >= 2", "loss"), ("correct > 0.9", "rewards/correct/mean")),
        *(("total > 0.9", "reward"), ("loss > 0.9", "loss")),
    ):
        rules = StoppingRules({"": rule(when)}, ["correct", "loss"])
        assert [said is None for said in said_by(rules, {metric: 0.5}, {metric: 0.95})] == [True, False], when
    of_reproduce = StoppingRules({REPRODUCED: rule("step >= 3")}, [])
    assert "by rule" not in str(of_reproduce.take(3, {"loss": 1.0}))


def test_the_count_goes_on_where_the_run_goes_on() -> None:
    """Without what was logged it begins anew, and a rule that has held already needs to hold once more."""
    rules = StoppingRules({"": rule("kl > 1", 3)}, [])
    rules.replay([{"step": 1, "kl": 0.0}, {"step": 2, "kl": 2.0}, {"step": 3, "kl": 2.0}])
    assert said_by(rules, {"kl": 5.0}, first=4) == ["stopped by rule: kl > 1: 2, 2, 5 at steps 2 to 4"]
    rules = StoppingRules({"": rule("kl > 1", 2)}, [])
    rules.replay([{"step": 1, "kl": 2.0}, {"step": 2, "kl": 2.0}])
    assert [said is None for said in said_by(rules, *kls(0.0, 2.0, 2.0), first=3)] == [True, True, False]


def test_a_rule_with_an_unknown_metric_is_reported_once_with_the_nearest_name() -> None:
    rules = StoppingRules({"logged": rule("loss < 0"), "": rule("my_metrik > 1")}, ["a"])
    said = []
    for step in range(1, 9):
        rules.take(step, {"my_metric": 0.0, "loss": 0.1})
        said += [(step, text) for text in rules.never_logged()]
    assert [step for step, text in said if "my_metrik" in text and "my_metric is" in text] == [5]
    assert list(rules.never_logged(at_end=True)) == []


def test_a_rule_that_never_applies_is_shown_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules, shown, unused = StoppingRules({"": rule("my_metrik > 1")}, []), list[object](), cast(Any, None)
    rules.take(1, {"my_metric": 0.1})
    with caplog.at_level(logging.WARNING, logger="rlhf"):
        StopByRule(RunFolder(tmp_path), shown.append, rules, is_main=True).on_train_end(unused, unused, unused)
    assert [f"warning: {record.message}" for record in caplog.records] == shown != []


def test_what_an_evaluation_logs_is_waited_for_until_there_was_one() -> None:
    """Nor do the events of evaluations count as those in which a metric of the training was missing."""
    rules = StoppingRules({"": rule("eval_rewrd > 1")}, ["a"])
    said_by(rules, *[{"loss": 0.1}] * 8)
    assert list(rules.never_logged()) == []
    rules.take(9, {"eval_reward": 0.1})
    assert len(list(rules.never_logged())) == 1
    rules = StoppingRules({"": rule("kll > 1")}, [])
    said_by(rules, *[{"eval_loss": 0.1, "epoch": 1.0}] * 8)
    assert list(rules.never_logged()) == []


def test_what_is_said_is_of_the_last_five_and_of_the_first_rule() -> None:
    rules = StoppingRules({"0": rule("kl > 1", 6), "late": rule("kl > 1", 7)}, [])
    *_, early, fired, later = said_by(rules, *kls(*(1.0 + step for step in range(1, 8))))
    assert (early, fired) == (None, "stopped by rule: kl > 1: ... 3, 4, 5, 6, 7 at steps 1 to 6")
    assert later == fired  # the first that fired is the one that ends the run
    once = StoppingRules({"once": rule("kl > 1")}, [])
    said = [once.take(3, event) for event in ({"kl": 2, "train_runtime": 1.0}, {"kl": "far"}, {"kl": 2.00004})]
    assert said == [None, None, "stopped by rule 'once': kl > 1: 2 at step 3"]


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


@pytest.mark.parametrize(("steps", "stops"), [((0, 0), False), ((8, 9), True), ((9, 10), False)])
def test_it_saves_and_stops_between_steps(tmp_path: Path, steps: Sequence[int], stops: bool) -> None:
    """Not before the first step, as in an evaluation at the start, and not after the last; and once."""
    shown: Shown = []
    callback = by_rule(tmp_path, shown)
    assert [asked(callback, step, {"kl": 2.0}) for step in steps] == [{}, STOPS if stops else {}]
    assert (callback.has_stopped, shown) == (stops, [f"step 9: {callback.rules.fired}"] if stops else [])
    assert callback.reason == (callback.rules.fired if stops else None)
    assert not stops or asked(callback, 9, {"kl": 2.0}) == {}


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
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("trainer: {name: grpo, args: {num_iterations: 4}}\n")
    writer, nothing, lines = MetricsWriter(RunFolder(folder).metrics), None, list[str]()
    for step, event in enumerate(events[:first], 1):
        writer.write(step, event)
    warn, state = WarnOfFindings(RunFolder(folder), lines.append, kinds), SimpleNamespace(max_steps=max_steps)
    warn.on_train_begin(nothing, state, nothing)  # type: ignore[arg-type]
    for state.global_step, event in enumerate(events[first:], first + 1):
        warn.on_log(nothing, state, nothing, logs=event)  # type: ignore[arg-type]
    warn.on_train_end(nothing, state, nothing)  # type: ignore[arg-type]
    return lines


def test_each_finding_is_reported_once_at_the_terminal_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten log events are enough for a reward that is constant: step 10, of 40. After a resume it is no news."""
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING, logger="rlhf"):
        (line,) = told(tmp_path, list(FINDING_KINDS), events_of(DEAD))
    assert line.startswith("warning: step 10: reward a ")
    assert "rewards.a.weight=0" in line
    assert "rlhf why ." in line
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert told(tmp_path, list(FINDING_KINDS), events_of(DEAD), first=20) == []
    # A finding of the last events comes at the end; only the first finding says where the evidence is.
    lines = told(tmp_path / "short", ["dead_reward", "non_finite"], [*events_of(DEAD)[:11], {"loss": math.nan}])
    assert [(line.split(": ")[1], "rlhf why" in line) for line in lines] == [("step 10", True), ("step 12", False)]


def test_kinds_that_are_off_and_notes_are_not_reported(tmp_path: Path) -> None:
    for kinds in ([], [kind for kind in FINDING_KINDS if kind != "dead_reward"]):
        assert told(tmp_path, kinds, events_of(DEAD)) == []
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


def test_a_finding_that_is_gone_is_withdrawn(tmp_path: Path) -> None:
    """Constant for 20 events and then not: `rlhf why` judges the whole log and finds nothing."""
    late = [1.0] * 20 + noisy(0.2, 0.8, 0.05)[:20]
    curves = {**reward("a", mean=late, std=[0.0] * 20 + [0.5] * 20), "loss": [0.1] * 40}
    lines = told(tmp_path, ["dead_reward"], events_of(curves))
    assert [line.partition(": ")[0] for line in lines] == ["warning", "step 30"]
    assert lines[0].startswith("warning: step 10: ")
    assert not found(curves, kind="dead_reward")
