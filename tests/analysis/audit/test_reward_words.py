"""The words that a reward looks for are read from its code, and an audit stuffs them into an answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from rlhf_cli.analysis.audit.attack import AuditPlan, attack
from rlhf_cli.analysis.audit.trial import reward_words
from rlhf_cli.jobs.prepare import prepare
from tests.support.planted_holes import SUMS

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
