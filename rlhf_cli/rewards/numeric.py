r"""Reward numeric answers, as in GSM8K: compare the completion's final number exactly with the gold one.

GSM8K (Cobbe et al. 2021, arXiv:2110.14168) ends a gold solution with `#### 72`; its own grader takes the first `####`
and compares strings. This reward compares numbers as exact rationals and accepts other answer formats too; if a model
answers more than once, its last answer counts.

Numbers in running text and in LaTeX are read exactly: `1,234` `-$5.50` `50%` `.5` `1e-3` `3/4` `2 1/2` `\frac{3}{4}`
`1{,}234` `18 eggs`. Not read are the European `1.234,56`, a space or underscore between thousands, number words, scale
words (`2 million` is 2) and expressions. All functions take time linear in the text, because a policy can write very
strange texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge

from rlhf_cli.rewards.completion_text import Completion, checked_columns, text_of

Fallback: TypeAlias = Literal["last_number", "none"]


def answer_in(text: str, *, fallback: Fallback = "last_number") -> Fraction | None:
    r"""Return the number `text` gives as its answer, or None.

    The answer is the last line of the form `#### 1,234` (but not a markdown heading `#### Step 2`), else the content of
    the last closed `\boxed{...}`, else, with `fallback: last_number`, the last number of the text. A mark without a
    number or with several (`#### 3 + 4 = 7`, `\boxed{3, 4}`) gives None, so that listing candidates does not pay.
    """
    marked = marked_answer(text)
    if marked is not None:
        return only_number(marked)
    if fallback != "last_number":
        return None
    return next(_values(reversed(list(_matches(text)))), None)  # the last number


def gold_number(answer: object) -> Fraction | None:
    r"""Return the value of a number, of text that is one, or of a solution with `#### x` or `\boxed{x}`, else None."""
    marked = marked_answer(text := str(answer))
    return only_number(text if marked is None else marked)


def _unread(answer: object) -> str | None:
    return None if gold_number(answer) is not None else "is no number: no score, and exact_match compares texts"


@checked_columns(answer=_unread)
def numeric_answer(
    completions: Sequence[Completion],
    answer: Sequence[object],
    *,
    tolerance: Annotated[float, Ge(0)] = 0.0,
    fallback: Fallback = "last_number",
    credit_within: Annotated[float, Ge(0)] = 0.0,
    **kwargs: object,
) -> list[float | None]:
    """Score 1.0 if the completion's number equals the gold one, else 0.0; None if the gold one cannot be read.

    With `credit_within` a wrong number scores 1 - distance / credit_within where that is above 0. A policy that is
    hardly ever right learns from it which wrong answers are better.

    What counts as a number is in `rewards/numeric.py`: thousands commas, currency and percent signs, units, a leading
    `+`, decimals, exponents, fractions and mixed numbers. `50%` is 50, as in GSM8K, and `2 million` is 2.

    Args:
        answer: dataset column: the number, or the whole gold solution ending in `#### 1,234`.
        tolerance: largest absolute difference that still counts, in the unit of the answer; 0 compares exactly.
        fallback: `last_number` or `none`, for a completion that marks no answer.
        credit_within: distance from the answer, in its unit, from which a wrong number scores 0.
    """
    rewards: list[float | None] = []
    for completion, value in zip(completions, answer, strict=True):
        gold, found = gold_number(value), answer_in(text_of(completion), fallback=fallback)
        if gold is None or found is None:
            rewards.append(None if gold is None else 0.0)
            continue
        distance = abs(found - gold)
        if distance <= Fraction(str(tolerance)):  # through str: a YAML 0.01 means one hundredth, exactly
            rewards.append(1.0)
        else:
            credit = 1 - distance / Fraction(str(credit_within)) if credit_within else Fraction(0)
            rewards.append(float(max(credit, Fraction(0))))
    return rewards


# ASCII classes, because in `答案是18` the character before the number is a letter to \w, but the number must match.
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z]))?"
_PLAIN = rf"(?:{_UNSIGNED}|(?<!\.)\.[0-9]+)"
_NUMBER = re.compile(
    # A minus after a digit, a letter or a closing bracket subtracts; anywhere else it is a sign.
    r"(?:(?<![A-Za-z0-9_)\]}%])(?P<sign>[-+]))?"
    # `x2`, `H2O`, `a_1` and the second dot of `1.2.3` are names and versions, not numbers.
    r"(?<![A-Za-z0-9_])(?<![0-9]\.)"
    rf"(?:(?P<whole>[0-9]{{1,9}}) (?=[0-9]+/[0-9]))?(?P<top>{_PLAIN})(?: ?/ ?(?P<bottom>{_UNSIGNED}))?"
)
# A longer number is a stuck policy, and int() of more than 4300 digits raises.
_MAX_CHARACTERS = 300

_LATEX = (
    (re.compile(r"(?<=[0-9])(?=\\[dt]?frac)"), " "),  # 2\frac{1}{2} is a mixed number
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{"), " {"),
    (re.compile(r"(?<=[A-Za-z}])\^(?:\{[-+]?[0-9]{1,3}\}|[-+]?[0-9]{1,3})"), ""),  # the exponent of a unit
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,!;:]"), ""),
    (re.compile(r"\\(?=[$%])"), ""),
    (re.compile("\N{MINUS SIGN}"), "-"),
    # `-$5` and `$-5` are both minus five, `cost$5` is five.
    (re.compile(r"(?<=[-+])[$€£]"), ""),
    (re.compile(r"[$€£]"), " "),
)

# The number must follow the mark directly, except for signs, currency and emphasis: `#### Step 2` is a heading, and so
# is `#### 2. Add them up`.
_HEADING = r"[^A-Za-z0-9\n#]*[0-9]+[.):][ \t]+[A-Za-z]"
_MARKED = re.compile(rf"(?<!#)####(?!#)(?!{_HEADING})((?:[^A-Za-z0-9\n\\#]|\\(?![A-Za-z]))*[0-9][^\n#]*)")
_BRACE = re.compile(r"\\[{}]|(?P<boxed>\\boxed\s*\{)|[{}]")


_EXPRESSION = re.compile(r"\\(?:sqrt|pi)(?![A-Za-z])|[π√]")


def only_number(text: str) -> Fraction | None:
    """Return the number of a text that holds exactly one, with or without a unit, else None."""
    if _EXPRESSION.search(text):
        return None
    values = _values(_matches(text))
    only = next(values, None)
    return only if next(values, None) is None else None


def marked_answer(text: str) -> str | None:
    r"""Return the rest of the line after the last `####` with a number, else what the last closed `\boxed{...}` holds.

    Of nested boxes the outer one counts. Return None without a mark.
    """
    if marked := _MARKED.findall(text):
        return str(marked[-1])
    content: str | None = None
    opened: list[int | None] = []  # where the content of a \boxed starts; None for any other brace
    for brace in _BRACE.finditer(text):
        if brace["boxed"]:
            opened.append(brace.end())
        elif brace[0] == "{":
            opened.append(None)
        elif brace[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                content = text[start : brace.start()]
    return content


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Yield matches that look like numbers, after converting LaTeX, currency and the typographic minus."""
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return _NUMBER.finditer(text)


def _values(matches: Iterable[re.Match[str]]) -> Iterator[Fraction]:
    """Yield the values of matches lazily; skip matches that are not numbers, such as 1/0."""
    for match in matches:
        if len(match[0]) > _MAX_CHARACTERS:
            continue
        value = _exact(match["top"])
        if match["bottom"] is not None:
            bottom = _exact(match["bottom"])
            if bottom == 0:
                continue
            value /= bottom
        if match["whole"] is not None:
            value += int(match["whole"])
        yield -value if match["sign"] == "-" else value


def _exact(digits: str) -> Fraction:
    digits = digits.replace(",", "")
    return Fraction(int(digits) if digits.isdigit() else digits)
