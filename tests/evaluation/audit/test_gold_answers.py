"""Right answers in every format, degenerate ones, and the words that a reward looks for."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.evaluation.audit.attack import AuditPlan, attack
from rlhf_cli.evaluation.audit.degenerate_answers import KINDS, AttackInputs
from rlhf_cli.evaluation.audit.trial import answer_of, find_gold, reward_words, ways_to_write
from rlhf_cli.plan.prepare import prepare
from tests.support.planted_holes import SUMS


def test_the_column_that_a_reward_reads_comes_first() -> None:
    rows = [{"prompt": "p", "answer": "a", "target": "t"}]
    found = [find_gold(rows, required, named=None) for required in ([], ["target"])]
    assert [one.answers if one else None for one in found] == [["a"], ["t"]]
    assert find_gold([{"prompt": "p", "score": 1}], [], named=None) is None


def test_the_only_column_that_rewards_read_is_the_gold_column() -> None:
    rows: list[dict[str, object]] = [{"prompt": "p", "city": "Riga", "country": "Latvia", "a": 1}]
    found = [find_gold(rows, required, named=None) for required in (["city"], ["city", "country"], ["a"], ["prompt"])]
    assert [one.answers if one else None for one in found] == [["Riga"], None, None, None]


def test_a_named_column_and_a_template() -> None:
    rows: list[dict[str, object]] = [{"a": 1, "b": 2}, {"a": None, "b": 3}]
    named, filled = find_gold(rows, [], named="b"), find_gold(rows, [], named="{a} of {b}")
    assert [one.answers if one else None for one in (named, filled)] == [["2", "3"], ["1 of 2", None]]
    with pytest.raises(DataError):
        find_gold(rows, [], named="c")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (" yes ", "yes"),
        (["first", "second"], "first"),
        ([{"role": "user", "content": "?"}, {"role": "assistant", "content": "good"}], "good"),
        (None, None),
        (True, None),
        ("", None),
        ({"a": 1}, None),
    ],
)
def test_what_a_right_answer_may_be(value: object, text: str | None) -> None:
    assert answer_of(value) == text


def test_no_degenerate_answer_is_the_right_one() -> None:
    """A text equal to the right answer is not an attack, formatted or not."""
    for gold, others in (("22", ["7", "31"]), ("B", ["A", "C"]), ("the mill is sold", ["a flood came"])):
        for way in ways_to_write(["think", "answer"]):
            common = [*others[0].split(), *gold.split()]
            asked = AttackInputs(
                "What is 15 + 7?", gold, others, common, [gold, *others], way, ["think", "answer"], 200
            )
            for kind in KINDS:
                assert {gold, way.write(gold)}.isdisjoint(kind.write(asked)), (kind.name, way.name)


POLITE = ("please", "thank you")


def polite(completions: Sequence[str], **kwargs: object) -> list[float]:
    """This docstring is no word that it looks for."""
    return [float(_has(text) or "kindly" in text) for text in completions]


def _has(text: str) -> bool:
    return any(word in text for word in POLITE)


def matching(completions: Sequence[str], *, phrases: Sequence[str], pattern: str = r"\\d+") -> list[float]:
    return [float(all(phrase in text for phrase in phrases)) for text in completions]


def test_constants_globals_and_arguments() -> None:
    assert set(reward_words([polite])) == {"please", "thank you", "kindly"}
    assert reward_words([functools.partial(matching, phrases=["as asked", r"\\d{3}", "<tag>"])]) == ["as asked"]
    assert reward_words([len]) == []


@pytest.mark.usefixtures("place")
def test_a_reward_for_words_beside_one_for_the_answer_is_a_hole() -> None:
    """Being right is worth 1, saying please 3: the word alone beats the right answer, which does not say it."""
    rewards = [
        "rewards.right.fn=tests.support.planted_holes:right_sum",
        f"rewards.polite={{fn: '{__name__}:polite', weight: 3}}",
    ]
    experiment = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment
    found = attack(experiment, AuditPlan(SUMS), left_out={})
    assert [(kind.name, kind.let_in) for kind in found.holes] == [("keywords", "polite")]
    assert found.kinds[0].margin == 3.0 - 1.0
