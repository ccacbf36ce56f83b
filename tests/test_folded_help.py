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
        "A paragraph of two lines that stand",
        "together, and more behind them.",
        "",
        "  --flag VALUE   what it is, said in two",
        "                 lines of the source",
        "  --short        so",
    ]
    assert folded(TEXT.strip(), 34).splitlines()[:8] == [
        "rlhf verb RUN",
        "    what it does, at a length that",
        "    no narrow terminal has the",
        "    room for",
        "",
        "A paragraph of two lines that",
        "stand together, and more behind",
        "them.",
    ]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("verb", list(VERBS))
def test_the_help_of_every_verb(verb: str, width: int) -> None:
    text = usage_of(verb).text.strip()
    shown = folded(text, width)
    assert shown.split() == text.split()
    assert [line for line in shown.splitlines() if len(line) > width and len(line.split()[0]) < width // 2] == []
    # What is shown is still the grammar.
    assert {str(flag) for flag in Usage(verb, shown).flags.values()} == {
        str(flag) for flag in usage_of(verb).flags.values()
    }


def test_in_a_pipe_it_is_as_it_is_written() -> None:
    assert folded(TEXT, None) == TEXT
