"""Types the spoilt words of tests/config/spoilt_words.json, and reads what is suggested first."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.cli import main

CASES = Path(__file__).parents[1] / "config" / "spoilt_words.json"


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
