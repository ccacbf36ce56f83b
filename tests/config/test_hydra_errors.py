"""What a user types, as Hydra gets it; what is wrong with it is told by file and line, with what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.compose import rewrite
from rlhf_cli.errors import ConfigError

pytestmark = pytest.mark.usefixtures("place", "by_hydra")
Write = Callable[[str, str], Path]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("exp=quickstart", "+exp=quickstart"),
        ("+exp=quickstart", "+exp=quickstart"),
        ("seed=7", "++seed=7"),
        ("+seed=7", "++seed=7"),
        ("rewards.new.args.pattern=a=b", "++rewards.new.args.pattern=a=b"),
        ("trainer=rloo", "trainer=rloo"),
        ("trainer=grpo,rloo", "trainer=grpo,rloo"),
        ("trainer=glob(*)", "trainer=glob(*)"),
        ("data.prompt=Q: {question}, please", "++data.prompt='Q: {question}, please'"),
        ("model={path: x}", "++model={path: x}"),
        ("~rewards.format", "~rewards.format"),
        ("reward@rewards.x=brevity", "+reward@rewards.x=brevity"),
    ],
)
def test_one(typed: str, expected: str) -> None:
    assert rewrite([typed]) == [expected]


def test_a_group_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="unknown group 'rewrd'") as caught:
        rewrite(["rewrd@rewards.x=brevity"])
    assert caught.value.hint == "reward"


def test_a_ready_made_reward_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="a name of your own") as caught:
        rewrite(["reward=brevity"])
    assert caught.value.hint == "reward@rewards.NAME=brevity"


@pytest.mark.parametrize("typed", ["hydra.run.dir=mine", "hydra/launcher=joblib", "+hydra.sweeper.n_trials=3"])
def test_words_about_hydra_itself_are_refused_on_one_run(typed: str) -> None:
    """Nothing of ours reads them: taken in silence they would seem to have been obeyed."""
    with pytest.raises(ConfigError, match="Hydra only composes") as caught:
        rewrite(["+exp=quickstart", typed])
    assert caught.value.got == typed


Refused = Callable[..., ConfigError]

HEADER = "# @package _global_\n"


class TestReferences:
    @pytest.mark.parametrize(
        ("text", "hint"),
        [("${rewards.format.weigth}", "${rewards.format.weight}"), ("${..format.weigth}", "${rewards.format.weight}")],
    )
    def test_the_line_and_the_nearest(self, write: Write, refused: Refused, text: str, hint: str) -> None:
        lines = ["defaults: [quickstart, _self_]", "rewards:", "  brevity:", f"    weight: {text}"]
        write("conf/exp/mine.yaml", HEADER + "\n".join(lines) + "\n")
        error = refused("exp=mine")
        assert error.where == "rewards.brevity.weight (conf/exp/mine.yaml:5)"
        assert str(error.got).startswith(text)
        assert error.hint == hint

    def test_a_variable_that_is_not_set(self, refused: Refused) -> None:
        error = refused("exp=quickstart", "run.name=${oc.env:NOT_SET_HERE}")
        assert error.what == "the environment variable NOT_SET_HERE is not set"
        assert error.where == "run.name (command line)"


class TestAForgottenHeader:
    @pytest.mark.parametrize(
        "text", ["# mine\ndefaults: [quickstart, override /model: tiny, _self_]\nseed: 3\n", "seed: 3\n", ""]
    )
    def test_it_is_asked_for(self, write: Write, refused: Refused, text: str) -> None:
        write("conf/exp/mine.yaml", text)
        error = refused("exp=mine")
        assert (error.where, error.hint) == ("conf/exp/mine.yaml:1", "# @package _global_")

    @pytest.mark.parametrize("line", ["# @pakcage _global_", "# @package _globl_", "# @package _global_"])
    def test_one_that_hydra_passes_over_is_shown(self, write: Write, refused: Refused, line: str) -> None:
        """Misspelt, or, though it is right, behind another comment."""
        write("conf/exp/mine.yaml", f"# mine\n{line}\nseed: 3\n")
        assert refused("exp=mine").got == f"line 2: {line}"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("track.tags=[a,b", "'track.tags=[a,b]'"),
        ("stop={when: kl > 0.5, for: 3}", "\"stop={when: 'kl > 0.5', for: 3}\""),
        ("~rewards.brevty", "'~rewards.brevity'"),
        ("~rewards.brevity=3", "'~rewards.brevity'"),
    ],
)
def test_words_that_hydra_does_not_take(refused: Refused, typed: str, hint: str) -> None:
    error = refused("exp=quickstart", typed)
    assert (error.where, error.hint) == ("command line", hint)
    assert str(error.got).startswith(typed)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["quickstart"], "+exp=quickstart"),
        (["conf/exp/mine.yaml"], "+exp=mine"),
        (["ppo"], "trainer=ppo"),
        (["seed"], "seed=VALUE"),
        (["trainer.args.learning_rate", "1e-5"], "trainer.args.learning_rate=1e-5"),
        (["rewards.a.gate={by:", "format}"], "'rewards.a.gate={by: format}'"),
        (["wombat"], "rlhf list exp"),
    ],
)
def test_bare_words(refused: Refused, words: list[str], hint: str) -> None:
    error = refused("exp=quickstart", *words)
    assert error.hint == hint
    assert error.what.endswith("is not an override")


def test_an_option_that_a_defaults_list_misspells(write: Write, refused: Refused) -> None:
    """In Hydra's words, with the file and the nearest option."""
    write("conf/exp/mine.yaml", f"{HEADER}defaults:\n  - quickstart\n  - override /trainer: pppo\n  - _self_\n")
    error = refused("exp=mine")
    assert "trainer/pppo" in str(error.got)
    assert error.hint == "ppo"
