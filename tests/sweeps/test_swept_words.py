"""The space of a search in Hydra's grammar, and a grid, which has the jobs that Hydra's own sweeper makes.

https://hydra.cc/docs/plugins/optuna_sweeper shows the same words for the same distributions.
"""

from __future__ import annotations

import itertools
import re

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rlhf_cli.errors import ConfigError, Problems, UserError
from rlhf_cli.sweeps.swept_words import (
    distribution_of,
    ends_of,
    from_section,
    grid_of,
    in_words,
    names_of,
    read_objective,
    short_keys,
    split_words,
)


def test_fixed_words_and_searched_words_are_separated() -> None:
    fixed, swept = split_words(["+exp=quickstart", "seed=3", "a=interval(0,1)", "b=[1,2]", "truncation=none,exclude"])
    assert (fixed, list(swept)) == (["+exp=quickstart", "seed=3", "b=[1,2]"], ["a", "truncation"])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("x=interval(0,1)", FloatDistribution(0, 1)),
        ("x=tag(log,interval(1e-6,1e-4))", FloatDistribution(1e-6, 1e-4, log=True)),
        ("x=int(interval(1,8))", IntDistribution(1, 8)),
        ("x=tag(log,int(interval(1,8)))", IntDistribution(1, 8, log=True)),
        ("x=range(1,9)", IntDistribution(1, 8)),  # a range excludes its stop
        *(("x=range(-3,0)", IntDistribution(-3, -1)), ("x=range(-2,1)", IntDistribution(-2, 0))),
        ("x=choice(a,b)", CategoricalDistribution(("a", "b"))),
        ("x=range(0,1,0.5)", CategoricalDistribution(("0.0", "0.5"))),
    ],
)
def test_a_word_of_hydra_becomes_a_distribution_of_optuna(word: str, expected: object) -> None:
    _, swept = split_words([word])
    assert distribution_of(swept["x"]) == expected


@pytest.mark.parametrize("word", ["x=interval(1,1)", "x=interval(2,1)", "x=tag(log,interval(0,1))", "x=choice(a)"])
def test_an_empty_space_is_refused(word: str) -> None:
    _, swept = split_words([word])
    with pytest.raises(ConfigError) as raised:
        distribution_of(swept["x"])
    assert raised.value.got == word


def test_a_star_matches_every_reward_except_typed_keys() -> None:
    space = from_section({"rewards.*.weight": "interval(0,2)"}, ["correct", "style"], ["rewards.correct.weight"])
    assert space == {"rewards.style.weight": FloatDistribution(0.0, 2.0)}
    (key,) = from_section({"rewards.c*.args.full": "1,2"}, ["correct", "style"], [])
    assert key == "rewards.correct.args.full"


