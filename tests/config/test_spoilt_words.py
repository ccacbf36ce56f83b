"""What people mistype is refused, and the first thing suggested is what they meant.

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

CASES = Path(__file__).with_name("spoilt_words.json")


@dataclass(frozen=True)
class Answered:
    """A spoilt word, what it was made from ('' for a word that is like nothing), and what became of it."""

    kind: str
    typed: str
    right: str
    code: int
    said: str

    @property
    def first(self) -> str:
        """The first thing that is suggested, '' for none: as far as the first blank or comma outside brackets."""
        match = re.search(r"^ *try: +(?:rlhf +)?(?:did you mean )?(.*)$", self.said, re.MULTILINE)
        words = match[1].strip() if match else ""
        if words[:1] and words[0] in "'\"" and (end := words.find(words[0], 1)) > 0:
            return words[1:end]
        bracketed = re.match(r"[^\s,\[]*\[[^\]]*\]", words)
        return bracketed[0] if bracketed else re.split(r"[\s,;]", words)[0]

    @property
    def is_right(self) -> bool:
        """Whether that is what was meant; behind the right key a value may stand."""
        first, right = self.first.lstrip("+"), self.right.lstrip("+")
        return first == right or ("=" not in right and first.startswith(f"{right}="))


def answered() -> Iterator[Answered]:
    """Type every case in this process."""
    for case in json.loads(CASES.read_text(encoding="utf-8")):
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main(shlex.split(case["typed"]))
        yield Answered(**case, code=code, said=said.getvalue())


def rates(cases: Iterable[Answered]) -> str:
    """Say of every kind how many were refused and answered rightly, and which were not."""
    by_kind: dict[str, list[Answered]] = {}
    for case in cases:
        by_kind.setdefault(case.kind, []).append(case)
    lines = []
    for kind, of_kind in by_kind.items():
        refused = sum(case.code == 2 for case in of_kind)
        right = sum(case.code == 2 and case.is_right for case in of_kind)
        lines.append(f"{kind:10} {len(of_kind):3} typed {refused:3} refused {right:3} right first suggestions")
        lines += [
            f"    {case.typed}: exit {case.code}, meant {case.right!r}, suggested {case.first!r}"
            for case in of_kind
            if case.code != 2 or not case.is_right
        ]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Answered]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("typed"))
        return list(answered())


def test_every_spoilt_word_is_refused(cases: list[Answered]) -> None:
    assert not [case.typed for case in cases if case.code != 2]


@pytest.mark.fault(39)
def test_nine_of_ten_of_every_kind_get_what_was_meant_first(cases: list[Answered]) -> None:
    spoilt = [case for case in cases if case.right]
    print(rates(spoilt))
    assert len(spoilt) >= 150
    assert sum(case.is_right for case in spoilt) >= 0.97 * len(spoilt), rates(spoilt)
    for kind in {case.kind for case in spoilt}:
        of_kind = [case.is_right for case in spoilt if case.kind == kind]
        assert sum(of_kind) >= 0.9 * len(of_kind), rates(spoilt)


def test_a_word_that_is_like_nothing_gets_no_absurd_suggestion(cases: list[Answered]) -> None:
    """Beside a list of what there is, nothing."""
    strangers = [case for case in cases if not case.right]
    assert len(strangers) >= 20
    assert not [(case.typed, case.first) for case in strangers if case.first not in ("", "list")]
