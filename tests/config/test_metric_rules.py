"""Test the metrics in `stop`, `expect`, `sweep`, `--watch` and the best checkpoint, and the switches of `warn`."""

from __future__ import annotations

import pytest

from rlhf_cli.analysis.diagnosis.run_diagnosis import CHECKS
from rlhf_cli.cli import main
from rlhf_cli.config.schema.run_sections import Expectation, Warn, entries_of, read_expectations
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.sweeps.sweep_folder import refuse_unlogged_watch
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.support.planning import Judged, Refused

pytestmark = pytest.mark.usefixtures("place")


def refused(*words: str, exp: str = "quickstart") -> UserError:
    with pytest.raises(UserError) as caught:
        prepare([f"+exp={exp}", *words])
    return caught.value


@pytest.mark.parametrize(
    "words",
    [
        ["stop.when=reward > 0.9", "stop.for=3"],
        ['stop={when: "correct >= 0.9", for: 3}'],
        ["stop.when=step >= 20"],
        ["stop.when=rewards/correlation/correct/format > 0.99"],
        ["stop.when=kl > 0.5", "trainer.args.beta=0.1"],
        ["stop.when=a_metric_of_my_own > 1"],
        ["stop.when=completions/endings/turns > 0.5", "tools.add.fn=rlhf_cli.rewards.toy:sums_correct"],
        ['stop=[{when: "entropy < 0.01"}, {when: "correct > 0.9", for: 2}]'],
        ['stop={solved: {when: "correct > 0.9"}, far: {when: "entropy < 0.01"}}'],
        *(
            [f"stop.when=eval_greedy/{total} > 1", "trainer.args.eval_strategy=epoch", "data.eval.fraction=0.1"]
            for total in ("total", "total/unseen")
        ),
        [],
    ],
)
def test_accepted(words: list[str]) -> None:
    stop = prepare(["+exp=quickstart", *words]).experiment.stop
    assert (stop is None) == (words in ([], ["stop=off"]))


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("corect", "correct > 1"),
        ("rewards/correct/maen", "rewards/correct/mean > 1"),
        ("completions/mean_lenght", "completions/mean_length > 1"),
        ("kl", None),
        ("eval_reward", None),
    ],
)
def test_a_stop_rule_on_a_metric_that_is_not_logged(metric: str, hint: str | None) -> None:
    error = refused(f"stop.when={metric} > 1")
    assert repr(metric) in error.what
    assert error.where == "stop.when (command line)"
    if hint is not None:
        assert error.hint == f"'stop.when={hint}'"


EVALUATE = ", or data.eval.fraction=0.1 trainer.args.eval_strategy=steps"


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("expect={metric: correct, at_least: 0.5}", [""]),
        ("expect=[{metric: correct, at_least: 0.5}, {metric: total, at: 100, at_most: 2}]", ["0", "1"]),
        (
            "expect=[{metric: entropy, at: first, between: [0, 2]}, {metric: entropy, at: last-5, at_most: 1}]",
            ["0", "1"],
        ),
        # A lower and an upper end of one number say something each.
        ("expect=[{metric: correct, at_least: 0.5}, {metric: correct, at_most: 0.9}]", ["0", "1"]),
        ("expect=[{metric: mine_alone, at_least: 0.5}]", ["0"]),
        ("expect=[]", []),
    ],
)
def test_accepted_expectations(word: str, names: list[str]) -> None:
    assert list(entries_of(prepare(["+exp=quickstart", word]).experiment.expect)) == names


def test_what_is_frozen_is_read_again() -> None:
    """A frozen expectation has nulls for the bounds it has not."""
    before = Expectation(metric="loss", at="last-3", between=(0.0, 1.0))
    assert read_expectations([before.model_dump(mode="json")]) == {"0": before}


PLACES = "end, best, first, last-K (K log events) or the number of a step"
ONE_BOUND = "exactly one bound to compare with: at_least, at_most, or between"


@pytest.mark.parametrize(
    ("one", "key", "expected", "hint"),
    [
        ("{metric: correct}", "", ONE_BOUND, None),
        ("{metric: correct, at_lest: 0.5}", ".at_lest", "one of at, at_least, at_most", "at_least"),
        ("{metric: correct, at: ennd, at_least: 0.5}", ".at", PLACES, "at: end"),
        ("{metric: correct, at: 0.5, at_least: 0.5}", ".at", PLACES, None),
        ("{metric: correct, at_least: 0.5, at_most: 0.9}", "", "between: [0.5, 0.9]", None),
        ("{metric: correct, at_least: much}", ".at_least", "number", None),
        ("{metric: correct, between: [2, 1]}", ".between", "the lower bound first", "between: [1,2]"),
        ("{metric: correct, between: 2}", ".between", "[LOW, HIGH], two numbers", None),
        ("{metric: correct, at: best, between: [0, 1]}", "", "says whether more or less is better", None),
        ("correct", "", "a section with metric, at, at_least", None),
    ],
)
def test_malformed_expectations(one: str, key: str, expected: str, hint: str | None) -> None:
    error = refused(f"expect=[{one}]")
    assert error.where == f"expect.0{key} (command line)"
    assert expected in str(error.expected)
    assert error.hint == hint