@pytest.mark.parametrize(
    ("key", "values", "names"),
    [
        ("rewards.*.weight", "interval(0,2)", ""),
        ("rewards.x*.weight", "interval(0,2)", "ab"),
        ("rewards.*", "interval(0,2)", "ab"),
        ("trainer.*.beta", "interval(0,2)", "ab"),
        ("rewards.a.weight", "1", "ab"),
    ],
)
def test_a_star_without_a_match_and_a_key_with_one_value_are_refused(key: str, values: str, names: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_section({key: values}, names, [])
    assert caught.value.where == f"sweep.space.{key}"


@pytest.mark.parametrize(
    ("distribution", "ends", "words"),
    [
        (FloatDistribution(0, 1e-5, log=False), ["0.0", "1e-05"], "0 to 1e-05"),
        (IntDistribution(1, 8, log=True), ["1", "8"], "1 to 8 whole numbers, logarithmic"),
        (CategoricalDistribution(("none", "exclude")), ["none", "exclude"], "none, exclude"),
    ],
)
def test_the_ends_of_a_space_become_overrides(distribution: BaseDistribution, ends: list[str], words: str) -> None:
    assert ends_of(distribution) == ends
    assert in_words(distribution) == words


def test_a_reward_name_means_its_raw_mean() -> None:
    assert str(read_objective("-brevity", ["correct", "brevity"])) == "-rewards/brevity/mean"
    assert str(read_objective("loss", ["correct"])) == "loss"


pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize(
    "typed",
    [
        ["+exp=quickstart", "rewards.brevity.weight=0,0.1,0.5", "seed=range(0,3)"],
        ["exp=a,b", "truncation=none,bootstrap"],
        ["trainer.args.learning_rate=choice(1e-5,1e-4)", "seed=7"],
        ["a=sort(3,1,2,reverse=true)", "b=range(0,1,0.25)"],
        ["reward@rewards.x=a,b", "+rewards.x.weight=1,2"],
        ["a='b, c',\"d=e\",[1,2],{x: 1}"],
        ["a=true,false,null,''"],
    ],
    ids=" ".join,
)
def test_the_jobs_are_those_of_hydras_sweeper(typed: list[str]) -> None:
    """Compare the jobs with those of BasicSweeper, word for word and in its order."""
    (theirs,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(typed), None)
    assert [list(job.words) for job in grid_of(typed)[1]] == theirs


def test_a_glob_finds_the_files_of_a_group_and_those_of_the_user(write) -> None:
    write("conf/exp/toy_mine.yaml", "# @package _global_\n")
    (axis,) = grid_of(["exp=glob([toy_*],exclude=*_*_*)"])[0]
    assert "toy_mine" in axis.texts
    assert {"toy_dpo", "toy_sft"} < set(axis.texts)
    assert not {"quickstart", "toy_speakers_ppo"} & set(axis.texts)


def test_a_reference_to_the_environment_is_kept() -> None:
    jobs = grid_of(["model.path=${oc.env:MODEL},other"])[1]
    assert [job.words for job in jobs] == [("model.path=${oc.env:MODEL}",), ("model.path=other",)]


def test_the_folder_of_a_job_needs_no_quotes(place) -> None:
    """Hydra itself refuses `=` in a value and reads the comma as a separator."""
    (place / "weight=0.5,seed=2").mkdir()
    (axis,) = grid_of(["model.path=weight=0.5,seed=2", "seed=1,2"])[0]
    assert axis.key == "seed"


INTERVAL = "'seed=range(START,STOP,STEP)', or seed=VALUE,VALUE, or sweep=weights"


@pytest.mark.parametrize(
    ("typed", "got", "hint"),
    [
        (["seed=interval(0,1)"], "seed=interval(0,1)", INTERVAL),
        (["seed=range(5,5)"], "seed=range(5,5)", None),
        (["exp=glob(nothing_*)"], "exp=glob(nothing_*)", "rlhf list exp"),
        (["seed=glob(*)"], "seed=glob(*)", "rlhf list"),
        (["seed=1,2", "+seed=3"], "seed=1,2\n+seed=3", None),
        (["seed=range(0,2),7"], "seed=range(0,2),7", None),
        (["seed=range(0,1000000000)"], "seed=range(0,1000000000)", None),
        (["seed=range(0,100)", "a=range(0,100)"], "seed=range(0,100) a=range(0,100)", None),
        (["hydra/launcher=joblib", "seed=1,2"], "hydra/launcher=joblib", None),
        (["run.name=a,b"], "run.name=a,b", "run.name=a"),
        (["a=1,1"], "a=1,1", None),
        # The values that were meant.
        (["seed=0,", "1,", "2", "track=none"], "seed=0,\n", "seed=0,1,2"),
        (["seed=0,"], "seed=0,\n", "seed=0"),
        (["seed=[0, 1]"], "seed=[0, 1]", "seed=0,1"),
        (["seed=0-2"], "seed=0-2", "'seed=range(0,3)'"),
        (["seed=0..2"], "seed=0..2", "'seed=range(0,3)'"),
        (["seed=7"], "seed=7", None),
        (["seed=,"], "seed=,\n", None),
        (["seed=1,,2"], "seed=1,,2\n", None),
        (["rewards.é.weight=0,1"], "rewards.é.weight=0,1\n", None),
    ],
)
def test_wrong_grids_are_refused(typed: list[str], got: str, hint: str | None) -> None:
    with pytest.raises(UserError) as raised:
        grid_of(typed)
    error = raised.value
    assert error.where == "command line"
    assert str(error.got).startswith(got)
    assert "expecting" not in str(error.got)  # as ANTLR says it
    assert error.hint == hint
    assert error.expected
    assert error.advice or typed != ["seed=7"]  # the advice tells how to type several values
    assert not (error.advice and "é" in typed[0])  # no quotes around the value help


def test_all_mistakes_of_a_grid_are_reported_together() -> None:
    with pytest.raises(Problems) as raised:
        grid_of(["seed=interval(0,1)", "a=1,1", "hydra/sweeper=optuna"])
    assert len(raised.value.problems) == 3


def test_keys_are_shortened_as_far_as_they_stay_unique() -> None:
    short = {"rewards.a.weight": "a.weight", "rewards.b.weight": "b.weight", "reward@rewards.x": "x", "exp": "exp"}
    long = {"seed": "seed", "data.seed": "data.seed"}
    assert short_keys([*short, *long]) == short | long


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["0", "0.5", "-1"], ["k=0", "k=0.5", "k=-1"]),
        (["1e-05", "0.0001"], ["k=1e-5", "k=0.0001"]),
        (["[1,2]", "{x:1}"], ["k=1-2", "k=x-1"]),
        (["a b", ""], ["k=a-b", "k=empty"]),
    ],
)
def test_values_appear_in_names_as_users_type_them(values: list[str], names: list[str]) -> None:
    assert names_of([{"a.k": value} for value in values]) == names
    assert names_of([{"a.k": values[0]}]) == names[:1]


