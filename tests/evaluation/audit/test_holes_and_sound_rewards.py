"""`rlhf audit` finds every planted hole, with the reward that has it, and accuses no sound reward."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlhf_cli.evaluation.audit.attack import AuditPlan, attack
from rlhf_cli.evaluation.audit.audit_result import AuditResult
from rlhf_cli.plan.prepare import prepare
from tests.support.planted_holes import CHOICES, HOLES, NEWS, PROGRAMS, SUMS, Stack

Texts = Sequence[str]
_HOLES = "tests.support.planted_holes"
_MATCH = "rlhf_cli.rewards.match:exact_match"
_TAGS = "rlhf_cli.rewards.tags:format_tags"
_NUMERIC = "rlhf_cli.rewards.numeric:numeric_answer"

SOLUTIONS = [
    {**row, "answer": f"{row['prompt'].split()[2]} and {row['prompt'].split()[6]} make it.\n#### {row['answer']}"}
    for row in SUMS
]
TESTED = [
    {**row, "tests": [f"assert {name}(6) == {value}", f"assert {name}(-2) == {other}"]}
    for row, (name, value, other) in zip(PROGRAMS, [("double", 12, -4), ("square", 36, 4)], strict=False)
]


def answer_in_tags(completions: Texts, answer: Texts, **kwargs: object) -> list[float]:
    """The text of the one pair of answer tags, compared whole."""
    found = [re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL) for text in completions]
    pairs = zip(found, answer, strict=True)
    return [float(len(parts) == 1 and parts[0].strip() == gold) for parts, gold in pairs]


def f1_of_words(completions: Texts, answer: Texts, **kwargs: object) -> list[float]:
    """F1 over words with their counts: neither recall nor precision alone."""
    scores = []
    for text, gold in zip(completions, answer, strict=True):
        said, wanted = re.findall(r"\w+", text.lower()), re.findall(r"\w+", gold.lower())
        both = sum(min(said.count(word), wanted.count(word)) for word in set(said))
        scores.append(2 * both / (len(said) + len(wanted)) if said else 0.0)
    return scores


def _stack(rows: list[dict[str, object]], *words: str, **rewards: tuple[str, float]) -> Stack:
    return Stack(rewards, rows, words=words)


BRIEF = ("reward@rewards.short=brevity", "rewards.short.args={full: 5, zero: 60}")
CUT, PENALTY = "truncation=eos_penalty", "truncation.penalty=0.5"
RIGHT = {"right": (f"{_HOLES}:right_sum", 1.0)}
TAGGED = {"right": (f"{__name__}:answer_in_tags", 1.0), "form": (_TAGS, 0.5)}
F1 = {"alike": (f"{__name__}:f1_of_words", 1.0)}
SOUND: dict[str, Stack] = {
    "the answer, compared whole": _stack(SUMS, right=(_MATCH, 1.0)),
    "a number and brevity": _stack(SOLUTIONS, *BRIEF, right=(_NUMERIC, 1.0)),
    "the last number": _stack(SUMS, **RIGHT),
    "tags, gated by the answer": _stack(SUMS, "rewards.form.gate={by: right, at_least: 1.0}", **TAGGED),
    "F1 of words": _stack(NEWS, **F1),
    "one letter, compared whole": _stack(CHOICES, right=(_MATCH, 1.0)),
    "cut, with a penalty": _stack(SOLUTIONS, CUT, PENALTY, right=(_NUMERIC, 1.0)),
    "repetition beside it": _stack(NEWS, "reward@rewards.fresh=repetition", **F1),
    "a program, tested": _stack(TESTED, passes=("rlhf_cli.rewards.code:code_passes_tests", 1.0)),
}

pytestmark = pytest.mark.usefixtures("place")


def audited(stack: Stack) -> AuditResult:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stack.rows))
    rewards = [f"rewards.{name}={{fn: '{fn}', weight: {weight}}}" for name, (fn, weight) in stack.rewards.items()]
    words = ["trainer=grpo", "model=tiny", "data=file", "data.path=rows.jsonl", *rewards, *stack.words]
    return attack(prepare(words).experiment, AuditPlan(stack.rows), left_out={})


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_found_and_by_whom(name: str) -> None:
    found = audited(HOLES[name])
    assert found.is_sound is False or found.near
    assert HOLES[name].let_in in {*(kind.let_in for kind in [*found.holes, *found.near]), *found.blind}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "program" in name else name for name in SOUND]
)
def test_a_sound_reward_is_not_accused(name: str) -> None:
    found = audited(SOUND[name])
    assert [(kind.name, kind.text, kind.share) for kind in [*found.holes, *found.near]] == []
    assert found.is_sound is True


def test_only_the_longest_answer_is_cut_off() -> None:
    """Only the right answer has the reward 1; the truncation penalty of 0.5 is the only other difference."""
    found = audited(_stack(SUMS, CUT, PENALTY, **RIGHT))
    totals = {kind.name: kind.mean_total for kind in found.kinds}
    assert (totals["longest"], totals["empty"], found.gold_total) == (-0.5, 0.0, 1.0)
    (longest,) = [kind for kind in found.kinds if kind.name == "longest"]
    assert longest.contributions["truncation"].attack == -0.5
