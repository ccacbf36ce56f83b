"""The space of a search is written in Hydra's grammar; the expected values are those of its documentation.

https://hydra.cc/docs/plugins/optuna_sweeper shows the same words for the same distributions.
"""

from __future__ import annotations

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rlhf_cli.errors import ConfigError
from rlhf_cli.sweeps.swept_words import distribution_of, ends_of, from_section, in_words, read_objective, split_words


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
