"""Test how typed words become Hydra overrides, and that mistakes are reported with their file, line and correction."""

from __future__ import annotations

import subprocess

import pytest

from rlhf_cli.config.compose import compose, rewrite
from rlhf_cli.errors import ConfigError, Problems
from tests.support.planning import Judged, Refused, Write

pytestmark = pytest.mark.usefixtures("place", "by_hydra")


def test_typed_words_become_hydra_overrides() -> None:
    long = f"data.prompt=[{{content: {'a ' * 200}}}]"
    overrides = {
        "exp=quickstart": "+exp=quickstart",
        "seed=7": "++seed=7",
        "rewards.new.args.pattern=a=b": "++rewards.new.args.pattern=a=b",
        "trainer=rloo": "trainer=rloo",
        "trainer=grpo,rloo": "trainer=grpo,rloo",
        "trainer=glob(*)": "trainer=glob(*)",
        "data.prompt=Q: {question}, please": "++data.prompt='Q: {question}, please'",
        "model={path: x}": "++model={path: x}",
        long: f"++{long}",
        "~rewards.format": "~rewards.format",
        "data.path=~/rows.jsonl": "++data.path='~/rows.jsonl'",
        "reward@rewards.x=brevity": "+reward@rewards.x=brevity",
    }
    assert {typed: rewrite([typed]) for typed in overrides} == {typed: [one] for typed, one in overrides.items()}


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("rewrd@rewards.x=brevity", "reward@rewards.x=brevity"),
        ("reward=brevity", "reward@rewards.NAME=brevity"),
        ("trainer=pppo", "trainer=ppo"),
        ("trainer=PPOTrainer", "trainer=ppo"),
        ("exp=conf/exp/quickstart.yaml", "exp=quickstart"),
        ("model=", "rlhf list model"),
        ("data=.", "data=file data.path=."),
        ("reward@rewards.x=", "rlhf list reward"),
        ("hydra.run.dir=mine", None),
        ("hydra/launcher=joblib", None),
        ("+hydra.sweeper.n_trials=3", None),
    ],
)
def test_unknown_groups_and_options_and_hydras_own_settings_are_refused(typed: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite(["+exp=quickstart", typed])
    assert (caught.value.where, caught.value.got, caught.value.hint) == ("command line", typed, hint)
    assert caught.value.advice == ("leave it out" if "hydra" in typed else None)


HEADER = "# @package _global_\n"


@pytest.mark.parametrize(
    ("file", "typed", "hint"),
    [
        ("conf/exp/mine.yml", "exp=mine", "mv conf/exp/mine.yml conf/exp/mine.yaml"),
        ("mine.yaml", "exp=./mine.yaml", "mkdir -p conf/exp && mv mine.yaml conf/exp/mine.yaml"),
        ("my own.yaml", "my own.yaml", "mkdir -p conf/exp && mv 'my own.yaml' 'conf/exp/my own.yaml'"),
        ("conf/exp/mine.yaml", "conf/exp/mine.yaml", "+exp=mine"),
        ("conf/exp/mine.yaml", "exp=conf/exp/mine.yaml", "exp=mine"),
    ],
)
def test_a_file_where_no_option_is_looked_for(write: Write, refused: Refused, file: str, typed: str, hint: str) -> None:
    write(file, HEADER)
    assert refused(typed).hint == hint


def test_a_subfolder_of_the_project(write: Write, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    write("conf/exp/mine.yaml", HEADER)
    write("data/more/rows.jsonl", "{}")
    for folder, hint in (("data", "cd .."), ("more", "cd ../..")):
        monkeypatch.chdir(folder)
        assert refused("exp=mine").hint == hint


@pytest.mark.parametrize("text", ["${rewards.format.weigth}", "${..format.weigth}"])
def test_a_reference_to_a_missing_key_gets_the_nearest(write: Write, refused: Refused, text: str) -> None:
    write("conf/exp/mine.yaml", f"{HEADER}defaults: [quickstart, _self_]\nrewards:\n  brevity: {{weight: '{text}'}}\n")
    error = refused("exp=mine")
    assert (error.where, error.hint) == ("rewards.brevity.weight (conf/exp/mine.yaml:4)", "${rewards.format.weight}")
    assert str(error.got).startswith(text)
    error = refused("exp=quickstart", "run.name=${oc.env:NOT_SET_HERE}")
    assert (error.where, error.hint) == ("run.name (command line)", "export NOT_SET_HERE=...")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("defaults:\n- quickstart\n- override /model: ${oc.env:NOT_SET_HERE}\n", 4),
        ("defaults: [quickstart, _self_]\nseed: ${\n", 3),
    ],
)
def test_a_reference_that_hydra_itself_cannot_read(write: Write, refused: Refused, text: str, line: int) -> None:
    write("conf/exp/mine.yaml", HEADER + text)
    error = refused("exp=mine")
    assert (error.where, error.got) == (f"conf/exp/mine.yaml:{line}", text.splitlines()[line - 2])


