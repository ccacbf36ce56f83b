"""`expect` is checked before a run: its shape, whether anybody logs the metric, and whether it can be met at all."""

from __future__ import annotations

import pytest

from rlhf_cli.config.schema.expect_section import Expectation, expectations_of, read_expectations
from rlhf_cli.errors import Problems, UserError
from rlhf_cli.jobs.prepare import prepare

EVALUATE = ", or data.eval.fraction=0.1 trainer.args.eval_strategy=steps"


def refused(*words: str, exp: str = "quickstart") -> UserError:
    with pytest.raises(UserError) as caught:
        prepare([f"+exp={exp}", *words])
    return caught.value


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("expect={metric: correct, at_least: 0.5}", [""]),
        ("expect=[{metric: correct, at_least: 0.5}, {metric: total, at: 100, at_most: 2}]", ["0", "1"]),
        ("expect={right: {metric: rewards/correct/mean, at: best, at_least: 1}}", ["right"]),
        ("expect=[{metric: total, at: 120, at_least: 1}]", ["0"]),  # the last step of all is one
        (
            "expect=[{metric: entropy, at: first, between: [0, 2]}, {metric: entropy, at: last-5, at_most: 1}]",
            ["0", "1"],
        ),
        # A lower and an upper end of one number say something each.
        ("expect=[{metric: correct, at_least: 0.5}, {metric: correct, at_most: 0.9}]", ["0", "1"]),
        ("expect=[{metric: mine_alone, at_least: 0.5}]", ["0"]),
        ("expect=null", []),
        ("expect=off", []),
        ("expect=[]", []),
    ],
)
def test_accepted(word: str, names: list[str]) -> None:
    assert list(expectations_of(prepare(["+exp=quickstart", word]).experiment.expect)) == names


def test_a_part_of_a_named_one_can_be_typed() -> None:
    named = "expect={right: {metric: correct, at_least: 0.5}}"
    right = expectations_of(prepare(["+exp=quickstart", named, "expect.right.at_least=0.25"]).experiment.expect)[
        "right"
    ]
    assert (right.at_least, right.at, right.low, right.high) == (0.25, "end", 0.25, float("inf"))


def test_what_is_frozen_is_read_again() -> None:
    """A frozen expectation has nulls for the bounds it has not."""
    before = Expectation(metric="loss", at="last-3", between=(0.0, 1.0))
    assert read_expectations([before.model_dump(mode="json")]) == {"0": before}


PLACES = "end, best, first, last-K (K log events) or the number of a step"
ONE_BOUND = "exactly one bound to compare with: at_least, at_most, or between"


@pytest.mark.parametrize(
    ("one", "key", "expected", "hint"),
    [
        ("{metrik: correct, at_least: 0.5}", ".metrik", "one of at, at_least, at_most, between, metric", "metric"),
        ("{metric: correct}", "", ONE_BOUND, None),
        ("{metric: correct, at_lest: 0.5}", ".at_lest", "one of at, at_least, at_most", "at_least"),
        ("{metric: correct, at: ennd, at_least: 0.5}", ".at", PLACES, "at: end"),
        ("{metric: correct, at: last-0, at_least: 0.5}", ".at", PLACES, None),
        ("{metric: correct, at: -3, at_least: 0.5}", ".at", PLACES, None),
        ("{metric: correct, at: 0.5, at_least: 0.5}", ".at", PLACES, None),
        ("{metric: correct, at_least: 0.5, at_most: 0.9}", "", "between: [0.5, 0.9]", None),
        ("{metric: correct, at_least: much}", ".at_least", "number", None),
        ("{metric: correct, at_least: true}", ".at_least", "number", None),
        ("{metric: correct, between: [2, 1]}", ".between", "the lower bound first", "between: [1,2]"),
        ("{metric: correct, between: 2}", ".between", "[LOW, HIGH], two numbers", None),
        ("{metric: correct, at: best, between: [0, 1]}", "", "says whether more or less is better", None),
        ("{metric: 5, at_least: 1}", ".metric", "string", None),
        ("correct", "", "a section with metric, at, at_least", None),
    ],
)
def test_what_is_none(one: str, key: str, expected: str, hint: str | None) -> None:
    error = refused(f"expect=[{one}]")
    assert error.where == f"expect.0{key} (command line)"
    assert expected in str(error.expected)
    assert error.hint == hint


