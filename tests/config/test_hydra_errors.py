"""What a user types, as Hydra gets it; what is wrong with it is told by file and line, with what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.compose import compose, rewrite
from rlhf_cli.errors import ConfigError, Problems

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


class TestADefaultsList:
    @pytest.mark.parametrize(
        ("entry", "meant"),
        [
            ("/trainer: ppo", "- override /trainer: ppo"),
            ("trainer: ppo", "- override /trainer: ppo"),
            ("override trainer: ppo", "- override /trainer: ppo"),
            ("override /trainer:ppo", "- override /trainer: ppo"),
            ("overide /trainer: ppo", "- override /trainer: ppo"),
            ("trainer=ppo", "- override /trainer: ppo"),
            ("ppo", "- override /trainer: ppo"),
            ("override /trainr: ppo", "- override /trainer: ppo"),
            ("override /trainer: pppo", "- override /trainer: ppo"),
            ("override /trainer: {name: ppo}", "- override /trainer: NAME"),
            ("/reward@rewards.a: brevty", "- /reward@rewards.a: brevity"),
            ("/rewrad@rewards.a: brevity", "- /reward@rewards.a: brevity"),
            ("reward@rewards.a: brevity", "- /reward@rewards.a: brevity"),
            ("override /reward@rewards.a: brevity", "- /reward@rewards.a: brevity"),
            ("/reward@a: brevity", "- /reward@rewards.a: brevity"),
            ("/reward: brevity", "- /reward@rewards.brevity: brevity"),
            ("quikstart", "- quickstart"),
            ("exp/quickstart", "- /exp/quickstart"),
            ("/exp: quickstart", "- quickstart"),
            ("self", "- _self_"),
        ],
    )
    def test_the_line_as_it_was_meant(self, write: Write, refused: Refused, entry: str, meant: str) -> None:
        write("conf/exp/mine.yaml", f"{HEADER}# mine\ndefaults:\n  - /reward@rewards.b: brevity\n  - {entry}\n")
        error = refused("exp=mine")
        assert (error.where, error.hint) == ("conf/exp/mine.yaml:5", meant)

    @pytest.mark.parametrize(
        "entries",
        [
            "[quickstart, {override /trainer: rloo}]",
            "[/exp/quickstart, _self_, {override /track: none}]",
            "[quickstart, {/reward@rewards.a: brevity}, {override /trainer: mine}, _self_]",
        ],
    )
    def test_negative_control_lists_that_are_right(self, write: Write, refused: Refused, entries: str) -> None:
        """Nothing is said of them when something else fails."""
        write("conf/trainer/mine.yaml", "defaults: [grpo, _self_]\nargs: {beta: 0.5}\n")
        write("conf/exp/mine.yaml", f"{HEADER}defaults: {entries}\nseed: 3\n")
        compose(["exp=mine"])
        assert refused("exp=mine", "track.tags=[a").where == "command line"

    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("defaults: {trainer: ppo, /model: tiny}", ["- override /trainer: ppo", "- override /model: tiny"]),
            ("defaults: quickstart", ["- quickstart"]),
            ("default: [quickstart]", ["- ..."]),
        ],
    )
    def test_defaults_that_are_no_list(self, write: Write, refused: Refused, written: str, meant: list[str]) -> None:
        write("conf/exp/mine.yaml", HEADER + written + "\n")
        error = refused("exp=mine")
        assert (error.where, error.hint) == ("conf/exp/mine.yaml:2", "\n  ".join(["defaults:", *meant, "- _self_"]))

    def test_all_at_once_in_every_file_that_is_read(self, write: Write) -> None:
        write("conf/trainer/mine.yaml", "defaults: [grop, _self_]\n")
        write("conf/exp/base.yaml", "defaults:\n  - override /modle: tiny\nrewards: [brevity]\n")
        write("conf/exp/mine.yaml", "defaults:\n  - base\n  - override /trainer: mine\n  - override /data: toy_smus\n")
        with pytest.raises(Problems) as caught:
            compose(["exp=mine"])
        assert [(problem.where, problem.hint) for problem in caught.value.problems] == [
            ("conf/exp/mine.yaml:1", "# @package _global_"),
            ("conf/exp/mine.yaml:4", "- override /data: toy_sums"),
            ("conf/exp/base.yaml:2", "- override /model: tiny"),
            ("conf/trainer/mine.yaml:1", "- grpo"),
        ]

    def test_an_entry_behind_the_overrides(self, write: Write, refused: Refused) -> None:
        text = "defaults:\n  - override /trainer: ppo\n  - /reward@rewards.a: brevity\n  - _self_\n"
        write("conf/exp/mine.yaml", HEADER + text)
        error = refused("exp=mine")
        assert (error.where, error.advice) == ("conf/exp/mine.yaml:4", "move line 4 above line 3")


class TestRewardsWithoutNames:
    """What everybody writes first who comes from TRL."""

    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("[./r.py:f, {fn: ./r.py:g, weight: 0.5}]", "{f: {fn: './r.py:f'}, g: {fn: './r.py:g', weight: 0.5}}"),
            ("[{name: ok, fn: ./r.py:f}]", "{ok: {fn: './r.py:f'}}"),
            ("[polite]", "{polite: {fn: './rewards.py:polite'}}"),
            ("./r.py:f", "{f: {fn: './r.py:f'}}"),
        ],
    )
    def test_in_a_file(self, write: Write, refused: Refused, written: str, meant: str) -> None:
        write("conf/exp/mine.yaml", f"{HEADER}defaults: [quickstart, _self_]\nrewards: {written}\n")
        error = refused("exp=mine")
        assert (error.where, error.hint) == ("rewards (conf/exp/mine.yaml:3)", f"rewards: {meant}")

    def test_ready_made_ones_are_chosen_in_the_defaults(self, write: Write, refused: Refused) -> None:
        write("conf/exp/mine.yaml", HEADER + "rewards:\n  - brevity\n  - digits_only\n")
        lines = ["- /reward@rewards.brevity: brevity", "- /reward@rewards.digits_only: digits_only"]
        assert refused("exp=mine").hint == "\n".join(lines)

    @pytest.mark.parametrize(
        ("typed", "meant"),
        [
            ("rewards=[brevity]", "reward@rewards.brevity=brevity"),
            (
                "rewards=[polite,correct]",
                "rewards.polite.fn=./rewards.py:polite rewards.correct.fn=./rewards.py:correct",
            ),
            ("rewards=./r.py:f", "rewards.f.fn=./r.py:f"),
        ],
    )
    def test_on_the_command_line(self, refused: Refused, typed: str, meant: str) -> None:
        error = refused("exp=quickstart", typed)
        assert (error.where, error.hint) == ("rewards (command line)", meant)


@pytest.mark.parametrize(
    ("mine", "typed", "where"),
    [
        ("expect: {good: {metric: total, at_least: 0.2}}", [], "expect (conf/exp/mine.yaml:3)"),
        ("seed: 3", ["trainer.args=[a]"], "trainer.args (command line)"),
    ],
)
def test_a_list_and_a_mapping_under_one_key(
    write: Write, refused: Refused, mine: str, typed: list[str], where: str
) -> None:
    """The quickstart has a list of expectations and a mapping of arguments; OmegaConf merges neither with the other."""
    write("conf/exp/mine.yaml", HEADER + "defaults: [quickstart, _self_]\n" + mine + "\n")
    assert refused("exp=mine", *typed).where == where


def test_a_list_of_options_of_a_group(refused: Refused) -> None:
    assert refused("exp=quickstart", "trainer=[pppo]").hint == "trainer=ppo"
