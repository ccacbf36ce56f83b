r"""Reads numbers in running text and in LaTeX: where they are, and their exact value.

Reads `1,234` `-$5.50` `50%` `.5` `1e-3` `3/4` `2 1/2` `\frac{3}{4}` `1{,}234` `18 eggs`. Does not read the European
`1.234,56`, a space or underscore between thousands, number words, scale words (`2 million` is 2) or expressions.
Everything here takes time linear in the text, because a policy sends very odd ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

# ASCII classes on purpose: in `答案是18` the character before the number is a letter to \w and no reason to skip it.
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z]))?"
_PLAIN = rf"(?:{_UNSIGNED}|(?<!\.)\.[0-9]+)"
_NUMBER = re.compile(
    # A minus after a digit, a letter or a closing bracket subtracts; anywhere else it is a sign.
    r"(?:(?<![A-Za-z0-9_)\]}%])(?P<sign>[-+]))?"
    # `x2`, `H2O`, `a_1` and the second dot of `1.2.3` are names and versions, not numbers.
    r"(?<![A-Za-z0-9_])(?<![0-9]\.)"
    rf"(?:(?P<whole>[0-9]{{1,9}}) (?=[0-9]+/[0-9]))?(?P<top>{_PLAIN})(?: ?/ ?(?P<bottom>{_UNSIGNED}))?"
)
# Longer is a stuck policy, not an answer; and int() of more than 4300 digits raises.
_MAX_CHARACTERS = 300

_LATEX = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{"), " {"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,!;:]"), ""),
    (re.compile(r"\\(?=[$%])"), ""),
    (re.compile("\N{MINUS SIGN}"), "-"),
    # `-$5` and `$-5` are both minus five, `cost$5` is five.
    (re.compile(r"(?<=[-+])[$€£]"), ""),
    (re.compile(r"[$€£]"), " "),
)

# The number has to follow the mark at once, but for signs, currency and emphasis: `#### Step 2` is a heading, and so
# is `#### 2. Add them up`.
_HEADING = r"[^A-Za-z0-9\n#]*[0-9]+[.):][ \t]+[A-Za-z]"
_MARKED = re.compile(rf"(?<!#)####(?!#)(?!{_HEADING})((?:[^A-Za-z0-9\n\\#]|\\(?![A-Za-z]))*[0-9][^\n#]*)")
_BRACE = re.compile(r"\\[{}]|(?P<boxed>\\boxed\s*\{)|[{}]")


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text, or None."""
    values = list(_values(text))
    return values[-1] if values else None


def only_number(text: str) -> Fraction | None:
    """Return the number of a text that holds exactly one, with or without a unit; None for none or several."""
    values = list(_values(text))
    return values[0] if len(values) == 1 else None


def last_marked(text: str) -> str | None:
    """Return what follows the last `####` that a number follows, up to the end of its line; None without it."""
    marked = _MARKED.findall(text)
    return str(marked[-1]) if marked else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`, braces balanced; the outer one if nested. Else None."""
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


def _values(text: str) -> Iterator[Fraction]:
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    for match in _NUMBER.finditer(text):
        if len(match[0]) > _MAX_CHARACTERS:
            continue
        value, bottom = _exact(match["top"]), _exact(match["bottom"] or "1")
        if bottom == 0:
            continue
        value = value / bottom + int(match["whole"] or 0)
        yield -value if match["sign"] == "-" else value


def _exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))
