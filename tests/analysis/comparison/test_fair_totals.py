"""Whether totals are comparable, and `--weights`, which makes them so; each message in full."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import in_words, other_scores, parse_weights, why_no_total
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, flat, weights_of
from rlhf_cli.errors import UserError
from tests.support.logged_runs import configured, in_memory


def pair(*changes: dict[str, Any]) -> list[LoggedRun]:
    """Runs with these values at these dotted keys, and nothing else that differs."""
    base = configured()
    return [
        in_memory(f"run {number}", settings={**dict(flat(base)), **one}, weights=weights_of(base))
        for number, one in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["rewards.a.weight"], "rewards.a.weight differs"),
        (["rewards.a.weight.start"], "rewards.a.weight.start differs"),
        (["rewards.a.weight", "rewards.b.weight"], "rewards.a.weight, rewards.b.weight differ"),
        (["primary"], "primary differs"),
        (["truncation.penalty", "aggregate"], "aggregate, truncation.penalty differ"),
        (["rewards.a.weight", "rewards.a.clip"], "rewards.a.weight differs"),  # weights say most
        ([f"rewards.{name}.weight" for name in "abc"], "rewards.a.weight, rewards.b.weight, rewards.c.weight differ"),
        (
            [f"rewards.{name}.weight" for name in "abcd"],
            "rewards.a.weight, rewards.b.weight, rewards.c.weight and more differ",
        ),
        (["seed", "trainer.args.learning_rate", "rewards.a.args.seed"], None),
        ([], None),
    ],
)
def test_why_totals_are_not_the_same_sum(keys: list[str], said: str | None) -> None:
    found = why_no_total(pair(dict.fromkeys(keys, 1), dict.fromkeys(keys, 2)))
    assert found == (said and f"no total: {said}, so the same answers would have other totals")


def test_rewards_that_score_otherwise() -> None:
    one, other = ({f"rewards.correct.{key}": by for key in ("fn", "args.at", "clip", "gate", "weight")} for by in "xy")
    said = "rewards.correct.fn, rewards.correct.args.at, rewards.correct.clip differs"
    assert other_scores(pair(one, other)) == [f"correct is not the same reward in all runs: {said}"]
    assert other_scores(pair({"rewards.brevity.weight": 1}, {"rewards.brevity.weight": 2})) == []
    lacking_one = pair(one, other)
    lacking_one[1] = in_memory("without", settings=lacking_one[1].settings, weights={"brevity": 1.0})
    assert other_scores(lacking_one) == []


def test_weights_as_they_are_typed() -> None:
    runs = pair({})
    assert parse_weights(" correct = 1 ,brevity=-0.25", runs) == {"correct": 1.0, "brevity": -0.25}


@pytest.mark.parametrize(
    ("text", "where", "got", "expected", "hint"),
    [
        ("corect=1", "--weights", "corect", "correct, brevity", "correct"),
        ("zzz=1", "--weights", "zzz", "correct, brevity", "--weights correct=1,brevity=1"),
        ("=1", "--weights", "=1", "correct, brevity", "--weights correct=1,brevity=1"),
        ("correct=x", "--weights correct", "x", None, "correct=1"),
        ("correct", "--weights correct", "correct", None, "correct=1"),
    ],
)
def test_weights_that_mean_nothing(text: str, where: str, got: str, expected: str | None, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_weights(text, pair({}))
    error = caught.value
    assert (error.where, error.got, error.expected, error.hint) == (where, got, expected, hint)
    with pytest.raises(UserError) as caught:
        parse_weights("a=1", [in_memory("a")])
    assert caught.value.expected == "runs that have rewards"


def test_the_sum_in_words() -> None:
    assert in_words({"correct": 1.0, "brevity": 0.2}) == "1 correct + 0.2 brevity"
    assert in_words({"correct": -1.0, "brevity": -0.5, "x": 0.0}) == "- 1 correct - 0.5 brevity + 0 x"
