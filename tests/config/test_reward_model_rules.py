"""The section `reward_model`: what it may hold, and with which trainer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import RewardModel
from rlhf_cli.errors import ConfigError

pytestmark = pytest.mark.usefixtures("place")
Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]

REWARD = ("trainer=reward", "data=toy_preferences")
SCORES = "reward_model.margin={chosen: score_chosen, rejected: score_rejected}"


def test_the_shipped_trainer_says_the_defaults(judged: Judged) -> None:
    assert judged(*REWARD).reward_model == RewardModel()
    assert judged("exp=quickstart").reward_model is None


def test_a_margin_of_two_scores(judged: Judged) -> None:
    section = judged(*REWARD, SCORES).reward_model
    assert section is not None
    assert section.margin is not None
    assert section.margin.columns == ("score_chosen", "score_rejected")
    assert (section.margin.scale, section.margin.transform, section.margin.on_bad) == (1.0, "identity", "refuse")


def test_what_was_judged_is_judged_the_same_when_it_is_read_back(judged: Judged) -> None:
    """The ranks read the frozen configuration, in which every default is written out."""
    for margin in ("{column: strength}", "{chosen: a, rejected: b, transform: rank}"):
        section = judged(*REWARD, f"reward_model.margin={margin}").reward_model
        assert section is not None
        assert RewardModel.model_validate(section.model_dump(mode="json")) == section


@pytest.mark.parametrize(
    "margin",
    ["{}", "{chosen: a}", "{rejected: b}", "{column: m, chosen: a}", "{column: m, chosen: a, rejected: b}"],
)
def test_a_margin_comes_from_one_place(refused: Refused, margin: str) -> None:
    error = refused(*REWARD, f"reward_model.margin={margin}")
    assert str(error.where).startswith("reward_model.margin")
    assert error.expected == "either `column`, or `chosen` and `rejected`: the columns of two scores"


@pytest.mark.parametrize("more", ["scale: 2.0", "transform: rank"])
def test_a_column_holds_the_margin_itself(refused: Refused, more: str) -> None:
    error = refused(*REWARD, f"reward_model.margin={{column: m, {more}}}")
    assert error.expected == "`scale` and `transform` with two scores only; a `column` holds the margin itself"


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("reward_model.margin={chosen: a, rejected: b, scale: 0}", "reward_model.margin.scale"),
        ("reward_model.margin={chosen: a, rejected: b, transform: sqrt}", "reward_model.margin.transform"),
        ("reward_model.margin={column: m, on_bad: ignore}", "reward_model.margin.on_bad"),
        ("reward_model.center=-0.1", "reward_model.center"),
        ("reward_model.center=.nan", "reward_model.center"),
        ("reward_model.show_samples=-2", "reward_model.show_samples"),
        ("reward_model.show_samples=all", "reward_model.show_samples"),
        ("reward_model.on_bad_pair=ignore", "reward_model.on_bad_pair"),
    ],
)
def test_a_value_out_of_bounds(refused: Refused, typed: str, key: str) -> None:
    assert str(refused(*REWARD, typed).where).startswith(key)


def test_a_score_less_itself(refused: Refused) -> None:
    error = refused(*REWARD, "reward_model.margin={chosen: score, rejected: score}")
    assert error.what == "the margin of a score to itself is always 0"
    assert str(error.where).startswith("reward_model.margin.rejected")


@pytest.mark.parametrize("words", [("exp=quickstart",), ("exp=quickstart", "trainer=ppo")])
def test_a_trainer_that_trains_no_reward_model(refused: Refused, words: tuple[str, ...]) -> None:
    error = refused(*words, "reward_model.center=0.01")
    assert error.what.endswith("trains no reward model")
    assert error.where == "reward_model (command line)"
    assert error.hint == "trainer=reward, or ~reward_model"
