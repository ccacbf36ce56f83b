"""What may be searched is read from Hydra's words: the grammar is Hydra's, the expectations are its documentation's.

https://hydra.cc/docs/plugins/optuna_sweeper shows the same words for the same distributions.
"""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from rlhf_cli.errors import ConfigError
from rlhf_cli.sweeps.search_space import (
    NumberRange,
    OptionList,
    distribution,
    from_section,
    split_words,
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


def test_corners_are_the_values_to_check_before_the_first_trial() -> None:
    assert NumberRange(0, 2).corners() == ["0.0", "2.0"]
    assert NumberRange(1, 8, is_whole=True).corners() == ["1", "8"]
    assert OptionList(("a", "b", "c")).corners() == ["a", "b", "c"]
