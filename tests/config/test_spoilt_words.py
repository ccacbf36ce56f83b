"""Mistyped words are refused, and the first suggestion is what was meant.

The cases are data, made without a look at this project: a seeded generator took one letter of a correct word away,
doubled it, swapped it with the next or hit the key beside it; other kinds were written by hand, with what was meant.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlhf_cli.cli import main

pytestmark = pytest.mark.whole

CASES = Path(__file__).with_name("spoilt_words.json")


@dataclass(frozen=True)
class Answered:
    """A mistyped word, the right one ('' if it resembles no word), and the command's answer."""

    kind: str
    typed: str
    right: str
    code: int
    printed: str

    @property
    def first(self) -> str:
        """The first suggestion up to the first blank or comma outside brackets; '' for none."""
        match = re.search(r"^ *try: +(?:rlhf +)?(?:did you mean )?(.*)$", self.printed, re.MULTILINE)
        words = match[1].strip() if match else ""
        if words[:1] and words[0] in "'\"" and (end := words.find(words[0], 1)) > 0:
            return words[1:end]
        bracketed = re.match(r"[^\s,\[]*\[[^\]]*\]", words)
        return bracketed[0] if bracketed else re.split(r"[\s,;]", words)[0]

    @property
    def is_right(self) -> bool:
        """Whether the suggestion is the right word; a value may follow the right key."""
        first, right = self.first.lstrip("+"), self.right.lstrip("+")
        return first == right or ("=" not in right and first.startswith(f"{right}="))


def answered() -> Iterator[Answered]:
    for case in json.loads(CASES.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
            code = main(shlex.split(case["typed"]))
        yield Answered(**case, code=code, printed=printed.getvalue())


def rates(cases: Iterable[Answered]) -> str:
    """Return, for every kind, how many were refused and answered rightly, and the others."""
    by_kind: dict[str, list[Answered]] = {}
    for case in cases:
        by_kind.setdefault(case.kind, []).append(case)
    lines = []
    for kind, members in by_kind.items():
        refused = sum(case.code == 2 for case in members)
        right = sum(case.code == 2 and case.is_right for case in members)
        lines.append(f"{kind:10} {len(members):3} typed {refused:3} refused {right:3} right first suggestions")
        lines += [
            f"    {case.typed}: exit {case.code}, meant {case.right!r}, suggested {case.first!r}"
            for case in members
            if case.code != 2 or not case.is_right
        ]
    return "\n".join(lines)


@pytest.mark.fault(39)
def test_the_first_suggestion_is_right_for_nine_of_ten_of_every_kind(place: Path) -> None:
    """Every word is refused; one that resembles none gets no absurd suggestion, at most `rlhf list`."""
    cases = list(answered())
    assert not [case.typed for case in cases if case.code != 2]
    spoilt, strangers = ([case for case in cases if bool(case.right) == is_near] for is_near in (True, False))
    print(rates(spoilt))
    assert len(spoilt) >= 150
    assert sum(case.is_right for case in spoilt) >= 0.97 * len(spoilt), rates(spoilt)
    for kind in {case.kind for case in spoilt}:
        right = [case.is_right for case in spoilt if case.kind == kind]
        assert sum(right) >= 0.9 * len(right), rates(spoilt)
    assert len(strangers) >= 20
    assert not [(case.typed, case.first) for case in strangers if case.first not in ("", "list")]
