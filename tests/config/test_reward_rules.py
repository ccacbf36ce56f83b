"""Rules about rewards, gates, `primary`, dense rewards, rewards that only watch, `reward_model` and `teacher`."""

from __future__ import annotations

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import gate_text
from tests.support.planning import Judged, Refused

pytestmark = pytest.mark.usefixtures("place")

QUICK = "exp=quickstart"  # rewards: correct, format, brevity


GATE = "rewards.brevity.gate"
UNBOUND = ("exp=quickstart", "expect=null")
WATCHES = "rewards.format.when=eval"
WEIGHTLESS = f"{WATCHES} rewards.format.weight=0"


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        (f"{GATE}={{by:fromat,at_least:1}}", f"{GATE}.by", f"{GATE}.by=format"),
        (f"{GATE}=[{{by:correct,at_least:1}},{{by:fromat,at_least:1}}]", f"{GATE}.by", "format"),
        (f"{GATE}={{by:correct}}", GATE, None),
        (f"{GATE}={{by:correct,at_least:1,equals:1}}", GATE, None),
        (f"{GATE}={{by:correct,between:[1,0]}}", f"{GATE}.between", None),
        ("rewards.format.gate={by:format,at_least:1}", "rewards.format.gate", "'~rewards.format.gate'"),
        # what only a reward model reads
        *(
            (f"rewards.format.{key}", "rewards.format", None)
            for key in ("batch_size=8", "max_length=9", "with_eos=true")
        ),
        *((f"rewards.format.{key}", "rewards.format", None) for key in ("dtype=float32", "device=cpu")),
        # what is logged or stored beside the rewards is no name of one
        *((f"++rewards.{name}.fn=./r.py:f", f"rewards.{name}", None) for name in ("kl", "completion", "advantage")),
        # what cannot read a reward that only watches
        (f"{WATCHES} rewards.format.weight=0.5", "rewards.format", None),
        (f"{WEIGHTLESS} rewards.correct.gate={{by:format,at_least:1}}", "rewards.correct.gate.by", None),
        (f"{WEIGHTLESS} primary={{by:format,at_least:1}}", "primary.by", None),
        (f"{WEIGHTLESS} stop.when='format>0.5'", "stop.when", None),
        (f"{WEIGHTLESS} sampling.keep_groups.by=format", "sampling.keep_groups.by", None),
        # no policy reads it
        ("truncation.also=[turns]", "truncation.also", "truncation=none, or truncation=eos_penalty"),
        # a run learns from some reward
        (f"{WEIGHTLESS} ~rewards.correct ~rewards.brevity", "rewards.format.when", None),
    ],
)
def test_refused(refused: Refused, words: str, where: str, hint: str | None) -> None:
    error = refused(*UNBOUND, *words.split())
    assert str(error.where).partition(" ")[0] == where
    assert hint is None or error.hint == hint


def test_the_text_of_a_gate() -> None:
    """Damaged ones are shown as they are."""
    gates: list[tuple[dict[str, object], str]] = [
        ({"by": "a", "at_least": 0.5, "at_most": None}, "a >= 0.5"),
        ({"by": "a", "at_most": 2, "equals": 1.0}, "a <= 2 and a = 1"),
        ({"by": "a", "between": [0, 1.5]}, "0 <= a <= 1.5"),
        ({"by": "a", "between": [0]}, "a between [0]"),
        ({"by": ["a"], "between": ["x", None]}, "x <= ['a'] <= None"),
        ({"at_least": {}}, "None >= {}"),
        ({}, ""),
    ]
    assert [gate_text(gate) for gate, _ in gates] == [text for _, text in gates]


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


def test_primary_gates_every_reward_but_those_that_it_waits_for(judged: Judged) -> None:
    """correct waits for format: a gate on format would be a circle. Neither is what format waits for, and so on."""
    experiment = judged(QUICK, PRIMARY)
    assert gates(experiment) == {"correct": [], "format": ["correct"], "brevity": ["correct"]}
    (gate,) = experiment.rewards["format"].gates
    assert (experiment.primary, gate.at_least, gate.otherwise) == (None, 1.0, "zero")
    words = (QUICK, PRIMARY, "rewards.correct.gate={by: format, at_least: 0.5}")
    assert gates(judged(*words)) == {"correct": ["format"], "format": [], "brevity": ["correct"]}
    chain = judged(*words, "rewards.format.gate={by: brevity, at_most: 9}")
    assert gates(chain) == {"correct": ["format"], "format": ["brevity"], "brevity": []}


@pytest.mark.parametrize(
    "margin", ["{}", "{chosen: a}", "{rejected: b}", "{column: m, chosen: a}", "{column: m, chosen: a, rejected: b}"]
)
def test_a_margin_comes_from_one_place(refused: Refused, margin: str) -> None:
    error = refused("trainer=reward", "data=toy_preferences", f"reward_model.margin={margin}")
    assert str(error.where).startswith("reward_model.margin")
    assert error.expected == "either `column`, or `chosen` and `rejected`: the columns of two scores"


def test_a_reward_that_only_watches_has_no_weight_and_may_gate_another(judged: Judged) -> None:
    words = (*UNBOUND, "~rewards.format.weight", WATCHES)
    assert judged(*words).rewards["format"].weight == 0.0
    other = ("rewards.brevity.when=eval", "rewards.brevity.weight=0")
    assert judged(*words, *other, "rewards.brevity.gate={by: format, at_least: 1}")


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
