"""Numbers in text by hand, and the number that a completion answers with against the number wanted."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.rewards.numeric import Fallback, answer_in, gold_number, numeric_answer, only_number

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.mark.parametrize(
    ("text", "marked", "with_fallback"),
    [
        ("9 * 2 = 18\n#### 18", 18, 18),
        (r"#### 18, so \boxed{20} is wrong", None, None),  # the mark comes first, and it cannot be read
        (r"so \boxed{18}. Check: 9 * 2", 18, 18),
        (r"#### Step 1: add" "\n" r"\boxed{18} eggs in 2 days", 18, 18),
        (r"#### \boxed{18}", 18, 18),
        ("#### 1 2 3 18", None, None),  # a list of guesses is no answer
        (r"\boxed{17, 18}", None, None),
        (r"\boxed{\text{eighteen}} or 18", None, None),
        (r"\boxed{18", None, 18),
        (r"} so \boxed{\{18\}}", 18, 18),
        ("", None, None),
    ],
)
def test_answer_in_a_text(text: str, marked: int | None, with_fallback: int | None) -> None:
    assert answer_in(text, fallback="none") == marked
    assert answer_in(text) == with_fallback


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("16 - 3 = 13\n#### 1,234", Fraction(1234)),
        (r"Hence \boxed{\frac{1}{2}}", Fraction(1, 2)),
        (0.1, Fraction(1, 10)),
        (-2.5, Fraction(-5, 2)),
        ("16 - 3 = 13", None),  # prose is no gold answer
        (float("nan"), None),
        (None, None),
        *((expression, None) for expression in (r"\sqrt{2}", r"2\pi", r"\frac{\pi}{2}", "2π", "10^6", "2^{10}")),
    ],
)
def test_gold(answer: object, expected: Fraction | None) -> None:
    assert gold_number(answer) == expected


@pytest.mark.parametrize(
    ("text", "gold", "options", "expected"),
    [
        ("36/2", 18, {}, 1.0),
        ("0.3", Fraction(3, 10), {}, 1.0),
        ("18.01", 18, {"tolerance": 0.01}, 1.0),  # binary floats would put it just outside
        ("18.011", 18, {"tolerance": 0.01}, 0.0),
        ("0.333", Fraction(1, 3), {}, 0.0),
        ("", 0, {}, 0.0),
        # A wrong number gets credit by its distance.
        *((str(number), 18, {"credit_within": 10}, credit) for number, credit in ((18, 1.0), (17, 0.9), (23, 0.5))),
        *((text, 18, {"credit_within": 10}, 0.0) for text in ("28", "-400", "no number")),
        *(("18.1", 18, {"credit_within": 10}, 0.99), ("18", "no number", {"credit_within": 10}, None)),
    ],
)
def test_score(text: str, gold: object, options: dict[str, float], expected: float | None) -> None:
    assert numeric_answer([text], [gold], **options) == [expected]


def test_rows() -> None:
    completions = ["18", "17", [{"role": "assistant", "content": "It is $18."}], "18", "18"]
    answer = ["so\n#### 18", "18", 18, "no number", None]
    assert numeric_answer(completions, answer) == [1.0, 0.0, 1.0, None, None]
    assert numeric_answer(completions, answer, fallback="none") == [0.0, 0.0, 0.0, None, None]
    assert numeric_answer(completions, answer, tolerance=1) == [1.0, 1.0, 1.0, None, None]


def rows_of(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs shared/data/{name} (openai/grade-school-math) beside the repository")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_gold_answer_of_gsm8k_is_read() -> None:
    rows = rows_of("gsm8k-test.jsonl")
    expected = [int(row["answer"].split("#### ")[1].replace(",", "")) for row in rows]
    assert len(rows) == 1319
    assert [gold_number(row["answer"]) for row in rows] == expected
    assert numeric_answer([row["answer"] for row in rows], expected) == [1.0] * 1319
    # Control: the answer next door is right only where it happens to be the same number.
    assert sum(map(bool, numeric_answer([row["answer"] for row in rows], expected[1:] + expected[:1]))) < 40


AS_WRITTEN = r"(?!)", ""  # nothing is replaced
WITH_MARK = r"\nA: ", r"\n#### "
IN_A_BOX = r"\nA: (.*)$", r"\nThe answer is $\\boxed{\1}$. (1 of 2)"
WITHOUT_ITS_LAST_LINE = r"\n?A: .*$", ""
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


@pytest.mark.parametrize(
    ("rewrite", "fallback", "false_zeros", "false_ones"),
    [
        # 2394 of the 2400 solutions end with `A: 18`, 6 ran into a length limit.
        (AS_WRITTEN, "last_number", 0, 0),
        (WITH_MARK, "none", 0, 0),
        (IN_A_BOX, "none", 0, 0),
        # Prose alone. Zeros: another number follows (`8 centimeters shorter from 1:00 PM to 5:00 PM`) or the sum was
        # not rounded yet (`5.27 bags`). Ones: the prose is right and the graded line cut at a comma (`A: 5` of 5,600).
        (WITHOUT_ITS_LAST_LINE, "last_number", 23, 5),
        # Control: unmarked answers and no fallback, so all 906 right ones are missed.
        (AS_WRITTEN, "none", 906, 0),
    ],
)
def test_agreement_with_human_verdicts_on_2400_solutions(
    rewrite: tuple[str, str], fallback: Fallback, false_zeros: int, false_ones: int
) -> None:
    seen: Counter[tuple[float | None, bool]] = Counter()
    for row in rows_of("gsm8k-model-solutions.jsonl"):
        gold = row["ground_truth"].rsplit("A:", 1)[1]
        verdicts = [row[model]["is_correct"] for model in MODELS]
        completions = [re.sub(*rewrite, row[model]["solution"]) for model in MODELS]
        seen.update(zip(numeric_answer(completions, [gold] * 4, fallback=fallback), verdicts, strict=True))
    assert seen.total() == 2400
    assert seen[None, True] == seen[None, False] == 0
    assert (seen[0.0, True], seen[1.0, False]) == (false_zeros, false_ones)
    assert seen[1.0, True] == 906 - false_zeros
    assert seen[0.0, False] == 1494 - false_ones


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("−18", Fraction(-18)),  # U+2212
        ("-$5.50", Fraction(-11, 2)),
        ("50%", Fraction(50)),
        ("1e-3", Fraction(1, 1000)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"-2 \tfrac{1}{2}", Fraction(-5, 2)),
        ("25 cm^2", Fraction(25)),
        (r"25\text{ cm}^{2}", Fraction(25)),
        (r"9.8 \mathrm{m/s}^{-2}", Fraction(49, 5)),
        (r"1{,}234", Fraction(1234)),
        (r"18\text{ cm}", Fraction(18)),
        ("the answer is...5", Fraction(5)),
    ],
)
def test_one_number(text: str, expected: Fraction) -> None:
    assert only_number(text) == expected
    assert answer_in(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16-3", Fraction(3)),  # a subtraction, not minus three
        ("(2+1)-3", Fraction(3)),
        ("<<16-3-4=9>>9 duck eggs", Fraction(9)),
        ("1.2.3", Fraction(6, 5)),  # a version number: its start reads as 1.2, its end as nothing
        ("3 of the 10/0 x", Fraction(3)),  # what has no value is passed over
        ("3 of the " + "1" * 300, Fraction("1" * 300)),
        ("3 of the " + "1" * 301, Fraction(3)),  # a stuck policy
        ("it takes 18 hours, from 1:05 to 19:05", Fraction(5)),
    ],
)
def test_the_last_of_several(text: str, expected: Fraction) -> None:
    assert answer_in(text) == expected


ODD = (r"\boxed{", r"\frac{", "#### -", "####", "1,111", "1\\frac", "}^1", "a^", "1e", ". ", "1/", "1 ", *"1-$#{")


@pytest.mark.parametrize("piece", ODD)
def test_odd_texts_take_linear_time(piece: str) -> None:
    text = piece * 20_000
    started = time.perf_counter()
    answer_in(text)
    # 0.1 s at most here; a quadratic pattern that this test once caught took 9 s.
    assert time.perf_counter() - started < 3
