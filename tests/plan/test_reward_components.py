"""Translation of a reward section into a component, and the order of evaluation."""

from __future__ import annotations

import contextlib
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.data.preferences import PairRules
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan import sources_and_components as sections
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.stack_building import reward_stack
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.runs.reward_records import write_text_endings
from tests.support.planning import Write

INF = float("inf")
QUICK = "exp=quickstart"  # rewards: correct, format, brevity


def score(**batch: Any) -> list[float]:
    return []


def made(**section: Any) -> Any:
    return sections.component("mine", Reward.model_validate({"fn": "a:b", **section}), score)


def test_a_component_has_the_rules_of_its_section() -> None:
    rules = {"offset": 2.0, "clip": (-1.0, 1.0), "normalize": "group", "on_error": 0.25, "timeout_s": 7.0}
    gate = {"by": "a", "at_least": 1, "otherwise": 0.5}
    found = made(gate=gate, eager=True, spread="even", when="eval", **rules)
    gates = (ScoreGate("a", 1.0, INF, 0.5),)
    assert found == Component("mine", score, 0.0, gates, eager=True, spread="even", eval_only=True, **rules)
    turns = made(per="turn", weight={"start": 0.0, "end": 1.0, "steps": 9})
    assert turns == Component("mine", score, Schedule(0.0, 1.0, steps=9), timeout_s=900.0, per="turn")
    assert made(isolate=True).timeout_s is None  # its limit is one of a row


def test_only_a_limit_of_the_user_s_holds_outside_of_a_training(write: Write) -> None:
    write("mine.py", "def f(completions, **more):\n    return [0.0] * len(completions)\n")
    mine = ("rewards.mine.fn=./mine.py:f", "rewards.mine.timeout_s=7")
    experiment = prepare([QUICK, *mine], keep_run_names=True).experiment
    with contextlib.closing(reward_stack(experiment, device="cpu")) as stack:
        assert {one.name: one.timeout_s for one in stack.components if one.name in ("brevity", "mine")} == {
            "brevity": None,
            "mine": 7.0,
        }


def test_the_source_of_a_section(write: Write) -> None:
    """What is read: the prompt, the columns of `keep` and `sort`, and those of the template and the rewards."""
    write("mine.py", "def f(completions, gold, **more):\n    return [0.0] * len(completions)\n")
    words = ("data=file", "data.path=rows.jsonl", "data.prompt='{question}?'", "data.rename.gold=answer")
    only = ("~rewards.correct", "~rewards.format", "~rewards.brevity", "rewards.mine.fn=./mine.py:f")
    select = ("data.keep={column: level, between: [1, 5]}", "data.sort=-size", "data.select=[2, 9]")
    experiment = prepare([QUICK, *words, *only, *select], keep_run_names=True).experiment
    (source,) = sections.training_sources(experiment)
    row, renamed = experiment.trainer.row, {"gold": "answer"}
    given = {"path": "rows.jsonl", "rename": renamed, "select": [2, 9], "keep": ("level", 1.0, 5.0), "sort": "-size"}
    assert source == DataSource(**given, name="data", trainer=row, is_read=source.is_read)  # type: ignore[arg-type]
    read = ("prompt", "text", "level", "size", "question", "gold")
    assert [source.is_read(name) for name in (*read, "answer", "-size")] == [True] * 6 + [False] * 2
    assert sections.columns_read(experiment) == {None, "completions", "gold", "question"}
    assert sections.only_set(experiment, "") == experiment
    for reward in ("./mine.py:none", "./none.py:f"):  # another check reports it
        broken = prepare([QUICK, *words, *only[:3], f"rewards.mine.fn={reward}"], keep_run_names=True).experiment
        assert sections.columns_read(broken) == {"question"}
    talks = experiment.model_copy(update={"data": experiment.data.model_copy(update={"transcripts": True})})
    assert sections.training_sources(talks)[0].transcripts
    assert sections.columns_read(talks) == sections.columns_read(experiment) | {"messages", "conversations"}
    members = "data.mix={a: {path: a.jsonl}, b: {path: b.jsonl, weight: 2}}"
    mixed = prepare([QUICK, "data=file", "data.path=null", members], keep_run_names=True).experiment
    assert [(member.name, member.weight) for member in sections.training_sources(mixed)] == [
        ("data.mix.a", 1.0),
        ("data.mix.b", 2.0),
    ]
    assert sections.describe_eval_rows(experiment.data) == "training rows"
    held = prepare([QUICK, "data.eval.path=held.jsonl", "trainer.args.eval_strategy=steps"], keep_run_names=True)
    assert sections.describe_eval_rows(held.experiment.data) == "held.jsonl"


def test_the_rules_of_pairs() -> None:
    margin = "reward_model.margin={chosen: up, rejected: down, scale: 2, transform: log1p, on_bad: drop}"
    for words, rules in (
        ((), PairRules()),
        (("reward_model.on_bad_pair=drop",), PairRules(drops_bad_pairs=True)),
        ((margin,), PairRules(None, "up", "down", 2.0, "log1p", drops_bad_margins=True)),
        (("reward_model.margin.column=more", "reward_model.on_bad_pair=drop"), PairRules("more", drops_bad_pairs=True)),
    ):
        experiment = prepare(["exp=toy_reward", *words], keep_run_names=True).experiment
        assert sections.preference_rules(experiment) == rules
        assert sections.columns_read(experiment) >= set(rules.columns)
    assert sections.preference_rules(prepare([QUICK], keep_run_names=True).experiment) == PairRules()


