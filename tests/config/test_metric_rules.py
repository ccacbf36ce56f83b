"""Metrics in `stop`, `expect`, `sweep`, `--watch` and the best checkpoint; eval sets; the switches of `warn`."""

from __future__ import annotations

import pytest

from rlhf_cli.analysis.diagnosis.run_diagnosis import CHECKS
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Eval
from rlhf_cli.config.schema.run_sections import Expectation, Warn, entries_of, read_expectations
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.sources_and_components import describe_eval_rows, eval_sources, only_set
from rlhf_cli.project.key_reference import about_keys
from rlhf_cli.sweeps.sweep_folder import refuse_unlogged_watch
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.support.planning import Judged, Refused, Write

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
        ("expect=[{metric: correct, at_least: 0.5}, {metric: total, at: 120, at_most: 2}]", ["0", "1"]),
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
    meant_by = {"lenght": "completions/mean_length", "lenghtt": "completions/mean_length", "brevty": "brevity"}
    for typed, meant in meant_by.items():
        with pytest.raises(ConfigError) as caught:
            refuse_unlogged_watch(typed, experiments)
        assert caught.value.hint == f"--watch {meant}"


def test_switches(judged: Judged, refused: Refused) -> None:
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


SETS = "{easy: {world: toy_sums, args: {max_value: 5}}, hard_one: {fraction: 0.125}}"
EXP = "# @package _global_\ndefaults:\n  - {base}\n  - _self_\ndata:\n  eval: {eval}\n"
GRPO, EVERY = "+exp=quickstart", "trainer.args.eval_strategy=steps"


def with_sets(write: Write, sets: str = SETS, base: str = "quickstart") -> str:
    write("conf/exp/mine.yaml", EXP.format(base=base, eval=sets))
    return "+exp=mine"


def test_named_sets_stand_beside_a_single_one(judged: Judged, write: Write) -> None:
    data = judged(with_sets(write)).data
    assert (data.eval_names, data.fraction) == (["easy", "hard_one"], 0.125)
    experiment = judged("+exp=mine")
    assert [source.name for source in eval_sources(experiment)] == ["data.eval.easy"]
    assert describe_eval_rows(data) == "easy: toy_sums, hard_one: the 12.5% held out"
    assert describe_eval_rows(only_set(experiment, "hard_one").data) == "hard_one: the 12.5% held out"
    # As it is frozen, and as a single set is: with the same keys as before.
    assert Experiment.model_validate(experiment.model_dump()).data == data
    single = judged(GRPO, "data.eval.fraction=0.1").data
    assert isinstance(single.eval, Eval)
    assert [key.key for key in about_keys(["data.eval.path"])] == ["data.eval.path"]
    assert (list(single.evals), single.eval_names, judged(GRPO).data.evals) == ([""], [], {})


def test_the_kind_that_was_given_last_wins(judged: Judged, write: Write) -> None:
    """The base experiment has one set; a typed key replaces the sets of a file, and a typed set its single one."""
    assert judged(with_sets(write, base="toy_sft")).data.eval_names == ["easy", "hard_one"]
    assert isinstance(judged("+exp=mine", "data.eval.fraction=0.2").data.eval, Eval)
    assert judged("+exp=toy_sft", "data.eval.more.world=toy_demonstrations").data.eval_names == ["more"]
    assert judged("+exp=mine", "data.eval.more.world=toy_sums").data.eval_names == ["easy", "hard_one", "more"]
    replaced = judged("+exp=mine", "data.eval.easy.path=other.jsonl").data.evals["easy"]
    assert (replaced.world, replaced.args, replaced.path) == (None, {}, "other.jsonl")


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        ("{}", "null evaluates nothing"),
        ("{path: {path: x.jsonl}, hard: {world: toy_sums}}", "path_rows"),
        ("{fraction: {fraction: 0.1}}", "fraction_rows"),
        ("{path: x.jsonl, hard: {world: toy_sums}}", "data.eval.hard.path"),
        ("{a: {fraction: 0.1}, b: {fraction: 0.1}}", "at most one"),
        *((f"{{{name}: {{world: toy_sums}}}}", "letters") for name in ("train", "a-b", "1")),
    ],
)
def test_sets_that_are_refused(refused: Refused, write: Write, sets: str, told: str) -> None:
    error = refused(with_sets(write, sets))
    assert (error.where, told in str(error.expected)) == ("data.eval (conf/exp/mine.yaml:6)", True)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        (f"{BEST}=greedy/rewards/correct", f"{BEST}=eval_easy_greedy/rewards/correct"),
        ("trainer.args.load_best_model_at_end=true", f"{BEST}=eval_easy_loss"),
        ("trainer.args.lr_scheduler_type=greedy", f"{BEST}=eval_easy_loss"),
        (f"{BEST}=hard_one_greedy/rewards/corect", f"{BEST}=hard_one_greedy/rewards/correct"),
        ("stop.when=eval_hard_oen_loss > 3", "'stop.when=eval_hard_one_loss > 3'"),
        ("stop.when=eval_greedy/total > 3", "'stop.when=eval_easy_greedy/total > 3'"),
        ("expect={metric: eval_hard_one_greedy/totl, at_least: 1}", "expect.metric=eval_hard_one_greedy/total"),
    ],
)
def test_a_metric_that_no_set_logs(refused: Refused, write: Write, word: str, hint: str) -> None:
    assert refused(with_sets(write), EVERY, word).hint == hint


def test_a_metric_of_a_set(judged: Judged, write: Write) -> None:
    mine = with_sets(write)
    judged(mine, EVERY, f"{BEST}=eval_hard_one_greedy/rewards/correct", "stop.when=eval_easy_reward > 3")
    judged(mine, EVERY, f"{BEST}=easy_loss", "expect={metric: eval_hard_one_pass@8/correct, at_least: 1}")
    sets = "{hard: {world: toy_sums}, hard_one: {world: toy_sums}}"
    judged(with_sets(write, sets), EVERY, f"{BEST}=eval_hard_one_greedy/total")
