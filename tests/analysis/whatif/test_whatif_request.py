"""Requests to `rlhf whatif`: every combination of values, and questions that a log cannot answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.analysis.whatif_request import alternatives, ask
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.tables.resume_keys import whatif_effect
from tests.analysis.whatif.whatif_runs import LESS, UNSCALED
from tests.support.stored_tables import frozen

SCORE = "rlhf score +exp=NAME --completions RUN"


def test_every_combination_of_values() -> None:
    assert (alternatives([]), alternatives(["a=1"])) == ([[]], [["a=1"]])
    assert alternatives(["a=1,2", "b=x", "c=choice(3,4)"]) == [
        *(["a=1", "b=x", "c=3"], ["a=1", "b=x", "c=4"], ["a=2", "b=x", "c=3"], ["a=2", "b=x", "c=4"])
    ]
    assert alternatives(["a.b=[1,2]", "c={d: 1}", "e={{"]) == [["a.b=[1,2]", "c={d: 1}", "e={{"]]
    assert alternatives(["+a=range(0,3)"]) == [["+a=0"], ["+a=1"], ["+a=2"]]
    assert len(alternatives(["a=range(0,10)", "b=range(0,5)"])) == 50
    with pytest.raises(ConfigError) as caught:
        alternatives(["a=range(0,17)", "b=range(0,3)"])
    error = caught.value
    assert (error.where, error.got, error.expected) == ("command line", "51 combinations", "at most 50")


def test_the_last_argument_of_a_section_is_one_change(place: Path) -> None:
    """The section itself, then `{}`, would be a second line about the same key."""
    run = frozen(place)
    text = run.config.read_text()
    run.config.write_text(text.replace("advantages: null", "advantages: {fn: 'numpy:mean', args: {scale: 0.5}}"))
    changes = {change.key: (change.old, change.new) for change in ask(run, ["advantages=maxrl"]).changes}
    assert changes == {
        "advantages.fn": ("numpy:mean", "rlhf_cli.algorithms.published:maxrl"),
        "advantages.args.scale": (0.5, None),
    }


TEMPERATURE, RIGHT_SUM = "trainer.args.temperature", "fn=tests.support.planted_holes:right_sum"


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["trainer.class=trl:RLOOTrainer"], ["trainer.class"]),
        ([f"rewards.correct.{RIGHT_SUM}"], ["rewards.correct.fn"]),
        (["rewards.correct.per=turn"], ["rewards.correct.per"]),
        ([f"+rewards.brevty.{RIGHT_SUM}"], ["rewards.brevty"]),
        ([f"{TEMPERATURE}=0.5", "trainer.args.top_p=0.9"], [TEMPERATURE, "trainer.args.top_p"]),
    ],
)
def test_what_a_log_cannot_answer_is_refused_by_its_key(place: Path, words: list[str], where: list[str]) -> None:
    with pytest.raises((ConfigError, Problems)) as caught:
        ask(frozen(place, UNSCALED), [*words, LESS])
    problems = caught.value.problems if isinstance(caught.value, Problems) else [caught.value]
    assert sorted(problem.where.split(" ")[0] for problem in problems) == where
    for problem in problems:
        assert problem.got
        assert (problem.expected is None) == problem.where.startswith("rewards.correct.")
        assert ("reward_clip_range" in (problem.expected or "")) == problem.where.startswith("trainer.args")
        assert (problem.hint == SCORE) == problem.where.startswith("rewards")


def test_what_settles_scores_again_and_what_changes_nothing(place: Path) -> None:
    """`spread` moves a score between the tokens of a row."""
    run = frozen(place, UNSCALED)
    changes = ask(run, ["advantages=maxrl", "~trainer.args.scale_rewards"]).changes
    assert {change.key for change in changes} > {"advantages.fn"}
    with pytest.raises(ConfigError, match="nothing would have been different"):
        ask(run, ["rewards.correct.trial=false"])
    assert [name for name in Reward.model_fields if whatif_effect(f"rewards.x.{name}") is None] == ["spread"]


@pytest.mark.parametrize(
    ("settings", "words", "typed"),
    [
        ([], [], "rewards.correct.weight=2"),
        (["rewards.correct.weight=0"], ["rewards.format.weight=0.5"], "rewards.format.weight=1"),
        (["rewards.correct.weight={start: 0, end: 1, steps: 9}"], ["run.name=x"], "rewards.format.weight=1"),
        ([], ["rewards.correc.args.correc=1"], "rewards.correct.args.correc=1"),
        ([], ["rewards.unlike.weight=1"], SCORE),
    ],
)
def test_what_to_type_where_nothing_would_change_or_no_such_reward_is(
    place: Path, settings: list[str], words: list[str], typed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ask(frozen(place, UNSCALED, *settings), words)
    got = " ".join(words) or "no word"
    assert (caught.value.where, caught.value.got, caught.value.hint) == ("command line", got, typed)