def test_a_key_below_a_list_is_a_number(write: Write, refused: Refused) -> None:
    write("conf/exp/mine.yaml", f"{HEADER}defaults: [quickstart, _self_]\nstop: [{{when: kl > 0.5, for: 3}}]\n")
    assert refused("exp=mine", "stop.by=3").got == "'by', of a list"


@pytest.mark.parametrize(
    "text", ["# mine\ndefaults: [quickstart, override /model: tiny, _self_]\nseed: 3\n", "seed: 3\n", ""]
)
def test_a_missing_header(write: Write, refused: Refused, text: str) -> None:
    write("conf/exp/mine.yaml", text)
    error = refused("exp=mine")
    assert (error.where, error.hint) == ("conf/exp/mine.yaml:1", "# @package _global_")
    # Hydra ignores a misspelt header, and one behind another comment.
    for line in ("# @pakcage _global_", "# @package _globl_", "# @package _global_"):
        write("conf/exp/mine.yaml", f"# mine\n{line}\nseed: 3\n")
        assert refused("exp=mine").got == f"line 2: {line}"


def test_a_byte_order_mark_before_the_header(write: Write, refused: Refused, judged: Judged) -> None:
    """Hydra reads no header behind it."""
    write("conf/exp/mine.yaml", "\ufeff" + HEADER + "defaults: [quickstart, _self_]\n")
    error = refused("exp=mine")
    assert error.where == "conf/exp/mine.yaml:1"
    subprocess.run(str(error.hint), shell=True, check=True)
    assert judged("exp=mine")


@pytest.mark.parametrize(
    ("text", "has_advice"),
    [("prompt: Question: {q}", True), ("prompt: %x", True), ("prompt: @x", True), ("\tprompt: x", False)],
)
def test_a_text_that_needs_quotes(write: Write, refused: Refused, text: str, has_advice: bool) -> None:
    write("conf/exp/mine.yaml", f"{HEADER}data:\n  {text}\n")
    error = refused("exp=mine")
    assert (error.where, "quotes" in str(error.advice)) == ("conf/exp/mine.yaml:3", has_advice)


@pytest.mark.parametrize(
    "typed",
    ["track.tags=[a,b", "stop={when: kl > 0.5, for: 3}", "~rewards.brevty", "~rewards.brevity=3", "rewards.é.fn=a:b"],
)
def test_words_that_hydra_cannot_read(refused: Refused, typed: str) -> None:
    error = refused("exp=quickstart", typed)
    assert (error.where, error.hint) == ("command line", "'~rewards.brevity'" if typed.startswith("~") else None)
    assert str(error.got).startswith(typed)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("quickstart", "+exp=quickstart"),
        ("conf/exp/mine.yaml", "+exp=mine"),
        ("seed", "seed=VALUE"),
        ("trainer.args.learning_rate", "trainer.args.learning_rate=VALUE"),
        ("wombat", "rlhf list exp"),
        ("ppo", "trainer=ppo"),
        ("brevity", "+reward@rewards.brevity=brevity"),
        ("runs/mine/one", "rlhf resume runs/mine/one"),
    ],
)
def test_a_word_without_an_equals_sign(write: Write, refused: Refused, word: str, hint: str) -> None:
    write("runs/mine/one/config.yaml", "seed: 0\n")
    assert str(refused("exp=quickstart", word).hint).partition(",")[0] == hint


@pytest.mark.parametrize("defaults", ["_self_, quickstart", "quickstart, _self_"])
def test_a_value_that_the_own_defaults_replace(write: Write, refused: Refused, judged: Judged, defaults: str) -> None:
    write("conf/exp/mine.yaml", HEADER + f"defaults: [{defaults}]\ntrainer: {{args: {{max_completion_length: 9}}}}\n")
    if defaults.startswith("_self_"):
        assert refused("exp=mine").where == "trainer.args.max_completion_length (conf/exp/mine.yaml:3)"
    else:
        assert judged("exp=mine").trainer.args["max_completion_length"] == 9


NO_LIST = "defaults: [NAME, _self_]"


