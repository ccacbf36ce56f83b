"""`data.eval` as one set or as several named ones: what is accepted, which files win, and which metrics exist."""

from __future__ import annotations

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Eval
from rlhf_cli.plan.sources_and_components import describe_eval_rows, eval_sources, only_set
from rlhf_cli.project.key_reference import about_keys
from tests.support.planning import Judged, Refused, Write

SETS = "{easy: {world: toy_sums, args: {max_value: 5}}, hard_one: {fraction: 0.125}}"
EXP = "# @package _global_\ndefaults:\n  - {base}\n  - _self_\ndata:\n  eval: {eval}\n"
GRPO, EVERY = "+exp=quickstart", "trainer.args.eval_strategy=steps"
BEST = "trainer.args.metric_for_best_model"


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
def test_refused(refused: Refused, write: Write, sets: str, told: str) -> None:
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
