"""Rules to stop by count log events in a row, go on counting where a run goes on, and are never silent."""

from __future__ import annotations

import math

import pytest
from pydantic import TypeAdapter

from rlhf_cli.analysis.diagnosis.stopping_rules import StoppingRules
from rlhf_cli.config.schema.run_sections import StopRule, StopRules, entries_of, parsed


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
    for wrong in (
        3,
        0,
        "kl > 1",
        {"far": "kl > 1"},
        {**one, "every": 2},
        {**one, "for": 0},
        {"for": 2},
        {"when": 3},
        [3],
    ):
        with pytest.raises(ValueError, match=r"when|for|StopRule"):
            rules(wrong)


def test_so_many_in_a_row() -> None:
    def rules() -> StoppingRules:
        return StoppingRules({"": rule("kl > 1", 3)}, [])

    assert fired_at(rules(), "kl", 2.0, 2.0, 2.0) == 3
    assert fired_at(rules(), "kl", 2.0, 2.0, 1.0, 2.0, 2.0, 2.0) == 6
    assert fired_at(rules(), "kl", 2.0, 2.0, None, 2.0, 2.0) is None  # NaN
    stopped = rules()
    assert fired_at(stopped, "kl", 2.0, 3.0, 4.0) == 3
    assert stopped.fired == "stopped by rule: kl > 1: 2, 3, 4 at steps 1 to 3"


def test_a_step_is_known_without_being_logged() -> None:
    assert fired_at(StoppingRules({"": rule("step >= 3")}, []), "loss", 1.0, 1.0, 1.0, 1.0) == 3


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
    rules = StoppingRules({"": rule("kl > 1", 3)}, [])
    rules.replay([{"step": 1, "kl": 0.0}, {"step": 2, "kl": 2.0}, {"step": 3, "kl": 2.0}])
    assert rules.take(4, {"kl": 5.0}) == "stopped by rule: kl > 1: 2, 2, 5 at steps 2 to 4"


def test_negative_control_without_what_was_logged_it_begins_anew() -> None:
    assert StoppingRules({"": rule("kl > 1", 3)}, []).take(4, {"kl": 5.0}) is None


def test_one_that_has_held_already_needs_to_hold_once_more() -> None:
    rules = StoppingRules({"": rule("kl > 1", 2)}, [])
    rules.replay([{"step": 1, "kl": 2.0}, {"step": 2, "kl": 2.0}])
    assert rules.take(3, {"kl": 0.0}) is None
    assert rules.take(4, {"kl": 2.0}) is None
    assert rules.take(5, {"kl": 2.0}) is not None


def test_a_rule_with_an_unknown_metric_is_reported_once_with_the_nearest_name() -> None:
    rules = StoppingRules({"": rule("my_metrik > 1")}, ["a"])
    said = []
    for step in range(1, 9):
        rules.take(step, {"my_metric": 0.0, "loss": 0.1})
        said += [(step, text) for text in rules.never_logged()]
    assert [step for step, text in said if "my_metrik" in text and "my_metric is" in text] == [5]
    assert list(rules.never_logged(at_end=True)) == []


def test_what_an_evaluation_logs_is_waited_for_until_there_was_one() -> None:
    rules = StoppingRules({"": rule("eval_rewrd > 1")}, ["a"])
    for step in range(1, 9):
        rules.take(step, {"loss": 0.1})
    assert list(rules.never_logged()) == []
    rules.take(9, {"eval_reward": 0.1})
    assert len(list(rules.never_logged())) == 1


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
    five = StoppingRules({"": rule("kl > 1", 5)}, [])
    five.replay([{"kl": 2.0}])  # without a step it is taken for the start
    assert [five.take(step, {"kl": 2.0}) for step in range(1, 5)][-1] == (
        "stopped by rule: kl > 1: 2, 2, 2, 2, 2 at steps 0 to 4"
    )
