r"""Find numbers in running text and in LaTeX, and return their exact values.

Reads `1,234` `-$5.50` `50%` `.5` `1e-3` `3/4` `2 1/2` `\frac{3}{4}` `1{,}234` `18 eggs`. Does not read the European
`1.234,56`, a space or underscore between thousands, number words, scale words (`2 million` is 2) or expressions. All
functions take time linear in the text, because a policy can write very strange texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

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

_TO_REPLACE = re.compile(r"[\\{$€£\N{MINUS SIGN}]")
"""Pre-filter: without one of these characters no pattern above matches."""

# The number must follow the mark directly, except for signs, currency and emphasis: `#### Step 2` is a heading, and so
# is `#### 2. Add them up`.
_HEADING = r"[^A-Za-z0-9\n#]*[0-9]+[.):][ \t]+[A-Za-z]"
_MARKED = re.compile(rf"(?<!#)####(?!#)(?!{_HEADING})((?:[^A-Za-z0-9\n\\#]|\\(?![A-Za-z]))*[0-9][^\n#]*)")
_BRACE = re.compile(r"\\[{}]|(?P<boxed>\\boxed\s*\{)|[{}]")


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text, or None."""
    return next(_values(reversed(list(_matches(text)))), None)


def only_number(text: str) -> Fraction | None:
    """Return the number of a text that holds exactly one, with or without a unit, else None."""
    values = _values(_matches(text))
    only = next(values, None)
    return only if next(values, None) is None else None


def last_marked(text: str) -> str | None:
    """Return the rest of the line after the last `####` followed by a number, or None."""
    marked = _MARKED.findall(text) if "####" in text else []
    return str(marked[-1]) if marked else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`, braces balanced; the outer one if nested. Else None."""
    content: str | None = None
    if "\\boxed" not in text:
        return content
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
    if _TO_REPLACE.search(text):
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
