"""What a user types, as Hydra gets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.overrides import rewrite
from rlhf_cli.errors import ConfigError

pytestmark = pytest.mark.usefixtures("place", "by_hydra")
Write = Callable[[str, str], Path]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("exp=quickstart", "+exp=quickstart"),
        ("+exp=quickstart", "+exp=quickstart"),
        ("++exp=quickstart", "+exp=quickstart"),
        ("seed=7", "++seed=7"),
        ("+seed=7", "++seed=7"),
        ("++seed=7", "++seed=7"),
        ("trainer.args.learning_rate=1e-5", "++trainer.args.learning_rate=1e-5"),
        ("rewards.new.args.pattern=a=b", "++rewards.new.args.pattern=a=b"),
        ("track.notes=", "++track.notes="),
        ("trainer=rloo", "trainer=rloo"),
        ("+trainer=rloo", "trainer=rloo"),
        ("trainer=grpo,rloo", "trainer=grpo,rloo"),
        ("trainer=glob(*)", "trainer=glob(*)"),
        ("data.prompt=Q: {question}, please", "++data.prompt='Q: {question}, please'"),
        ("model={path: x}", "++model={path: x}"),
        ("~rewards.format", "~rewards.format"),
        ("~rewards", "~rewards"),
        ("reward@rewards.x=brevity", "+reward@rewards.x=brevity"),
        ("+reward@rewards.x=brevity", "+reward@rewards.x=brevity"),
    ],
)
def test_one(typed: str, expected: str) -> None:
    assert rewrite([typed]) == [expected]


def test_the_order_of_values_is_kept() -> None:
    assert rewrite(["seed=1", "seed=2"]) == ["++seed=1", "++seed=2"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("+exp=quickstrat", "exp=quickstart"),
        ("trainer=grop", "trainer=grpo"),
        ("trainer=rloo,grop", "trainer=grpo"),
        ("reward@rewards.x=brevty", "reward@rewards.x=brevity"),
        ("data=zzz", "rlhf list data"),
        ("exp=null", "rlhf list exp"),
        ("track=null", "track=none"),
        ("track=", "rlhf list track"),
    ],
)
def test_an_option_that_does_not_exist(typed: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite([typed])
    error = caught.value
    assert error.where == "command line"
    assert error.got == typed.lstrip("+")
    assert str(error.expected).startswith("one of ")
    assert error.hint == hint


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("quickstart", "+exp=quickstart"), ("--fast", "rlhf list exp"), ("=3", "rlhf list exp")],
)
def test_a_word_that_is_no_override(typed: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="is not an override") as caught:
        rewrite([typed])
    assert caught.value.hint == hint
    assert "key=value" in str(caught.value.expected)


def test_a_group_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="unknown group 'rewrd'") as caught:
        rewrite(["rewrd@rewards.x=brevity"])
    assert caught.value.hint == "reward"


def test_a_ready_made_reward_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="a name of your own") as caught:
        rewrite(["reward=brevity"])
    assert caught.value.hint == "reward@rewards.NAME=brevity"


def test_an_option_of_the_users_own_is_known(write: Write) -> None:
    with pytest.raises(ConfigError):
        rewrite(["model=mine"])
    write("conf/model/mine.yaml", "# mine\npath: a/b\n")
    assert rewrite(["model=mine"]) == ["model=mine"]


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("hydra.run.dir=mine", "run.root and run.name say where a run lies"),
        ("hydra/launcher=joblib", "-j N runs N at a time"),
        ("+hydra.sweeper.n_trials=3", "-m makes of the values"),
        ("hydra.mode=MULTIRUN", "-m makes a sweep"),
    ],
)
def test_words_about_hydra_itself_are_refused_on_one_run(typed: str, instead: str) -> None:
    """Nothing of ours reads them: taken in silence they would seem to have been obeyed."""
    with pytest.raises(ConfigError, match="Hydra only composes") as caught:
        rewrite(["+exp=quickstart", typed])
    assert caught.value.got == typed
    assert instead in str(caught.value.expected)
