"""Rules about rewards, gates, `primary`, dense rewards, rewards that only watch, `reward_model` and `teacher`."""

from __future__ import annotations

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import gate_text
from tests.support.planning import Judged, Refused

pytestmark = pytest.mark.usefixtures("place")

QUICK = "exp=quickstart"  # rewards: correct, format, brevity


@pytest.mark.parametrize(
    ("gate", "hint"),
    [
        ("{by: fromat, at_least: 1}", "rewards.brevity.gate.by=format"),
        ("[{by: correct, at_least: 1}, {by: fromat, at_least: 1}]", "format"),
        ("{by: correct}", None),
        ("{by: correct, at_least: 1, equals: 1}", None),
        ("{by: correct, between: [1, 0]}", None),
    ],
)
def test_gates_that_are_refused(refused: Refused, gate: str, hint: str | None) -> None:
    error = refused(QUICK, f"rewards.brevity.gate={gate}")
    assert str(error.where).startswith("rewards.brevity.gate")
    assert hint is None or error.hint == hint


@pytest.mark.parametrize(
    ("gate", "shown"),
    [
        ({"by": "a", "at_least": 0.5, "at_most": None}, "a >= 0.5"),
        ({"by": "a", "at_most": 2, "equals": 1.0}, "a <= 2 and a = 1"),
        ({"by": "a", "between": [0, 1.5]}, "0 <= a <= 1.5"),
        # damaged ones are shown as they are
        ({"by": "a", "between": [0]}, "a between [0]"),
        ({"by": ["a"], "between": ["x", None]}, "x <= ['a'] <= None"),
        ({"at_least": {}}, "None >= {}"),
        ({}, ""),
    ],
)
def test_the_text_of_a_gate(gate: dict[str, object], shown: str) -> None:
    assert gate_text(gate) == shown


@pytest.mark.parametrize(
    "typed",
    [
        "trainer.args.importance_sampling_level=sequence",
        "trainer.args.loss_type=luspo",
        "trainer.args.off_policy_mask_threshold=0.5",
        "aggregate=normalize_then_sum",
        "aggregate=./mine.py:product",
    ],
)
def test_settings_that_dense_rewards_cannot_use(refused: Refused, judged: Judged, typed: str) -> None:
    assert refused(QUICK, "trainer.dense=true", typed).where == f"{typed.partition('=')[0]} (command line)"
    assert judged(QUICK, typed)  # negative control
    error = refused(QUICK, "trainer=rloo", "trainer.dense=true")
    assert (error.where, error.got) == ("trainer.dense (command line)", "its loss is per sequence")


@pytest.mark.parametrize("key", ["batch_size=8", "max_length=9", "dtype=float32", "device=cpu", "with_eos=true"])
def test_what_only_a_reward_model_reads(refused: Refused, key: str) -> None:
    assert str(refused(QUICK, f"rewards.format.{key}").where).startswith("rewards.format (")


@pytest.mark.parametrize("name", ["kl", "completion", "advantage"])
def test_what_is_logged_or_stored_beside_the_rewards_is_no_name_of_one(refused: Refused, name: str) -> None:
    assert str(refused(QUICK, f"++rewards.{name}.fn=rlhf_cli.rewards.toy:digits_only").where).startswith("rewards.")


def test_a_gate_on_itself(refused: Refused) -> None:
    error = refused(QUICK, "rewards.format.gate={by: format, at_least: 1}")
    assert (error.where, error.hint) == ("rewards.format.gate (command line)", "'~rewards.format.gate'")


PRIMARY = "primary={by: correct, at_least: 1.0}"


def gates(experiment: Experiment) -> dict[str, list[str]]:
    """Name -> what it waits for, in order."""
    return {name: [gate.by for gate in reward.gates] for name, reward in experiment.rewards.items()}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rewards.brevity", ()),
        ("tools.add", ("tools.add.fn=./a.py:add",)),
        ("environment", ("environment.class=./a.py:Maze",)),
        ("environment.maze", ("environment.maze.class=./a.py:Maze",)),
    ],
)
def test_a_time_limit_must_be_below_the_watchdogs(judged: Judged, refused: Refused, key: str, words: tuple) -> None:
    """launch.hang_timeout_s is 1800."""
    late = (QUICK, *words, f"{key}.timeout_s=1800")
    assert refused(*late).hint == f"launch.hang_timeout_s=3600, or {key}.timeout_s=900"
    assert judged(*late, "launch.hang_timeout_s=off")


