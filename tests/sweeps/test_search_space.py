"""What may be searched is read from Hydra's words: the grammar is Hydra's, the expectations are its documentation's.

https://hydra.cc/docs/plugins/optuna_sweeper shows the same words for the same distributions.
"""

from __future__ import annotations

import math

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from rlhf_cli.errors import ConfigError
from rlhf_cli.sweeps.search_space import (
    NumberRange,
    OptionList,
    distribution,
    from_section,
    read_objective,
    split_words,
    value_so_far,
    word_of,
)


def test_words_that_hold_for_every_trial_are_apart_from_those_that_are_searched() -> None:
    fixed, space = split_words(["+exp=quickstart", "seed=3", "a=interval(0,1)", "b=[1,2]", "truncation=none,exclude"])
    assert fixed == ["+exp=quickstart", "seed=3", "b=[1,2]"]
    assert space == {"a": NumberRange(0.0, 1.0), "truncation": OptionList(("none", "exclude"))}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("x=interval(0,1)", FloatDistribution(0, 1)),
        ("x=tag(log,interval(1e-6,1e-4))", FloatDistribution(1e-6, 1e-4, log=True)),
        ("x=int(interval(1,8))", IntDistribution(1, 8)),
        ("x=range(1,9)", IntDistribution(1, 8)),  # a range leaves its stop out, as Python's does
        ("x=choice(a,b)", CategoricalDistribution(("a", "b"))),
        ("x=range(0,1,0.5)", CategoricalDistribution(("0.0", "0.5"))),
    ],
)
def test_hydras_words_are_optunas_distributions(word: str, expected: object) -> None:
    _, space = split_words([word])
    assert distribution(space["x"]) == expected


@pytest.mark.parametrize("word", ["x=interval(1,1)", "x=interval(2,1)", "x=tag(log,interval(0,1))", "x=choice(a)"])
def test_what_holds_nothing_to_choose_from_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"nothing to"):
        split_words([word])


def test_a_star_stands_for_every_reward_and_what_was_typed_stays() -> None:
    space = from_section({"rewards.*.weight": "interval(0,2)"}, ["correct", "style"], ["rewards.correct.weight"])
    assert space == {"rewards.style.weight": NumberRange(0.0, 2.0)}


def test_a_star_that_stands_for_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="stands for no reward"):
        from_section({"rewards.*.weight": "interval(0,2)"}, [], [])


@pytest.mark.parametrize(
    ("may_be", "value", "word"),
    [
        (NumberRange(0, 1), 0.1, "k=0.1"),
        (NumberRange(1, 8, is_whole=True), 4, "k=4"),
        (OptionList(("none", "exclude")), "none", "k=none"),
    ],
)
def test_a_proposal_is_the_word_a_user_would_type(may_be: NumberRange | OptionList, value: object, word: str) -> None:
    assert word_of("k", may_be, value) == word


# What a run is worth to a search, from what it has logged.


def test_of_what_is_held_out_it_is_the_last_value() -> None:
    logged = [float(step) for step in range(1, 31)]
    assert value_so_far(read_objective("eval_greedy/rewards/a"), logged) == 30
    assert value_so_far(read_objective("eval_greedy/rewards/a"), [0.2, 0.9, 0.4, math.nan]) == 0.4


@pytest.mark.parametrize("logged", [[], [math.nan, math.inf]])
def test_what_has_no_number_has_no_value(logged: list[float]) -> None:
    assert value_so_far(read_objective("-kl"), logged) is None


def test_the_name_of_a_reward_stands_for_its_raw_mean() -> None:
    assert str(read_objective("-brevity", ["correct", "brevity"])) == "-rewards/brevity/mean"
    assert str(read_objective("loss", ["correct"])) == "loss"
