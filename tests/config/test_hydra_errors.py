"""What a user types, as Hydra gets it; what is wrong with it is told by file and line, with what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.overrides import rewrite
from rlhf_cli.config.schema.run_sections import expectations_of
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.jobs.prepare import prepare

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


Refused = Callable[..., ConfigError]

HEADER = "# @package _global_\n"


class TestReferences:
    @pytest.mark.parametrize(
        ("text", "hint"),
        [
            ("${rewards.format.weigth}", "${rewards.format.weight}"),
            ("${rewards.fromat.weight}", "${rewards.format.weight}"),
            ("${..format.weigth}", "${rewards.format.weight}"),
            ("${trainer.args.max_step}", "${trainer.args.max_steps}"),
            ("${oc.evn:HOME}", "${oc.env:HOME}"),
        ],
    )
    def test_the_line_and_the_nearest(self, write: Write, refused: Refused, text: str, hint: str) -> None:
        lines = ["defaults: [quickstart, _self_]", "rewards:", "  brevity:", f"    weight: {text}"]
        write("conf/exp/mine.yaml", HEADER + "\n".join(lines) + "\n")
        error = refused("exp=mine")
        assert error.where == "rewards.brevity.weight (conf/exp/mine.yaml:5)"
        assert str(error.got).startswith(text)
        assert error.hint == hint

    def test_all_at_once_on_the_command_line(self) -> None:
        with pytest.raises(Problems) as caught:
            prepare(["exp=quickstart", "seed=${sed}", "track.notes=${run.nme}", "track.tags=[a,'${run.roto}']"])
        assert [problem.hint for problem in caught.value.problems] == ["${seed}", "${run.name}", "${run.root}"]
        assert str(caught.value.problems[2].where).startswith("track.tags.1 (command line)")

    def test_a_variable_that_is_not_set(self, refused: Refused) -> None:
        error = refused("exp=quickstart", "run.name=${oc.env:NOT_SET_HERE}")
        assert error.what == "the environment variable NOT_SET_HERE is not set"
        assert error.where == "run.name (command line)"

    def test_negative_control_a_reference_that_leads_somewhere(self, write: Write) -> None:
        text = "defaults: [quickstart, _self_]\nrewards: {brevity: {weight: '${rewards.format.weight}'}}\n"
        write("conf/exp/mine.yaml", HEADER + text)
        assert prepare(["exp=mine"]).experiment.rewards["brevity"].weight == 0.5


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

    def test_negative_control_hydra_takes_it_as_the_first_line(self, write: Write, by_hydra: None) -> None:
        write("conf/exp/mine.yaml", "\n#   @package   _global_\n# mine\ndefaults: [quickstart, _self_]\nseed: 3\n")
        assert prepare(["exp=mine"]).experiment.seed == 3

    def test_negative_control_an_experiment_that_another_builds_on_needs_none(self, write: Write) -> None:
        """It is read where the other stands."""
        write("conf/exp/base.yaml", "defaults: [quickstart, _self_]\nseed: 3\n")
        write("conf/exp/mine.yaml", HEADER + "defaults: [base, _self_]\n")
        assert prepare(["exp=mine"]).experiment.seed == 3


class TestADefaultsList:
    @pytest.mark.parametrize(
        ("entry", "meant"),
        [
            ("/reward@rewards.a: brevty", "- /reward@rewards.a: brevity"),
            ("/rewrad@rewards.a: brevity", "- /reward@rewards.a: brevity"),
            ("override /trainr: ppo", "- override /trainer: ppo"),
            ("override /trainer: pppo", "- override /trainer: ppo"),
            ("/trainer: ppo", "- override /trainer: ppo"),
            ("quikstart", "- quickstart"),
            ("/exp/toy_stf", "- /exp/toy_sft"),
            ("override /reward: brevity", "- /reward@rewards.NAME: brevity"),
        ],
    )
    def test_the_line_and_the_nearest(self, write: Write, refused: Refused, entry: str, meant: str) -> None:
        write("conf/exp/mine.yaml", f"{HEADER}# mine\ndefaults:\n  - /reward@rewards.b: brevity\n  - {entry}\n")
        error = refused("exp=mine")
        assert (error.where, error.hint) == ("conf/exp/mine.yaml:5", meant)

    def test_all_at_once_and_in_the_file_it_builds_on(self, write: Write) -> None:
        write("conf/exp/base.yaml", f"{HEADER}defaults:\n  - override /modle: tiny\n")
        write("conf/exp/mine.yaml", f"{HEADER}defaults:\n  - base\n  - _self_\n  - override /data: toy_smus\n")
        with pytest.raises(Problems) as caught:
            prepare(["exp=mine"])
        told = [(problem.where, problem.hint) for problem in caught.value.problems]
        assert told == [
            ("conf/exp/base.yaml:3", "- override /model: tiny"),
            ("conf/exp/mine.yaml:5", "- override /data: toy_sums"),
        ]

    def test_an_entry_behind_the_overrides(self, write: Write, refused: Refused) -> None:
        text = "defaults:\n  - override /trainer: ppo\n  - /reward@rewards.a: brevity\n"
        write("conf/exp/mine.yaml", HEADER + text)
        error = refused("exp=mine")
        assert (error.where, error.hint) == ("conf/exp/mine.yaml:4", "put line 4 above line 3")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("track.tags=[a,b", "'track.tags=[a,b]'"),
        ("model.lora={r: 8", "'model.lora={r: 8}'"),
        ("stop={when: kl > 0.5, for: 3}", "\"stop={when: 'kl > 0.5', for: 3}\""),
        ("~rewards.brevty", "'~rewards.brevity'"),
        ("~trainer.args.max_step", "'~trainer.args.max_steps'"),
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
        (["quikstart"], "+exp=quickstart"),
        (["conf/exp/mine.yaml"], "+exp=mine"),
        (["ppo"], "trainer=ppo"),
        (["brevity"], "reward@rewards.brevity=brevity"),
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


@pytest.mark.parametrize(
    ("typed", "expected", "hint"),
    [
        ("model.lora=8", "a section with r, lora_alpha", "model.lora.r=8"),
        ("model.lora=true", "a section with r, lora_alpha", "'model.lora={}'"),
        ("rewards.brevity=0.5", "a section with fn, model", "rewards.brevity.weight=0.5"),
        ("+rewards.short=brevity", "a section with fn, model", "reward@rewards.short=brevity"),
        ("rewards.brevity.gate=correct", "a section with by", "'rewards.brevity.gate={by: correct, ...}'"),
    ],
)
def test_a_value_in_the_place_of_a_section(refused: Refused, typed: str, expected: str, hint: str) -> None:
    error = refused("exp=quickstart", typed)
    assert str(error.expected).startswith(expected)
    assert error.hint == hint


@pytest.mark.parametrize("typed", ["stop.whn=reward > 1", "stop={whn: 'reward > 1'}", "stop={when: 3}"])
def test_a_rule_to_stop_by_is_of_the_command_line_though_the_file_says_null(refused: Refused, typed: str) -> None:
    assert str(refused("exp=quickstart", typed).where) in ("stop.when (command line)", "stop.whn (command line)")


def test_negative_control_what_a_file_says_stays_the_files(write: Write, refused: Refused) -> None:
    write("conf/exp/mine.yaml", HEADER + "defaults: [quickstart, _self_]\nstop: {when: 3}\n")
    assert refused("exp=mine", "seed=4").where == "stop.when (conf/exp/mine.yaml:3)"


@pytest.mark.parametrize(
    ("mine", "where", "got"),
    [
        (
            "expect:\n  good: {metric: total, at_least: 0.2}",
            "expect (conf/exp/mine.yaml:3)",
            "a list in exp/quickstart",
        ),
        ("rewards: [correct]", "rewards (conf/exp/mine.yaml:3)", "keys with values in exp/quickstart"),
    ],
)
def test_a_list_and_a_mapping_under_one_key(write: Write, refused: Refused, mine: str, where: str, got: str) -> None:
    """The quickstart has a list of expectations, and a mapping of rewards: OmegaConf merges like into like alone."""
    write("conf/exp/mine.yaml", HEADER + "defaults: [quickstart, _self_]\n" + mine + "\n")
    error = refused("exp=mine")
    assert error.what.endswith("which cannot be merged")
    assert error.where == where
    assert f"; {got}.yaml:" in str(error.got)


def test_negative_control_a_list_takes_the_place_of_a_list(write: Write) -> None:
    mine = "defaults: [quickstart, _self_]\nexpect: [{metric: total, at_least: 0.125}]\n"
    write("conf/exp/mine.yaml", HEADER + mine)
    (one,) = expectations_of(prepare(["exp=mine"]).experiment.expect).values()
    assert one.at_least == 0.125
