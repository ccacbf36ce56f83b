"""Test the metrics in `stop`, `expect`, `sweep`, `--watch` and the best checkpoint, and the switches of `warn`."""

from __future__ import annotations

import pytest

from rlhf_cli.analysis.diagnosis.run_diagnosis import CHECKS
from rlhf_cli.config.schema.run_sections import Expectation, Warn, entries_of, read_expectations
from rlhf_cli.errors import ConfigError
from rlhf_cli.sweeps.sweep_folder import refuse_unlogged_watch
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.support.planning import Judged, Refused

pytestmark = pytest.mark.usefixtures("place")


EVERY_EPOCH = ("trainer.args.eval_strategy=epoch", "data.eval.fraction=0.1")


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        (["stop.when=reward > 0.9", "stop.for=3"], 1),
        (["stop.when=step >= 20"], 1),
        (["stop.when=rewards/correlation/correct/format > 0.99"], 1),
        (["stop.when=kl > 0.5", "trainer.args.beta=0.1"], 1),
        (["stop.when=a_metric_of_my_own > 1"], 1),
        (["stop.when=completions/endings/turns > 0.5", "tools.add.fn=rlhf_cli.rewards.toy:sums_correct"], 1),
        (["stop.when=eval_greedy/total/unseen > 1", *EVERY_EPOCH], 1),
        (['stop=[{when: "entropy < 0.01"}, {when: "correct > 0.9", for: 2}]'], 2),
        (['stop={solved: {when: "correct > 0.9"}, far: {when: "entropy < 0.01"}}'], 2),
        ([], 0),
    ],
)
def test_stop_rules_that_are_accepted(judged: Judged, words: list[str], rules: int) -> None:
    assert len(entries_of(judged("exp=quickstart", *words).stop)) == rules


@pytest.mark.parametrize(
    ("metric", "meant"),
    [
        ("rewards/correct/maen", "rewards/correct/mean"),
        ("completions/mean_lenght", "completions/mean_length"),
        ("kl", None),
        ("eval_reward", None),
    ],
)
def test_a_stop_rule_on_a_metric_that_is_not_logged(refused: Refused, metric: str, meant: str | None) -> None:
    error = refused("exp=quickstart", f"stop.when={metric} > 1")
    assert (error.where, repr(metric) in error.what) == ("stop.when (command line)", True)
    assert meant is None or error.hint == f"'stop.when={meant} > 1'"


EVALUATE = ", or data.eval.fraction=0.1 trainer.args.eval_strategy=steps"


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("expect={metric: correct, at_least: 0.5}", [""]),
        ("expect=[{metric: correct, at_least: 0.5}, {metric: total, at: 100, at_most: 2}]", ["0", "1"]),
        # A lower and an upper end of one number say something each.
        (
            "expect=[{metric: entropy, at: first, between: [0, 2]}, {metric: entropy, at: last-5, at_most: 1}]",
            ["0", "1"],
        ),
        ("expect=[{metric: mine_alone, at_least: 0.5}]", ["0"]),
        ("expect=[]", []),
    ],
)
def test_accepted_expectations(judged: Judged, word: str, names: list[str]) -> None:
    assert list(entries_of(judged("exp=quickstart", word).expect)) == names


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
        ("{metric: correct, between: [2, 1]}", ".between", "the lower bound first", "between: [1,2]"),
        ("{metric: correct, between: 2}", ".between", "[LOW, HIGH], two numbers", None),
        ("{metric: correct, at: best, between: [0, 1]}", "", "says whether more or less is better", None),
        ("correct", "", "a section with metric, at, at_least", None),
    ],
)
def test_malformed_expectations(refused: Refused, one: str, key: str, expected: str, hint: str | None) -> None:
    error = refused("exp=quickstart", f"expect=[{one}]")
    assert (error.where, error.hint) == (f"expect.0{key} (command line)", hint)
    assert expected in str(error.expected)


