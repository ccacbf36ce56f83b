"""check_reward against sound rewards and, as negative controls, one reward for every promise that can be broken."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.testing import check_reward

TEXTS = ["yes, please", "no", "please, please"]


def polite(completions, word="please", **kwargs):
    return [float(text_of(completion).count(word)) for completion in completions]


async def polite_later(completions, **kwargs):
    await asyncio.sleep(0)
    return polite(completions)


def right(completions, answer, **kwargs):
    return [None if want is None else want in text for text, want in zip(completions, answer, strict=True)]


def spans(completions, **kwargs):
    return [[(0, 2, 1), (1, len(text), -0.5)] for text in completions]


def tokens(completions, completion_ids, **kwargs):
    return [[1, None] + [0.5] * (len(ids) - 2) for ids in completion_ids]


def against_the_mean(completions, **kwargs):
    lengths = [len(text) for text in completions]
    return [length - sum(lengths) / len(lengths) for length in lengths]


def texts_only(completions, **kwargs):
    return [1.0 if isinstance(completion, str) else 0.0 for completion in completions]


def polite_in_lists(completions, **kwargs):
    return [[score] for score in polite(completions)]


BROKEN = """
calls = []

def short(completions, **kwargs):
    return [1.0] * (len(completions) - 1)
def not_a_number(completions, **kwargs):
    return [float("nan") if text == "no" else 0.0 for text in completions]
def a_text(completions, **kwargs):
    return ["good" if text == "no" else 1.0 for text in completions]
def counts(completions, **kwargs):
    calls.append(None)
    return [float(len(calls))] * len(completions)
def by_position(completions, **kwargs):
    return [float(row) for row in range(len(completions))]
def strips(completions, completion_ids, **kwargs):
    completion_ids[1].append(0)
    return [1.0] * len(completions)
def rounds_the_answer(completions, answer, **kwargs):
    for want in answer:
        want["value"] = round(want["value"])
    return [1.0] * len(completions)
def span_outside(completions, **kwargs):
    return [[(0, 5, 1.0)] for _ in completions]
def token_short(completions, completion_ids, **kwargs):
    return [[0.0] * (len(ids) - (len(ids) == 2)) + [0.0] for ids in completion_ids]
def logs_too_little(completions, log_extra, **kwargs):
    log_extra("seen", [1])
    return [1.0] * len(completions)
def without_kwargs(completions):
    return [1.0] * len(completions)
def drops_a_row(completions, answer, **kwargs):
    answer.pop()
    return [1.0] * len(completions)
"""


@pytest.mark.parametrize("reward", [polite, polite_later, polite_in_lists])
def test_the_values_come_back(reward) -> None:
    assert check_reward(reward, completions=TEXTS) == [1.0, 0.0, 2.0]


def test_by_name_with_args_and_by_file(write) -> None:
    write(
        "rewards.py", "def polite(completions, word, **kwargs):\n    return [float(word in c) for c in completions]\n"
    )
    assert check_reward("./rewards.py:polite", args={"word": "no"}, completions=TEXTS) == [0.0, 1.0, 0.0]
    assert check_reward(polite, args={"word": "no"}, completions=TEXTS) == [0.0, 1.0, 0.0]
    factory, args = "trl.rewards:get_soft_overlong_punishment", {"max_completion_len": 10, "soft_punish_cache": 4}
    # DAPO (arXiv 2503.14476), eq. 13: up to 6 nothing, 8 is half way.
    assert check_reward(factory, args=args, completions=["a" * 6, "a" * 8, "a" * 11]) == [0.0, -0.5, -1]


def test_columns_none_and_what_can_be_allowed() -> None:
    assert check_reward(right, completions=TEXTS, answer=["yes", "yes", None]) == [1.0, 0.0, None]
    assert check_reward(against_the_mean, completions=["a", "abc"], row_independent=False) == [-1.0, 1.0]
    assert check_reward(texts_only, completions=TEXTS) == [1.0, 1.0, 1.0]


def test_dense_rows() -> None:
    assert check_reward(spans, completions=["no", "yes"]) == [[(0, 2, 1.0), (1, 2, -0.5)], [(0, 2, 1.0), (1, 3, -0.5)]]
    assert check_reward(tokens, completions=["no", "né"]) == [[1.0, None], [1.0, None, 0.5]]
    assert check_reward(tokens, completions=["no"], completion_ids=[[5, 6, 7, 8]]) == [[1.0, None, 0.5, 0.5]]


ANSWERS = [{"value": 1.0}, {"value": 1.5}, {"value": 2.5}]


@pytest.mark.parametrize(
    ("reward", "options", "message"),
    [
        ("short", {}, "returned .* expected a list of 3 numbers"),
        ("not_a_number", {}, "row 1: returned nan; expected a finite number"),
        ("a_text", {}, "row 1: returned str: 'good'"),
        ("counts", {}, "row 0 scores 1.0, but 2.0 when called again: it is not deterministic"),
        (against_the_mean, {}, "row 0 scores .* but 0.0 when it is scored alone: a gate passes on only the rows"),
        ("by_position", {}, "row 2 scores 2.0, but 0.0 when the rows come in reversed order"),
        ("strips", {}, r"changes its inputs: completion_ids of row 1 was list \[110, 111\], is list \[110, 111, 0\]"),
        ("rounds_the_answer", {"answer": ANSWERS}, "changes.* answer of row 0"),
        (right, {}, "needs the column 'answer'"),
        ("without_kwargs", {}, r"takes \(completions\) and no \*\*kwargs"),
        ("drops_a_row", {"answer": ["1", "2", "3"]}, "answer had 3 rows and has 2 after the call"),
        ("span_outside", {}, r"row 1: returned span 0 \(0, 5, 1.0\) is not inside the completion's 2 characters"),
        ("token_short", {}, "row 0: returned 12 values for a completion of 11 tokens"),
        ("logs_too_little", {}, r"log_extra\('seen', ...\) was given 1 values for 3 completions"),
        (lambda completions, **kwargs: [1.0] * len(completions), {}, "cannot be pickled"),
        (texts_only, {"conversational": True}, "row 0 scores 1.0, but 0.0 when the completions are messages"),
        (polite, {"args": {"wrod": "no"}}, "no argument 'wrod'; it takes completions, word"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_negative_controls(write, reward, options, message: str) -> None:
    write("broken.py", BROKEN)
    with pytest.raises(AssertionError, match=message) as caught:
        check_reward(f"./broken.py:{reward}" if isinstance(reward, str) else reward, completions=TEXTS, **options)
    assert str(caught.value).startswith("the reward")


def test_a_misspelt_argument_of_a_reward_by_name_is_the_error_of_a_configuration() -> None:
    with pytest.raises(RewardError, match="has no argument"):
        check_reward("tests.test_testing:polite", args={"wrod": "no"}, completions=TEXTS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"completions": []}, "at least one completion"),
        ({"completions": "no"}, "at least one completion"),
        ({"completions": TEXTS, "answer": ["1"]}, "`answer` is a list of 3 values"),
        ({"completions": TEXTS, "answer": "abc"}, "`answer` is a list of 3 values"),
        ({"completions": [[{"role": "assistant", "content": ""}]], "conversational": True}, "are texts"),
    ],
)
def test_a_wrong_call_is_not_the_rewards_fault(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_reward(polite, **call)


def test_no_torch() -> None:
    program = (
        "import sys; from rlhf_cli.testing import check_reward; "
        "check_reward('rlhf_cli.rewards.repetition:repetition', completions=['a', 'b']); "
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
