r"""Numbers in text: expectations by hand."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from rlhf_cli.rewards.numbers import last_boxed, last_marked, last_number, only_number

F = Fraction


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18", F(18)),
        ("18.", F(18)),
        ("+18", F(18)),
        ("-18", F(-18)),
        ("−18", F(-18)),  # U+2212
        ("1,234", F(1234)),
        ("1,234,567.5", F(2469135, 2)),
        ("$5.50", F(11, 2)),
        ("-$5.50", F(-11, 2)),
        ("$-5.50", F(-11, 2)),
        ("€ 7", F(7)),
        ("50%", F(50)),
        (".5", F(1, 2)),
        ("0.10", F(1, 10)),
        ("3/4", F(3, 4)),
        ("-3 / 4", F(-3, 4)),
        ("2 1/2", F(5, 2)),
        ("-2 1/2", F(-5, 2)),
        ("1e-3", F(1, 1000)),
        ("1.5e+03", F(1500)),
        ("18 eggs per day", F(18)),
        ("5kg", F(5)),
        ("A: 18", F(18)),
        ("答案是18。", F(18)),
        ("**18**", F(18)),
        (r"\frac{3}{4}", F(3, 4)),
        (r"-\dfrac{3}{4}", F(-3, 4)),
        (r"1{,}234", F(1234)),
        (r"1,\!234", F(1234)),
        (r"1\,234", F(1234)),
        (r"\$18", F(18)),
        (r"50\%", F(50)),
        (r"18\text{ cm}", F(18)),
        ("the answer is...5", F(5)),
        ("007", F(7)),
    ],
)
def test_one_number(text: str, expected: Fraction) -> None:
    assert only_number(text) == expected
    assert last_number(text) == expected


@pytest.mark.parametrize("text", ["", "eighteen", "x2", "a_1", "H2O", "1/0", "nan", "9" * 5000, "1/" + "9" * 5000])
def test_no_number(text: str) -> None:
    assert last_number(text) is None
    assert only_number(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16 - 3 = 13", F(13)),
        ("16-3", F(3)),  # a subtraction, not minus three
        ("(2+1)-3", F(3)),
        ("x = -3", F(-3)),
        ("16 - $3", F(3)),
        ("12 + 1/2", F(1, 2)),
        ("<<16-3-4=9>>9 duck eggs", F(9)),
        ("1, 2, 3", F(3)),
        ("1,2,3", F(3)),
        ("1,2345", F(2345)),
        ("1.2.3", F(6, 5)),  # a version number: its start reads as 1.2, its end as nothing
        ("3 of the 10/0 x", F(3)),  # what has no value is passed over
        ("it takes 18 hours, from 1:05 to 19:05", F(5)),
    ],
)
def test_the_last_of_several(text: str, expected: Fraction) -> None:
    assert last_number(text) == expected


@pytest.mark.parametrize("text", ["1 and 2", "3 + 4 = 7", "1.234,56", "1 000", "2^{5}"])
def test_several_are_not_one(text: str) -> None:
    assert only_number(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so\n#### 18", " 18"),
        ("####18\n", "18"),
        ("#### $1,234 in all\nmore", " $1,234 in all"),
        ("#### **18**", " **18**"),
        (r"#### \$18", r" \$18"),
        ("#### 3\nQ: ...\n#### 18", " 18"),
        ("#### Step 2\n#### 18", " 18"),
        ("#### Step 2: add", None),
        ("#### 2. Add them up", None),
        ("#### 2) Add them up", None),
        ("##### 18", None),
        ("### 18", None),
        ("#### ", None),
        ("", None),
    ],
)
def test_marked(text: str, expected: str | None) -> None:
    assert last_marked(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{18}", "18"),
        (r"\boxed {18}", "18"),
        (r"\boxed{5} then \boxed{18}.", "18"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{18}}", r"\boxed{18}"),
        (r"\boxed{\{18\}}", r"\{18\}"),
        (r"} { \boxed{18}", "18"),
        (r"\boxed{18} and \boxed{1", "18"),  # cut off by the length limit
        (r"\boxed{18", None),
        ("boxed{18}", None),
        ("", None),
    ],
)
def test_boxed(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    "piece", ["1", "1,111", "1 ", "-", "$", "#", "####", "#### -", r"\boxed{", "{", r"\frac{", "1/", ". ", "1e"]
)
def test_odd_texts_take_linear_time(piece: str) -> None:
    text = piece * 20_000
    started = time.perf_counter()
    last_number(text), last_marked(text), last_boxed(text)
    # 0.1 s at most here; a quadratic pattern that this test once caught took 9 s.
    assert time.perf_counter() - started < 3


def test_what_has_nothing_to_replace_is_told_apart_rightly() -> None:
    """Texts are searched for LaTeX and currency only where one sign of either stands: each pattern needs one."""
    for text, value in {"−5": -5, "$5": 5, "€5": 5, "£5": 5, "{}1{,}234": 1234, r"\frac{3}{4}": Fraction(3, 4)}.items():
        assert last_number(text) == value
    assert last_number("5 and 1/0") == 5  # the last that is a number
    assert only_number("5 and 1/0") == 5
    assert only_number("5 and 6") is None