def test_primary_gates_every_other_reward(judged: Judged) -> None:
    experiment = judged(QUICK, PRIMARY)
    assert gates(experiment) == {"correct": [], "format": ["correct"], "brevity": ["correct"]}
    assert experiment.primary is None
    (gate,) = experiment.rewards["format"].gates
    assert (gate.at_least, gate.otherwise) == (1.0, "zero")


def test_the_rewards_before_the_primary_are_not_gated(judged: Judged) -> None:
    """correct waits for format: a gate on format would be a circle. Neither is what format waits for, and so on."""
    words = (QUICK, PRIMARY, "rewards.correct.gate={by: format, at_least: 0.5}")
    assert gates(judged(*words)) == {"correct": ["format"], "format": [], "brevity": ["correct"]}
    chain = judged(*words, "rewards.format.gate={by: brevity, at_most: 9}")
    assert gates(chain) == {"correct": ["format"], "format": ["brevity"], "brevity": []}


@pytest.mark.parametrize("margin", ["{}", "{chosen: a}", "{rejected: b}", "{column: m, chosen: a, rejected: b}"])
def test_a_margin_comes_from_one_place(refused: Refused, margin: str) -> None:
    error = refused("trainer=reward", "data=toy_preferences", f"reward_model.margin={margin}")
    assert str(error.where).startswith("reward_model.margin")
    assert error.expected == "either `column`, or `chosen` and `rejected`: the columns of two scores"


UNBOUND = ("exp=quickstart", "expect=null")
WATCHES = "rewards.format.when=eval"


def test_a_reward_that_only_watches_has_no_weight_and_may_gate_another(judged: Judged) -> None:
    words = (*UNBOUND, "~rewards.format.weight", WATCHES)
    assert judged(*words).rewards["format"].weight == 0.0
    other = ("rewards.brevity.when=eval", "rewards.brevity.weight=0")
    assert judged(*words, *other, "rewards.brevity.gate={by: format, at_least: 1}")


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["rewards.format.weight=0.5"], "rewards.format"),
        (["rewards.format.weight=0", "rewards.correct.gate={by: format, at_least: 1}"], "rewards.correct.gate.by"),
        (["rewards.format.weight=0", "primary={by: format, at_least: 1}"], "primary.by"),
        (["rewards.format.weight=0", "stop.when='format > 0.5'"], "stop.when"),
        (["rewards.format.weight=0", "sampling.keep_groups.by=format"], "sampling.keep_groups.by"),
    ],
)
def test_what_cannot_read_a_reward_that_only_watches(refused: Refused, words: list[str], where: str) -> None:
    assert str(refused(*UNBOUND, WATCHES, *words).where).startswith(where)


def test_a_run_learns_from_some_reward(refused: Refused) -> None:
    every = [
        f"rewards.{name}.{word}" for name in ("correct", "format", "brevity") for word in ("when=eval", "weight=0")
    ]
    assert refused(*UNBOUND, *every).where == "rewards.correct.when (command line)"


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        (["trainer=distillation"], "teacher", "teacher.path=FOLDER_OR_HUB_ID"),
        (["trainer=sft", "teacher.path=here"], "teacher (command line)", "trainer=distillation, or '~teacher'"),
        (["trainer.trl=A2POTrainer"], "trainer.trl (command line)", "rlhf list trainer"),
        (["trainer=online_dpo"], "command line", "rlhf list trainer"),
    ],
)
def test_a_teacher_belongs_to_a_trainer(refused: Refused, words: list[str], where: str, hint: str) -> None:
    error = refused(*words)
    assert (error.where, error.hint) == (where, hint)