@pytest.mark.parametrize(
    ("with_eos", "trained", "says"),
    [
        ("auto", True, ", texts end with eos, cut off or not"),
        ("auto", False, ""),
        ("auto", None, ""),
        (True, None, ", texts end with eos, cut off or not"),
        (True, False, ", texts end with eos, cut off or not, unlike in its training"),
        (False, True, ", texts end without eos, unlike in its training"),
        (False, False, ""),
    ],
)
def test_a_scorer_in_words_and_its_trainer(place: Path, with_eos: Any, trained: bool | None, says: str) -> None:
    (place / "judge").mkdir()
    if trained is not None:
        write_text_endings(place / "judge", with_eos=trained)
    judge = Reward.model_validate({"model": f"{place}/judge", "with_eos": with_eos})
    assert sections.describe_scorer(judge, is_chat=False) == f"reward model judge{says}"
    ends = "reward model judge, its chat template ends every answer, cut off or not"
    assert sections.describe_scorer(judge, is_chat=True) == ends
    for section, text in (
        ({"environment": "score"}, "score of the environment"),
        ({"fn": "a.b:c"}, "a.b:c"),
        ({"fn": f"{place}/rewards.py:c"}, "./rewards.py:c"),
        ({"fn": f"/else{place}/rewards.py:c"}, f"/else{place}/rewards.py:c"),
    ):
        assert sections.describe_scorer(Reward.model_validate(section), is_chat=True) == text
    os.chdir("/")
    assert sections.relative_to_cwd("/a/b") == "/a/b"
    state = sections.StateOfTrainer(3, 9)  # transformers'
    assert (state.global_step, state.max_steps, state.log_history) == (3, 9, [])


@pytest.mark.parametrize(
    ("section", "seconds"),
    [
        ({}, 900.0),
        ({"isolate": True}, 60.0),
        ({"timeout_s": 7, "isolate": True}, 7.0),
        ({"timeout_s": "off"}, None),
        ({"timeout_s": False}, None),  # what YAML makes of a bare off
        ({"timeout_s": None}, None),  # what older configurations say
        ({"fn": "rlhf_cli.rewards.code:code_runs"}, None),
        ({"fn": None, "model": "acme/judge"}, None),
        ({"fn": None, "model": "acme/judge", "timeout_s": 5}, 5.0),
    ],
)
def test_how_long_a_call_may_take(section: dict[str, Any], seconds: float | None) -> None:
    assert sections.timeout_of(Reward.model_validate({"fn": "a:b", **section})) == seconds


def test_a_reward_model_is_loaded_as_its_section_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, dict[str, Any]]] = []

    class Scorer:
        def __init__(self, model: str, **given: Any) -> None:
            loaded.append((model, given))

        def __call__(self, **batch: Any) -> list[float]:
            return []

    monkeypatch.setattr("rlhf_cli.models.reward_model_scorer.RewardModelScorer", Scorer)
    section = {"model": "acme/judge", "batch_size": 3, "max_length": 64, "dtype": "bfloat16", "with_eos": True}
    rewards = {"own": {**section, "device": "meta"}, "trainings": {**section, "with_eos": False}}
    for passes, may_pack in (("auto", True), ("packed", True), ("trimmed", False), ("plain", False)):
        loaded.clear()
        trainer = {"name": "grpo", "trl": "GRPOTrainer", "passes": passes}
        nothing: dict[str, object] = {name: {} for name in ("launch", "track", "run")}
        tree = {"seed": 0, "trainer": trainer, "model": {"path": "x"}, "data": {"world": "toy_sums"}, **nothing}
        reward_stack(Experiment.model_validate({**tree, "rewards": rewards}), device="cpu").close()
        same = {"batch_size": 3, "max_length": 64, "dtype": "bfloat16", "may_pack": may_pack}
        assert loaded == [
            ("acme/judge", {**same, "device": "meta", "with_eos": True}),
            ("acme/judge", {**same, "device": "cpu", "with_eos": False}),
        ]


def test_ready_made_rewards_that_keep_their_own_time_are_those_with_a_time_for_each_row() -> None:
    from rlhf_cli.rewards.stack.reward_functions import import_function

    seen = set()
    for file in (Path(__file__).parents[2] / "conf" / "reward").glob("*.yaml"):
        fn = yaml.safe_load(file.read_text()).get("fn")
        if isinstance(fn, str) and fn.startswith("rlhf_cli."):
            takes_time = "timeout_s" in inspect.signature(import_function(fn, where="fn")).parameters
            assert fn.startswith(sections.KEEP_TIME) == takes_time, fn
            seen.add(takes_time)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("test", "low", "high"),
    [
        ({"at_least": 0.0}, 0.0, INF),
        ({"at_most": -1.0}, -INF, -1.0),
        ({"at_most": 0.0}, -INF, 0.0),
        ({"equals": 0.0}, 0.0, 0.0),
        ({"between": [-1, 1]}, -1.0, 1.0),
    ],
    ids=str,
)
def test_gates(test: dict[str, Any], low: float, high: float) -> None:
    assert made(gate={"by": "a", **test}).gates == (ScoreGate("a", low, high, 0.0),)


def test_a_circle_is_told_as_it_goes() -> None:
    gates = {"correct": "format", "format": "brevity", "brevity": "correct"}
    circle = [f"rewards.{name}.gate={{by: {by}, at_least: 1}}" for name, by in gates.items()]
    with pytest.raises(ConfigError) as caught:
        prepare([QUICK, *circle], keep_run_names=True)
    error = caught.value
    assert error.what == "rewards wait for each other"
    assert all(name in str(error.got) for name in gates)
    assert str(error.where).endswith("(command line)")
