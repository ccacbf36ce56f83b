"""How a worker scores a row, and how the parent reads the answer; the tests start no process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from rlhf_cli.rewards.stack import isolated

OWN = "def says(completions, what=None, **_):\n    return what\n"


@pytest.fixture(autouse=True)
def own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(isolated, "_resolved", {})
    (place / "own.py").write_text(OWN)


def scored(name: str, **args: object) -> Any:
    return isolated._score_row(f"./own.py:{name}", args, {"completions": "ab", "answer": "x"})


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        *(([0.5], 0.5), ((2,), 2), ([None], None), ([True], 1), ([[1, None]], [1, None])),
        *(
            ([(1, 2.5)], (1, 2.5)),
            (numpy.array([0.25]), 0.25),
            ([numpy.float32(0.25)], 0.25),
            ([numpy.array([1, 2])], [1, 2]),
        ),
    ],
)
def test_a_score_comes_back_as_plain_numbers(returned: object, score: object) -> None:
    found, failure = scored("says", what=returned)
    assert (found, failure) == (score, None)
    assert {type(found)} <= {int, float, type(None), list, tuple}


@pytest.mark.parametrize(
    ("returned", "kind", "said"),
    [
        ([], "ValueError", "it returned [] for 1 completion"),
        ([1.0, 2.0], "ValueError", "it returned [1.0, 2.0] for 1 completion"),
        ("a", "ValueError", "it returned 'a' for 1 completion"),
        ({"a": 1}, "ValueError", "it returned {'a': 1} for 1 completion"),
        (3.0, "ValueError", "it returned 3.0 for 1 completion"),
        ([{"a": 1}], "TypeError", "it returned dict {'a': 1}, which is no number"),
        (["x"], "TypeError", "it returned str 'x', which is no number"),
    ],
)
def test_what_is_no_score_is_told_in_words(returned: object, kind: str, said: str) -> None:
    score, failure = scored("says", what=returned)
    assert (score, failure[:2]) == (None, (kind, said))
    assert "Traceback" in failure[2]


@pytest.mark.parametrize("name", ["says", "not_there"])
def test_what_a_worker_does_before_its_first_row(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It dies with its parent, has its own process group, prints no secrets, and never ends with code 0."""
    done: list[object] = []
    monkeypatch.setattr(isolated, "die_with", done.append)
    monkeypatch.setattr(os, "setsid", lambda: done.append("setsid"))
    monkeypatch.setattr(isolated, "safe_output_for_good", done.append)
    monkeypatch.setattr(os, "_exit", lambda status: done.append(status))
    isolated._prepare(f"./own.py:{name}", {}, ["secret"], 17)
    ending: Any = os._exit
    for status in (0, 3):
        ending(status)
    assert done == [17, "setsid", ["secret"], 1, 3]
    assert len(isolated._resolved) == (name == "says")
