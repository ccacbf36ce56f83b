"""What the values of the columns that rewards read say before a run."""

from __future__ import annotations

import json

import pytest

from tests.support.planning import Refused, Write

OWN = "exp=quickstart ~rewards.correct ~rewards.format ~rewards.brevity expect=null data=file data.path=own.jsonl"


def stored(write: Write, **columns: list[object]) -> None:
    """Eight rows with these columns, whose values are repeated."""
    rows = [{"prompt": f"{row}?"} | {name: of[row % len(of)] for name, of in columns.items()} for row in range(8)]
    write("own.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["assert f()", "def check(candidate): assert candidate(1) == 1"], 2),
        (["assert f()", None, '[{"input": "1", "output": "2"}]'], 3),
        ([[{"input": "1", "output": "2"}]], 1),  # open-r1's
    ],
)
def test_tests_that_the_reward_refuses_are_refused_before_the_run(
    values: list[object], row: int, write: Write, refused: Refused
) -> None:
    stored(write, test=values)
    error = refused(*OWN.split(), "reward@rewards.x=code_passes_tests", "data.rename.tests=test")
    assert f"data, column tests, row {row} " in str(error.where)
    assert (str(error.where).endswith("own.jsonl"), error.advice is None) == (True, False)