def test_every_value_makes_a_unique_folder_name() -> None:
    """Name three hundred values that become equal without unsafe characters or after shortening."""
    texts = ["".join(letters) for letters in itertools.product("/ .,='", "ab$", "/*x", "\n~é")]
    texts += [f"{'/long/path' * 20}/{number}" for number in range(90)]
    names = names_of([{"model.path": text, "seed": "1"} for text in texts])
    assert len(set(names)) == len(texts)
    assert all(re.fullmatch(r"path=[A-Za-z0-9._+-]+,seed=1(~[0-9a-f]{6})?", name) for name in names)
    assert max(map(len, names)) < 60


def test_a_value_of_32_characters_and_a_name_of_120_are_whole() -> None:
    """A longer one is cut and ends in a hash; of a value its end is kept."""
    whole, cut = names_of([{"k": "x" * 32}, {"k": "y" + "x" * 32}])
    assert whole == f"k={'x' * 32}"
    assert re.fullmatch(f"{whole}~[0-9a-f]{{6}}", cut)
    keys = ("a", "b", "c")
    whole, cut = names_of([dict.fromkeys(keys, "x" * 32) | {"d": "x" * length} for length in (13, 14)])
    assert (len(whole), "~" in whole) == (120, False)
    assert re.fullmatch(f"{whole[:104]},and-1-more~[0-9a-f]{{6}}", cut)
    (cut,) = names_of([dict.fromkeys(("a", "b" * 80, "c"), "x" * 32) | {"seed": "10"}])
    assert re.match(f"a={'x' * 32},c={'x' * 32},seed=10,and-1-more~", cut)
    assert re.fullmatch("k{120}~[0-9a-f]{6}", *names_of([{"k" * 300: "1"}]))


def test_a_sweep_has_at_most_5000_runs() -> None:
    assert len(grid_of(["seed=range(0,5000)"])[1]) == 5000
    assert len(grid_of(["seed=range(4000,9000,2)"])[1]) == 2500
    with pytest.raises(UserError):
        grid_of(["seed=range(0,5001)"])