@pytest.mark.parametrize(
    ("one", "hint"),
    [
        ("{metric: corect, at_least: 1}", "metric: correct"),
        ("{metric: ppo/value_loss, at_most: 1}", "expect=null"),
        ("{metric: eval_reward, at_least: 1}", f"metric: reward{EVALUATE}"),
        ("{metric: eval_correct, at_least: 1}", f"metric: correct{EVALUATE}"),
    ],
)
def test_an_expectation_of_a_metric_that_is_not_logged(one: str, hint: str) -> None:
    error = refused(f"expect=[{{metric: correct, at_least: 0}}, {one}]")
    assert error.where == "expect (command line), entry 2"
    assert error.hint == hint


def test_a_step_that_never_comes() -> None:
    error = refused("expect={right: {metric: correct, at: 121, at_least: 0.5}}")
    assert (error.got, error.hint) == ("at: 121", "expect.right.at=end")
    assert "ends at step 120" in error.what


QUICK = ("exp=quickstart", "data.eval.fraction=0.1")  # 8 generations
BEST = "trainer.args.metric_for_best_model"


def test_an_evaluation_needs_rows(judged: Judged, refused: Refused) -> None:
    judged(*QUICK, "trainer.args.eval_strategy=steps")
    judged("exp=quickstart", "trainer.args.eval_strategy=no")
    assert "eval_on_start=true" in str(refused("exp=quickstart", "trainer.args.eval_on_start=true").got)
    error = refused("exp=quickstart", "trainer.args.eval_strategy=steps")
    assert error.where == "trainer.args.eval_strategy (command line)"
    assert str(error.hint).startswith("data.eval.fraction=0.1")


@pytest.mark.parametrize(
    ("name", "better"),
    [
        *(("greedy/totl", "greedy/total"), ("greedy/nothing", "greedy/total")),
        ("greedy/rewards/corect", "greedy/rewards/correct"),
        ("pass@8/corect", "pass@8/correct"),
        ("pass@3/correct", "pass@8/correct"),
        ("rewards/zzz/mean", None),
    ],
)
def test_the_best_checkpoint_needs_a_logged_metric(refused: Refused, name: str, better: str | None) -> None:
    error = refused(*QUICK, f"{BEST}={name}")
    assert error.where == f"{BEST} (command line)"
    assert error.hint == (f"{BEST}={better}" if better else None)


def test_the_best_checkpoint_of_a_trainer_of_rows_needs_one_too(refused: Refused, judged: Judged) -> None:
    steps = ("trainer.args.eval_strategy=steps", "data.eval.fraction=0.1")
    for exp, near, meant in (("toy_sft", "acuracy", "mean_token_accuracy"), ("toy_reward", "acuracy", "accuracy")):
        assert refused(f"exp={exp}", *steps, f"{BEST}=eval_{near}").hint == f"{BEST}=eval_{meant}"
        judged(f"exp={exp}", *steps, f"{BEST}=eval_{meant}")


RELATIVE = "rewards.brevity.normalize"


@pytest.mark.parametrize("name", ["greedy/total", "eval_sampled/total/low", "reward", "eval_reward"])
@pytest.mark.parametrize("how", ["group", "batch", "running"])
def test_a_normalised_total_cannot_choose_the_best_checkpoint(refused: Refused, name: str, how: str) -> None:
    error = refused(*QUICK, f"{RELATIVE}={how}", f"{BEST}={name}")
    assert error.where == f"{BEST} (command line)"
    assert f"{RELATIVE}={how}" in str(error.got)
    prefix = "eval_" if name.startswith("eval_") else ""
    assert error.hint == f"{BEST}={prefix}greedy/rewards/correct"


@pytest.mark.parametrize(
    ("typed", "meant"), [("lenght", "completions/mean_length"), ("brevty", "brevity"), ("my_own_metric", None)]
)
def test_a_typo_in_watch(judged: Judged, typed: str, meant: str | None) -> None:
    """A name that resembles no metric may be one that a reward of the user's logs."""
    experiment = judged("exp=quickstart")
    if meant is None:
        refuse_unlogged_watch(typed, [experiment])
        return
    with pytest.raises(ConfigError) as caught:
        refuse_unlogged_watch(typed, [experiment, experiment])
    assert caught.value.hint == f"--watch {meant}"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("corect", "correct"), ("-rewards/format/maen", "-rewards/format/mean"), ("kl", None), ("eval_loss", "loss")],
)
def test_an_objective_that_no_run_can_log(refused: Refused, typed: str, hint: str | None) -> None:
    error = refused("exp=quickstart", "sweep=weights", f"sweep.objective={typed}")
    assert str(error.where).startswith("sweep.objective (")
    assert error.hint == (None if hint is None else f"sweep.objective={hint}")


def kinds_off(*words: str) -> set[str]:
    return {kind for kind, is_on in prepare(["+exp=quickstart", *words]).experiment.warn if not is_on}


def test_every_kind_has_a_switch_and_a_function() -> None:
    assert list(Warn.model_fields) == list(FINDING_KINDS) == list(CHECKS)


@pytest.mark.parametrize(
    ("words", "off"),
    [
        ((), set()),
        (("warn.redundant=off",), {"redundant"}),
        (("warn=off",), set(FINDING_KINDS)),
        (("warn={redundant: off}",), {"redundant"}),
    ],
)
def test_switches(words: tuple[str, ...], off: set[str]) -> None:
    assert kinds_off(*words) == off


def test_what_is_no_switch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "+exp=quickstart", "warn.redundnt=off", "warn.kl=3"]) == 2
    printed = capsys.readouterr().err
    assert "unknown key 'warn.redundnt'" in printed
    assert "try:      warn.redundant" in printed
    assert "expected: on or off" in printed
