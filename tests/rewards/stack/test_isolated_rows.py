"""How a worker scores a row, and how the parent reads the answer; the tests start no process."""

from __future__ import annotations

import os
import sys
from concurrent.futures import TimeoutError as RowTimeout
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy
import pytest
from pebble import ProcessExpired

from rlhf_cli.rewards.stack import isolated
from rlhf_cli.rewards.stack.component import RewardTimeout

OWN = """
import sys

async def later(completions, **_):
    return [len(completions[0])]

def says(completions, what=None, **_):
    return what

def columns(completions, answer, **_):
    return [(completions, answer) == (["ab"], ["x"])]

def leaves(completions, **_):
    sys.exit(7)

def fails(completions, **_):
    raise KeyError("odd")
"""


@pytest.fixture(autouse=True)
def own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(isolated, "_resolved", {})
    (place / "own.py").write_text(OWN)


def scored(name: str, **args: object) -> Any:
    return isolated._score_row(f"./own.py:{name}", args, {"completions": "ab", "answer": "x"})


def test_a_row_is_a_batch_of_one() -> None:
    assert scored("columns") == (1, None)
    assert scored("later") == (2, None)


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


def test_an_error_is_told_in_words() -> None:
    assert scored("leaves")[1][:2] == ("SystemExit", "it called sys.exit(7)")
    kind, message, told = scored("fails")[1]
    assert (kind, message) == ("KeyError", "'odd'")
    assert "own.py" in told


class Future:
    """A row that has been answered, or that ended so."""

    def __init__(self, ends: object) -> None:
        self._ends = ends

    def result(self) -> object:
        if isinstance(self._ends, BaseException):
            raise self._ends
        return self._ends


@pytest.mark.parametrize(
    ("ends", "kind", "said"),
    [
        (RowTimeout(), RewardTimeout, "no answer within 1.5 s, its process was killed"),
        (BrokenProcessPool(), isolated.ProcessEnded, "all of its processes ended at once"),
        (ProcessExpired("x", code=-9), isolated.ProcessEnded, "its process ended with code -9"),
        (TypeError("cannot pickle"), TypeError, "cannot pickle"),
    ],
)
def test_how_a_row_ends_without_an_answer(ends: object, kind: type[Exception], said: str) -> None:
    outcome = isolated._outcome(Future(ends), 1.5)  # type: ignore[arg-type]
    assert isinstance(outcome, kind)
    assert str(outcome) == said


def test_an_answer_and_a_failure() -> None:
    assert isolated._outcome(Future((0.5, None)), None) == 0.5  # type: ignore[arg-type]
    failed = isolated._outcome(Future((None, ("MyError", "no", "line 3"))), None)  # type: ignore[arg-type]
    assert isinstance(failed, Exception)
    assert (type(failed).__name__, type(failed).__module__, str(failed)) == ("MyError", "builtins", "no")
    assert str(failed.__cause__) == "\nline 3"


class Stop(Exception):
    pass


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (4, 4), (64, 8), (None, 1)])
def test_how_many_workers(monkeypatch: pytest.MonkeyPatch, cores: int | None, workers: int) -> None:
    asked: list[dict[str, Any]] = []

    def pool(**named: Any) -> None:
        asked.append(named)
        raise Stop

    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(isolated, "ProcessPool", pool)
    monkeypatch.setattr(isolated, "remembered", lambda: ["secret"])
    with pytest.raises(Stop):
        isolated.Isolated("./own.py:says", {"what": [1]}, timeout_s=None)(completions=["a"])
    (named,) = asked
    assert (named["max_workers"], named["max_tasks"], named["initializer"]) == (workers, 1000, isolated._prepare)
    assert named["initargs"] == ("./own.py:says", {"what": [1]}, ["secret"], os.getpid())
    assert named["context"].get_start_method() == "spawn"


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
