"""Help at the width of a terminal: no line is longer, no word is lost, columns stay columns."""

from __future__ import annotations

import pytest

from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.jobs.usage import Usage, folded, usage_of

TEXT = """rlhf verb RUN     what it does, at a length that no narrow terminal has the room for

A paragraph of two lines that stand
together, and more behind them.

  --flag VALUE   what it is, said in two
                 lines of the source
  --short        so
"""


def test_by_hand() -> None:
    assert folded(TEXT.strip(), 50).splitlines() == [
        "rlhf verb RUN     what it does, at a length that",
        "                  no narrow terminal has the room",
        "                  for",
        "",
        "A paragraph of two lines that stand together, and",
        "more behind them.",
        "",
        "  --flag VALUE   what it is, said in two lines of",
        "                 the source",
        "  --short        so",
    ]
    assert folded(TEXT, None) == TEXT


@pytest.mark.parametrize("verb", list(VERBS))
def test_the_help_of_every_verb(verb: str) -> None:
    text = usage_of(verb).text.strip()
    shown = folded(text, 80)
    assert shown.split() == text.split()
    assert all(len(line) <= 80 for line in shown.splitlines())
    # What is shown is still the grammar.
    assert {str(flag) for flag in Usage(verb, shown).flags.values()} == {
        str(flag) for flag in usage_of(verb).flags.values()
    }
