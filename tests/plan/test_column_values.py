"""What the values of the columns that rewards read say before a run."""

from __future__ import annotations

import json

import pytest

from tests.support.planning import Refused, Write, planned

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


# the reward; the values of its column; what the notices say
NOTED: list[tuple[str, list[object], list[str]]] = [
    ("numeric_answer", ["B", "C"], ["8 of 8 rows read, answer, which rewards.x reads, is no number", "row 1: 'B'"]),
    ("numeric_answer", ["1", None, "#### 2", "one"], ["2 of 8", "is empty; the first is row 2", "row 4: 'one'"]),
    ("exact_match", ["2", '["2"]'], ["4 of 8", "a list written as text", """row 2: '["2"]'"""]),
    ("exact_match", ["[ '2', '3' ]", "2"], ["a list written as text", "row 1"]),
    ("exact_match", ["2", "B", "[2]", "['", '[x"]'], []),
    ("numeric_answer", ["2", "2 apples", "so \\boxed{3}"], []),
]


@pytest.mark.parametrize(("reward", "values", "said"), NOTED)
def test_values_that_get_no_score_are_counted(reward: str, values: list[object], said: list[str], write: Write) -> None:
    stored(write, answer=values)
    plan = planned(*OWN.split(), f"reward@rewards.x={reward}")
    texts = " ".join(notice.text for notice in plan.notices if "which rewards.x reads" in notice.text)
    assert [part for part in said if part not in texts] == []
    assert bool(texts) == bool(said)
