"""The speakers' reward, and what a tabular policy learns from it with a value a token and without."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rlhf_cli.numerics.group_advantages import process_advantages
from rlhf_cli.rewards.stack.returned_scores import Spread, as_token_values
from rlhf_cli.rewards.toy import score_speakers, speakers_larger


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A: 4\nB: 7", [(0, 4, -1.0), (5, 9, 1.0)]),
        ("A: 7\nB: 4", [(0, 4, 1.0), (5, 9, -1.0)]),
        (" \nA: 07\nB: 4\n", [(2, 7, 1.0), (8, 12, -1.0)]),
        ("A: 7\nB: 7", []),
        ("A: 7\nB: 10", -1.0),  # more than a speaker may say
        ("B: 7\nA: 4", -1.0),
        ("A: 7", -1.0),
        ("A: 4\nB: 7\nB: 8", -1.0),
        ("A: 4\nso\nB: 7", -1.0),
        ("A: 4\nB: 7 ", -1.0),
        ("A: 4, B: 7", -1.0),
        ("A 4\nB=7", -1.0),
        ("AA: 4\nB: 7", -1.0),
        ("A: ٤\nB: 7", -1.0),
        ("A: 4\nB: " + "9" * 5000, -1.0),
        ("", -1.0),
    ],
)
def test_score(text: str, expected: Any) -> None:
    assert score_speakers(text, "A", "B", max_value=9) == expected


def test_rows() -> None:
    texts = ["A: 4\nB: 17", [{"role": "assistant", "content": "C: 1\nD: 0"}], "C: 1"]
    columns = {"speaker_a": ["A", "C", "C"], "speaker_b": ["B", "D", "D"]}
    spans = [[(0, 4, -2.0), (5, 10, 2.0)], [(0, 4, 2.0), (5, 9, -2.0)], -3.0]
    assert speakers_larger(texts, **columns, mass=2.0, malformed=-3.0) == spans
    limited = speakers_larger(texts, **columns, max_value=[9, "9", 9], mass=2.0, malformed=-3.0)
    assert limited == [-3.0, *spans[1:]]


class Learnt(NamedTuple):
    """Exact probabilities and means of a policy after training."""

    form: float
    second_larger: float
    first: float
    second: float


# One token a character of `A: 4`, a break, `B: 7`, then EOS. The policy chooses three of them.
OFFSETS = [(place, place + 1) for place in range(9)] + [(9, 9)]
CHOSEN = [3, 4, 8]


def learn(seed: int, *, is_dense: bool, spread: Spread = "last", steps: int = 200) -> Learnt:
    """REINFORCE, plain gradient steps: loss = -mean over rows and chosen tokens of A_t log pi(token t).

    Three tables of logits: the first number (10), the break (a line break is in form, a comma is not), the second
    number given the first (10, 10). `is_dense` False: the row's sum, one value at the last token, in the same formula.
    """
    generator = torch.Generator().manual_seed(seed)
    first, breaks, second = (torch.zeros(shape, requires_grad=True) for shape in ((10,), (2,), (10, 10)))
    optimizer = torch.optim.SGD([first, breaks, second], lr=4.0)
    for _ in range(steps):
        x, style = (
            torch.multinomial(one.detach().softmax(0), 64, True, generator=generator) for one in (first, breaks)
        )
        y = torch.multinomial(second.detach().softmax(1)[x], 1, generator=generator)[:, 0]
        texts = [
            f"A: {a}{',' if b else chr(10)}B: {c}"
            for a, b, c in zip(x.tolist(), style.tolist(), y.tolist(), strict=True)
        ]
        values, is_rewarded = _values(texts, is_dense, spread)
        advantages = process_advantages(values, is_rewarded, 64, "group")
        chosen = torch.stack([first.log_softmax(0)[x], breaks.log_softmax(0)[style], second.log_softmax(1)[x, y]], 1)
        loss = -(chosen * advantages[:, CHOSEN]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    joint = first.detach().softmax(0)[:, None] * second.detach().softmax(1)
    digits = torch.arange(10.0)
    return Learnt(
        form=float(breaks.detach().softmax(0)[0]),
        second_larger=float(joint.triu(1).sum()),
        first=float(joint.sum(1) @ digits),
        second=float(joint.sum(0) @ digits),
    )


def _values(texts: list[str], is_dense: bool, spread: Spread) -> tuple[Tensor, Tensor]:
    values = torch.tensor([_row(text, is_dense, spread) for text in texts])
    return values, ~values.isnan()


@cache
def _row(text: str, is_dense: bool, spread: Spread) -> list[float]:
    """One value a token, NaN where it is not rewarded. A row that is one number has it at its last token."""
    (row,) = speakers_larger([text], ["A"], ["B"], max_value=[9])
    tokens = as_token_values(row, len(OFFSETS), lambda: OFFSETS, spread) or [*[None] * 9, row]
    if not is_dense:
        tokens = [*[None] * 9, sum(value or 0.0 for value in tokens)]
    return [float("nan") if value is None else value for value in tokens]


@pytest.mark.parametrize("seed", range(3))
def test_with_a_value_a_token_the_second_speaker_learns_to_be_the_larger(seed: int) -> None:
    learnt = learn(seed, is_dense=True)
    assert learnt.form > 0.95
    assert learnt.second_larger > 0.8  # 0.45 at random, 0.9 at most with a first speaker who stays random
    assert learnt.second > 6.3
    assert abs(learnt.first - 4.5) < 0.6  # own value and the second line's cancel: nothing to learn


@pytest.mark.parametrize("seed", range(3))
def test_control_with_one_value_a_row_only_the_form_is_learnt(seed: int) -> None:
    learnt = learn(seed, is_dense=False)
    assert learnt.form > 0.95
    assert abs(learnt.second_larger - 0.45) < 0.1
    assert abs(learnt.second - 4.5) < 0.6


def test_spread_evenly_the_first_speaker_learns_to_be_the_smaller() -> None:
    learnt = learn(0, is_dense=True, spread="even")
    assert learnt.form > 0.95
    assert learnt.second_larger > 0.95
    assert learnt.first < 0.5