def test_a_part_of_one_alone_can_be_typed() -> None:
    assert refused("expect={metric: correct, at: ennd, at_least: 1}").hint == "expect.at=end"


def test_everything_wrong_is_said_at_once() -> None:
    error = refused("expect=[{metric: correct}, {metric: x, at: now, at_least: a}]")
    assert isinstance(error, Problems)
    keys = [str(problem.where).partition(" ")[0] for problem in error.problems]
    assert keys == ["expect.0", "expect.1.at", "expect.1.at_least"]


@pytest.mark.parametrize(
    ("one", "hint"),
    [
        ("{metric: corect, at_least: 1}", "metric: correct"),
        ("{metric: rewards/corect/mean, at_least: 1}", "metric: rewards/correct/mean"),
        ("{metric: ppo/value_loss, at_most: 1}", "expect=null"),
        ("{metric: eval_reward, at_least: 1}", f"metric: reward{EVALUATE}"),
        ("{metric: eval_correct, at_least: 1}", f"metric: correct{EVALUATE}"),
        ("{metric: eval/total, at_least: 1}", f"metric: total{EVALUATE}"),
        ("{metric: eval_corect, at_least: 1}", f"metric: correct{EVALUATE}"),
    ],
)
def test_a_metric_that_nobody_logs(one: str, hint: str) -> None:
    error = refused(f"expect=[{{metric: correct, at_least: 0}}, {one}]")
    assert error.what.startswith("a result of ")
    assert error.where == "expect (command line), entry 2"
    assert error.hint == hint


def test_the_key_of_a_named_one_can_be_typed() -> None:
    assert refused("expect={right: {metric: corect, at_least: 1}}").hint == "expect.right.metric=correct"


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ("{metric: rewards/correct/mean, at_least: 0.7}", "is expected twice"),
        ("{metric: correct, at_most: 0.4}", "exclude each other"),
        ("{metric: correct, between: [0.1, 0.2]}", "exclude each other"),
        ("{metric: correct, between: [0.6, 0.9]}", "is expected twice"),
    ],
)
def test_twice_or_against_each_other(second: str, what: str) -> None:
    error = refused(f"expect=[{{metric: correct, at_least: 0.5}}, {second}]")
    assert what in error.what
    assert "entry 1 (at least 0.5)" in str(error.got)


def test_a_step_that_never_comes() -> None:
    error = refused("expect={right: {metric: correct, at: 200, at_least: 0.5}}")
    assert (error.got, error.hint) == ("at: 200", "expect.right.at=end")
    assert "ends at step 120" in error.what


def test_a_debug_run_expects_nothing() -> None:
    word = "expect=[{metric: correct, at_least: 0.5}]"
    assert prepare(["+exp=quickstart", word]).experiment.expect
    assert prepare(["+exp=quickstart", "debug=one_step"]).experiment.expect is None


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("eval_correct", "eval_rewards/correct/mean"),
        ("eval/total", "eval_reward"),
        ("eval_rewards/corect/mean", "eval_rewards/correct/mean"),
    ],
)
def test_an_evaluation_is_named_as_it_is_logged(metric: str, hint: str) -> None:
    """TRL logs an evaluation's rewards as `eval_rewards/NAME/mean` and their total as `eval_reward`."""
    evaluated = ("trainer.args.eval_strategy=epoch", "data.eval.fraction=0.1")
    assert refused(*evaluated, f"expect={{metric: {metric}, at_least: 1}}").hint == f"expect.metric={hint}"
    prepare(["+exp=quickstart", *evaluated, f"expect={{metric: {hint}, at_least: 1}}"])