@pytest.mark.parametrize(
    ("one", "hint"),
    [
        ("{metric: corect, at_least: 1}", "metric: correct"),
        ("{metric: ppo/value_loss, at_most: 1}", "expect=null"),
        ("{metric: eval_correct, at_least: 1}", f"metric: correct{EVALUATE}"),
    ],
)
def test_an_expectation_of_a_metric_that_is_not_logged(refused: Refused, one: str, hint: str) -> None:
    error = refused("exp=quickstart", f"expect=[{{metric: correct, at_least: 0}}, {one}]")
    assert (error.where, error.hint) == ("expect (command line), entry 2", hint)


def test_a_step_that_never_comes(refused: Refused) -> None:
    error = refused("exp=quickstart", "expect={right: {metric: correct, at: 121, at_least: 0.5}}")
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
        ("greedy/nothing", "greedy/total"),
        ("greedy/rewards/corect", "greedy/rewards/correct"),
        ("pass@8/corect", "pass@8/correct"),
        ("pass@3/correct", "pass@8/correct"),
        ("rewards/zzz/mean", None),
    ],
)
def test_the_best_checkpoint_needs_a_logged_metric(refused: Refused, name: str, better: str | None) -> None:
    error = refused(*QUICK, f"{BEST}={name}")
    assert (error.where, error.hint) == (f"{BEST} (command line)", better and f"{BEST}={better}")


def test_the_best_checkpoint_of_a_trainer_of_rows_needs_one_too(refused: Refused, judged: Judged) -> None:
    steps = ("trainer.args.eval_strategy=steps", "data.eval.fraction=0.1")
    for exp, near, meant in (("toy_sft", "acuracy", "mean_token_accuracy"), ("toy_reward", "acuracy", "accuracy")):
        assert refused(f"exp={exp}", *steps, f"{BEST}=eval_{near}").hint == f"{BEST}=eval_{meant}"
        judged(f"exp={exp}", *steps, f"{BEST}=eval_{meant}")


RELATIVE = "rewards.brevity.normalize"


@pytest.mark.parametrize(
    ("name", "how"),
    [("greedy/total", "group"), ("eval_sampled/total/low", "batch"), ("reward", "running"), ("eval_reward", "batch")],
)
def test_a_normalised_total_cannot_choose_the_best_checkpoint(refused: Refused, name: str, how: str) -> None:
    error = refused(*QUICK, f"{RELATIVE}={how}", f"{BEST}={name}")
    assert (error.where, f"{RELATIVE}={how}" in str(error.got)) == (f"{BEST} (command line)", True)
    prefix = "eval_" if name.startswith("eval_") else ""
    assert error.hint == f"{BEST}={prefix}greedy/rewards/correct"


def test_a_typo_in_watch(judged: Judged) -> None:
    """A name that resembles no metric may be one that a reward of the user's logs."""
    experiments = [judged("exp=quickstart")] * 2
    refuse_unlogged_watch("my_own_metric", experiments)
    for typed, meant in (("lenght", "completions/mean_length"), ("brevty", "brevity")):
        with pytest.raises(ConfigError) as caught:
            refuse_unlogged_watch(typed, experiments)
        assert caught.value.hint == f"--watch {meant}"


@pytest.mark.parametrize(
    ("typed", "hint"), [("-rewards/format/maen", "-rewards/format/mean"), ("kl", None), ("eval_loss", "loss")]
)
def test_an_objective_that_no_run_can_log(refused: Refused, typed: str, hint: str | None) -> None:
    error = refused("exp=quickstart", "sweep=weights", f"sweep.objective={typed}")
    assert str(error.where).startswith("sweep.objective (")
    assert error.hint == (hint and f"sweep.objective={hint}")


def test_every_kind_has_a_switch_and_a_function() -> None:
    assert list(Warn.model_fields) == list(FINDING_KINDS) == list(CHECKS)


def test_switches(judged: Judged) -> None:
    for word, off in (
        ("seed=1", set()),
        ("warn.redundant=off", {"redundant"}),
        ("warn={redundant: off}", {"redundant"}),
        ("warn=off", set(FINDING_KINDS)),
    ):
        assert {kind for kind, is_on in judged("exp=quickstart", word).warn if not is_on} == off, word


def test_what_is_no_switch(refused: Refused) -> None:
    assert refused("exp=quickstart", "warn.redundnt=off").hint == "warn.redundant"
    assert refused("exp=quickstart", "warn.kl=3").expected == "on or off"