class TestADefaultsList:
    @pytest.mark.parametrize(
        ("meant", "entries"),
        [
            ("- override /trainer: ppo", ["/trainer: ppo", "trainer: ppo", "override trainer: ppo", "trainer=ppo"]),
            ("- override /trainer: ppo", ["override /trainer:ppo", "overide /trainer: ppo", "ppo"]),
            ("- override /trainer: ppo", ["override /trainr: ppo", "override /trainer: pppo"]),
            ("- override /trainer: NAME", ["override /trainer: {name: ppo}", "override /trainer"]),
            ("- /reward@rewards.a: brevity", ["/reward@rewards.a: brevty", "/rewrad@rewards.a: brevity"]),
            ("- /reward@rewards.a: brevity", ["reward@rewards.a: brevity", "override /reward@rewards.a: brevity"]),
            ("- /reward@rewards.a: brevity", ["/reward@a: brevity", "/reward@reward.a: brevity"]),
            ("- /reward@rewards.brevity: brevity", ["/reward: brevity", "/reward@rewards: brevty"]),
            ("- override /model: NAME", ["/model"]),
            ("- quickstart", ["quikstart", "/exp: quickstart"]),
            ("- /exp/quickstart", ["exp/quickstart"]),
            ("- _self_", ["self"]),
        ],
    )
    def test_a_wrong_entry(self, write: Write, refused: Refused, meant: str, entries: list[str]) -> None:
        for entry in entries:
            write("conf/exp/mine.yaml", f"{HEADER}# mine\ndefaults:\n  - /reward@rewards.b: brevity\n  - {entry}\n")
            error = refused("exp=mine")
            assert (error.where, error.hint) == ("conf/exp/mine.yaml:5", meant), entry

    def test_negative_control_right_lists_are_not_reported(self, write: Write, refused: Refused) -> None:
        write("conf/trainer/mine.yaml", "defaults: [grpo, _self_]\nargs: {beta: 0.5}\n")
        for entries in (
            "/exp/quickstart, _self_, {override /track: none}",
            "quickstart, {/reward@rewards.a: brevity}, {override /trainer: mine}, _self_",
        ):
            write("conf/exp/mine.yaml", f"{HEADER}defaults: [{entries}]\nseed: 3\n")
            compose(["exp=mine"])
            assert refused("exp=mine", "track.tags=[a").where == "command line"

    @pytest.mark.parametrize(
        ("text", "line", "told"),
        [
            *(
                (f"{text}\n", 2, NO_LIST)
                for text in ("defaults: {trainer: ppo}", "defaults: quickstart", "default: [a]")
            ),
            # an entry after the overrides, and groups that are chosen twice
            (
                "defaults: [{override /trainer: ppo},\n{/reward@rewards.a: regex},\n_self_]",
                3,
                "move line 3 above line 2",
            ),
            ("defaults: [{override /trainer: ppo},\n{override /trainer: rloo}]", 3, None),
            ("defaults: [{/reward@rewards.a: regex},\n{/reward@rewards.a: server}]", 3, None),
        ],
    )
    def test_a_wrong_list(self, write: Write, refused: Refused, text: str, line: int, told: str | None) -> None:
        write("conf/exp/mine.yaml", HEADER + text)
        error = refused("exp=mine")
        assert error.where == f"conf/exp/mine.yaml:{line}"
        assert told is None or (error.hint or error.advice) == told

    def test_the_errors_of_all_files_are_reported_together(self, write: Write) -> None:
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

    def test_two_experiments_at_once(self, refused: Refused) -> None:
        error = refused("+exp=quickstart", "exp=toy_ppo")
        assert (error.where, error.hint) == ("command line", "+exp=toy_ppo")
        assert error.got == "+exp=quickstart +exp=toy_ppo"


@pytest.mark.parametrize(
    ("rewards", "line", "words"),
    [
        (
            "[./r.py:f, {fn: ./r.py:g, weight: 0.5}]",
            "{f: {fn: './r.py:f'}, g: {fn: './r.py:g', weight: 0.5}}",
            "rewards.f.fn=./r.py:f rewards.g.fn=./r.py:g rewards.g.weight=0.5",
        ),
        ("[polite]", "{NAME: {fn: './rewards.py:FUNCTION'}}", "rewards.NAME.fn=./rewards.py:FUNCTION"),
    ],
)
def test_rewards_without_names_are_refused(write: Write, refused: Refused, rewards: str, line: str, words: str) -> None:
    write("conf/exp/mine.yaml", f"{HEADER}defaults: [quickstart, _self_]\nrewards: {rewards}\n")
    in_file, typed = refused("exp=mine"), refused("exp=quickstart", f"rewards={rewards.replace(': ', ':')}")
    assert (in_file.where, in_file.hint) == ("rewards (conf/exp/mine.yaml:3)", f"rewards: {line}")
    assert (typed.where, typed.hint) == ("rewards (command line)", words)
    assert refused("exp=quickstart", "rewards=./r.py:f").hint == "rewards.f.fn=./r.py:f"


def test_a_list_and_a_mapping_under_one_key(write: Write, refused: Refused) -> None:
    """OmegaConf cannot merge the quickstart's list of expectations or its mapping of arguments with the other kind."""
    good = "expect: {good: {metric: total, at_least: 0.2}}"
    write("conf/exp/mine.yaml", f"{HEADER}defaults: [quickstart, _self_]\n{good}\n")
    assert refused("exp=mine").where == "expect (conf/exp/mine.yaml:3)"
    assert refused("exp=quickstart", "trainer.args=[a]").where == "trainer.args (command line)"


@pytest.mark.parametrize(
    "words",
    [
        ["expect.correct.at_least=0.9"],
        ['stop=[{when: "step > 3"}]', "stop.kl.when=step > 4"],
        ["rewards.brevity.gate=[{by: correct, at_least: 1}]", "rewards.brevity.gate.x.by=format"],
    ],
)
def test_a_name_below_a_list(refused: Refused, words: list[str]) -> None:
    error = refused("exp=quickstart", *words)
    assert (error.where, str(error.expected)[:22]) == ("command line", "the number of an entry")
