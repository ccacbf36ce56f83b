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


EVALUATE = ", or data.eval.fraction=0.1 trainer.args.eval_strategy=steps"
BEST, RELATIVE = "trainer.args.metric_for_best_model", "rewards.brevity.normalize"
QUICK = ("exp=quickstart", "data.eval.fraction=0.1")  # 8 generations
SWEEP = ("exp=quickstart", "sweep=weights")
SECOND = "expect=[{metric: correct, at_least: 0}, {metric:"


@pytest.mark.parametrize(
    ("words", "typed", "hint"),
    [
        (QUICK, "stop.when=rewards/correct/maen > 1", "'stop.when=rewards/correct/mean > 1'"),
        (QUICK, "stop.when=completions/mean_lenght > 1", "'stop.when=completions/mean_length > 1'"),
        (QUICK, "stop.when=kl > 1", None),
        (QUICK[:1], "stop.when=eval_reward > 1", None),
        (QUICK[:1], f"{SECOND} corect, at_least: 1}}]", "metric: correct"),
        (QUICK[:1], f"{SECOND} ppo/value_loss, at_most: 1}}]", "expect=null"),
        (QUICK[:1], f"{SECOND} eval_correct, at_least: 1}}]", f"metric: correct{EVALUATE}"),
        (QUICK, f"{BEST}=greedy/nothing", f"{BEST}=greedy/total"),
        (QUICK, f"{BEST}=greedy/rewards/corect", f"{BEST}=greedy/rewards/correct"),
        (QUICK, f"{BEST}=pass@8/corect", f"{BEST}=pass@8/correct"),
        (QUICK, f"{BEST}=pass@3/correct", f"{BEST}=pass@8/correct"),
        (QUICK, f"{BEST}=rewards/zzz/mean", None),
        # a normalised total cannot choose the best checkpoint
        ((*QUICK, f"{RELATIVE}=group"), f"{BEST}=greedy/total", f"{BEST}=greedy/rewards/correct"),
        ((*QUICK, f"{RELATIVE}=batch"), f"{BEST}=eval_sampled/total/low", f"{BEST}=eval_greedy/rewards/correct"),
        ((*QUICK, f"{RELATIVE}=running"), f"{BEST}=reward", f"{BEST}=greedy/rewards/correct"),
        (SWEEP, "sweep.objective=-rewards/format/maen", "sweep.objective=-rewards/format/mean"),
        (SWEEP, "sweep.objective=eval_loss", "sweep.objective=loss"),
        (SWEEP, "sweep.objective=kl", None),
    ],
)
def test_a_metric_that_is_not_logged(refused: Refused, words: tuple[str, ...], typed: str, hint: str | None) -> None:
    error = refused(*words, typed)
    entry = ", entry 2" if typed.startswith("expect") else ""
    assert error.where == f"{typed.partition('=')[0]} (command line){entry}"
    assert hint is None or error.hint == hint


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


def test_a_step_that_never_comes(refused: Refused) -> None:
    error = refused("exp=quickstart", "expect={right: {metric: correct, at: 121, at_least: 0.5}}")
    assert (error.got, error.hint) == ("at: 121", "expect.right.at=end")
    assert "ends at step 120" in error.what
    before = Expectation(metric="loss", at="last-3", between=(0.0, 1.0))  # frozen, it has nulls for other bounds
    assert read_expectations([before.model_dump(mode="json")]) == {"0": before}


def test_an_evaluation_needs_rows(judged: Judged, refused: Refused) -> None:
    every = "trainer.args.eval_strategy=steps"
    judged(*QUICK, every)
    judged("exp=quickstart", "trainer.args.eval_strategy=no")
    assert "eval_on_start=true" in str(refused("exp=quickstart", "trainer.args.eval_on_start=true").got)
    error = refused("exp=quickstart", every)
    assert error.where == "trainer.args.eval_strategy (command line)"
    assert str(error.hint).startswith("data.eval.fraction=0.1")
    # the best checkpoint of a trainer of rows
    for exp, meant in (("toy_sft", "mean_token_accuracy"), ("toy_reward", "accuracy")):
        words = (f"exp={exp}", every, "data.eval.fraction=0.1")
        assert refused(*words, f"{BEST}=eval_acuracy").hint == f"{BEST}=eval_{meant}"
        judged(*words, f"{BEST}=eval_{meant}")


def test_a_typo_in_watch(judged: Judged) -> None:
    """A name that resembles no metric may be one that a reward of the user's logs."""
    experiments = [judged("exp=quickstart")] * 2
    refuse_unlogged_watch("my_own_metric", experiments)
    for typed, meant in (("lenght", "completions/mean_length"), ("brevty", "brevity")):
        with pytest.raises(ConfigError) as caught:
            refuse_unlogged_watch(typed, experiments)
        assert caught.value.hint == f"--watch {meant}"


def test_switches(judged: Judged, refused: Refused) -> None:
    """Every kind has one, and a function."""
    assert list(Warn.model_fields) == list(FINDING_KINDS) == list(CHECKS)
    for word, off in (
        ("seed=1", set()),
        ("warn.redundant=off", {"redundant"}),
        ("warn={redundant: off}", {"redundant"}),
        ("warn=off", set(FINDING_KINDS)),
    ):
        assert {kind for kind, is_on in judged("exp=quickstart", word).warn if not is_on} == off, word
    assert refused("exp=quickstart", "warn.redundnt=off").hint == "warn.redundant"
    assert refused("exp=quickstart", "warn.kl=3").expected == "on or off"
