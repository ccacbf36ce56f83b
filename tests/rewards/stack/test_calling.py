"""Failures of a reward function, what it writes into its arguments, and functions that would end the process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

from rlhf_cli.cli import main
from rlhf_cli.errors import RewardError, RewardFailed, ServerSilent, described, in_a_line, message_of, shortened
from rlhf_cli.rewards.stack.calling import RewardLoop, _waited_for, with_own_arguments
from rlhf_cli.rewards.stack.component import Component, RewardTimeout, ScoreGate
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.text.redaction import traceback_of
from tests.support.reward_bench import BATCH, Bench, Rows, picky, raises

FAILURES: dict[str, tuple[Any, str]] = {
    "raise": (raises(ValueError("odd")), "ValueError: odd"),
    "panic": (raises(type("Panic", (BaseException,), {})("odd")), "Panic: odd"),  # as of a library in Rust
    "timeout": (raises(TimeoutError("the server")), "TimeoutError: the server"),  # as of a judge's client
    "exit": (lambda: sys.exit(3), "SystemExit: 3"),
    "_exit": (lambda: os._exit(0), "SystemExit: os._exit(0)"),
    "no number": (lambda: math.inf, "RewardError: reward 'mine' did not return a number for row 0"),
    "dense length": (lambda: [1.0] * 2, "RewardError: reward 'mine' did not return values per token for row 0"),
    "returned error": (lambda: OSError("returned"), "OSError: returned"),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize(("on_error", "fixed"), [("exclude", None), (0.0, 0.0)])
@pytest.mark.fault(30)
def test_one_row_is_blamed_alone(bench: Bench, name: str, is_async: bool, on_error: Any, fixed: float | None) -> None:
    do, message = FAILURES[name]
    found = bench(picky(2, do, is_async), on_error=on_error)
    assert found.raw == [0.0, 10.0, None, 30.0]
    assert found.fixed == [None, None, fixed, None]
    assert str(found.errors[2]).startswith(message)
    assert [error is None for error in found.errors] == [True, True, False, True]
    assert (found.num_errors, found.timeouts, found.calls) == (1, 0, 4)
    assert found.num_excluded == (fixed is None)
    with pytest.raises((RewardFailed, RewardError)) as caught:
        bench(picky(2, do, is_async))
    assert (caught.value.row, caught.value.where) == (2, "rewards.mine")
    if isinstance(caught.value, RewardFailed):
        assert caught.value.got == message
        assert "'two'" in str(caught.value.expected)


@pytest.mark.parametrize(("failing", "is_offered"), [({0}, True), ({0, 1, 2, 3}, False)])
@pytest.mark.parametrize("is_returned", [False, True])
def test_exclude_is_offered_where_a_row_passes(bench: Bench, failing: Any, is_returned: bool, is_offered: bool) -> None:
    def mine(row: Rows, **_: Any) -> list[Any]:
        if not is_returned and {*row} & failing:
            raise TypeError("odd")
        return [TypeError("odd") if one in failing else 1.0 for one in row]

    with pytest.raises(RewardFailed) as caught:
        bench(mine)
    assert (caught.value.row, "on_error=exclude" in str(caught.value.hint)) == (0, is_offered)


def test_an_error_of_the_reward_keeps_its_own_advice() -> None:
    reward = picky(2, raises(RewardError("no token ids", where="args.unit", hint="args.unit=words")))
    stack = RewardStack([Component("mine", reward)], keep_failure=lambda call: "rlhf score kept")
    with pytest.raises(RewardError) as caught:
        stack.evaluate(**BATCH)
    assert caught.value.hint == "args.unit=words, or rlhf score kept  # scores these rows again"


@pytest.mark.parametrize(("failure", "num_calls"), [(RewardTimeout, 1), (ServerSilent, 1), (TypeError, 4)])
def test_the_search_waits_for_one_slow_row(bench: Bench, failure: type[Exception], num_calls: int) -> None:
    calls: list[Rows] = []

    def mine(row: Rows, **_: Any) -> list[float]:
        calls.append(row)
        raise TypeError("odd") if len(row) > 1 else failure("late")

    with pytest.raises((RewardFailed, RewardError)) as caught:
        bench(mine)
    assert len(calls) == 1 + num_calls
    assert (caught.value.row is None) == (failure is ServerSilent)  # which is no row's fault


@pytest.mark.parametrize("args", [{}, {"margin": 0.0}])
@pytest.mark.parametrize("compares", [True, False])
def test_rows_that_are_compared_are_tried_again_together(bench: Bench, compares: bool, args: dict[str, float]) -> None:
    """Alone, each row would be the best of its prompt."""

    def best(prompts: list[str], completions: list[str], margin: float = 0.0, **_: Any) -> list[float]:
        if "q" in prompts:
            raise ValueError("odd")
        return [float(text == max(completions)) for text in completions]

    best.compares_rows = compares  # type: ignore[attr-defined]
    stack = bench.stack(functools.partial(best, **args) if args else best, on_error="exclude")
    batch = {"prompts": ["p", "q", "p", "q"], "completions": ["a", "a", "b", "b"], "completion_ids": [[1]] * 4}
    found = stack.evaluate(**batch)["mine"]
    assert found.raw == [0.0 if compares else 1.0, None, 1.0, None]
    assert [error is None for error in found.errors] == [True, False, True, False]
    found = stack.evaluate(**batch | {"prompts": ["q"] * 4})["mine"]
    assert (found.raw, found.num_errors) == ([None] * 4, 4)


def test_a_batch_that_fails_while_each_row_passes_has_no_row_to_blame(bench: Bench) -> None:
    def only_alone(row: Rows, **_: Any) -> list[float]:
        if len(row) > 1:
            raise ValueError("one at a time, please")
        return [1.0]

    with pytest.raises(RewardFailed) as caught:
        bench(only_alone)
    assert caught.value.got == "ValueError: one at a time, please"
    assert (caught.value.row, bench.recorded) == (None, [])
    found = bench(only_alone, on_error="exclude")
    assert (found.raw, found.num_errors) == ([1.0] * 4, 0)


def test_under_a_gate_the_error_names_the_row_of_the_batch() -> None:
    """The reward is shown rows 1 and 3 and answers nonsense for its second: that is row 3, whose prompt is `three`."""
    gate = Component("gate", lambda row, **_: [float(index % 2) for index in row])
    mine = Component("mine", lambda row, **_: [1.0, "odd"][: len(row)], gates=(ScoreGate("gate", low=1.0),))
    stack = RewardStack([gate, mine])
    with pytest.raises(RewardError) as caught:
        stack.evaluate(**BATCH)
    stack.close()
    assert caught.value.row == 3
    assert str(caught.value.got).endswith("for the completion 'd' of the prompt 'three'")


def bad(completions: list[str], **_: Any) -> list[float]:
    if "b" in completions:
        raise ValueError("bad")
    return [1.0] * len(completions)


def ends_with(stack: RewardStack, batches: list[str]) -> int | None:
    """The number of the batch that ends the run; each letter is a completion, `b` a bad one."""
    for number, rows in enumerate(batches, 1):
        try:
            stack.evaluate(prompts=["p"] * len(rows), completions=[*rows], row=[*range(len(rows))])
        except RewardFailed as failed:
            return number if failed.got == "ValueError: bad" else -1
    return None


@pytest.mark.parametrize(
    ("batches", "share", "window", "expected"),
    [
        (["bgggb", "gggbg", "ggbgg", "gbggg"], 0.2, 20, 4),  # 5 of 20 rows are more than a fifth, once there are 20
        (["bgggg"] * 9, 0.2, 20, None),  # and 4 are as many as may fail
        (["bgggg"] * 9, 0.0, 20, 4),
        (["bgbgb", "gbgbg"] * 4, 1.0, 20, None),
        (["bbgg", "gggg", "gggg", "bbbb", "bbgg"], 0.5, 8, 5),  # old failures are forgotten
    ],
)
@pytest.mark.fault(30)
def test_the_share_is_of_a_full_window(batches: list[str], share: float, window: int, expected: int | None) -> None:
    stack = RewardStack([Component("mine", bad, on_error="exclude")], max_error_share=share, error_window=window)
    assert ends_with(stack, batches) == expected


@pytest.mark.parametrize(("eager", "window", "expected"), [(False, 2, 2), (True, 8, None)])
def test_rows_that_a_gate_spares_are_not_counted(eager: bool, window: int, expected: int | None) -> None:
    """One of four rows is scored and fails: a quarter of all rows, but every scored row."""
    first = Component("first", lambda row, **_: [float(index == 0) for index in row])
    mine = Component("mine", bad, gates=(ScoreGate("first", low=1.0),), on_error=0.0, eager=eager)
    stack = RewardStack([first, mine], max_error_share=0.5, error_window=window)
    assert ends_with(stack, ["bggg"] * 2) == expected


def test_training_does_not_dilute_the_failures_of_what_only_evaluations_compute() -> None:
    stack = RewardStack([Component("mine", bad, on_error=0.0, eval_only=True)], max_error_share=0.25, error_window=8)
    for stack.is_training in (True, True, False):
        assert ends_with(stack, ["bbbg"]) is None  # the window is half full


def batch() -> dict[str, Any]:
    asked = {"role": "user", "content": "2+2=", "tool_calls": [{"name": "add", "arguments": {"a": 2}}]}
    return {
        "prompts": [[asked], [copy.deepcopy(asked)]],
        "completions": [[{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "5"}]],
        "completion_ids": [[1, 2], [3]],
        "answers": [["4", "four"], ["4"]],
        "nested": [({"deep": [1]},), ({"deep": [2]},)],
        "image": [numpy.zeros(2), numpy.ones(2)],
        "tags": [{"a"}, {"b"}],
    }


@pytest.mark.fault(34)
def test_what_a_reward_spoils_is_seen_by_no_other_reward_nor_its_own_second_call_nor_the_trainer() -> None:
    """The first reward fails on the batch that it has spoilt; the stack then calls it row by row."""
    calls: list[dict[str, Any]] = []

    def spoil_and_fail(**given: Any) -> list[float]:
        calls.append(copy.deepcopy(given))
        if len(given["prompts"]) == 1:
            return [1.0]
        given["prompts"][0][0]["tool_calls"][0]["arguments"]["a"] = "spoilt"
        given["completions"][1][0]["content"] = "spoilt"
        given["completions"].reverse()
        given["completion_ids"][0].clear()
        given["answers"][0].append("spoilt")
        given["nested"][1][0]["deep"].append("spoilt")
        given["image"][0][:] = 7
        given["tags"][0].add("spoilt")
        given["prompts"].pop()
        raise ValueError("after all")

    def look(**given: Any) -> list[float]:
        calls.append(given)
        return [1.0, 2.0]

    given = batch()
    stack = RewardStack([Component("spoil", spoil_and_fail, on_error="exclude"), Component("look", look)])
    outcomes = stack.evaluate(**given)
    assert (outcomes["spoil"].raw, outcomes["look"].raw) == ([1.0, 1.0], [1.0, 2.0])
    _, *by_row, other = calls
    assert [row["answers"] for row in by_row] == [[["4", "four"]], [["4"]]]
    assert str(other) == str(given) == str(batch())  # arrays have no truth of their own


def test_immutable_values_and_the_trainers_own_are_shared() -> None:
    """That is what makes it cheap, and what lets a reward log; the object in a list cannot be copied."""
    state = object()
    given = {"trainer_state": state, "environments": [state], "log_extra": print}
    given |= {"texts": ["a" * 9], "objects": [state]}
    own = with_own_arguments(given)
    assert [name for name in given if own[name] is given[name]] == ["trainer_state", "environments", "log_extra"]
    assert own["texts"][0] is given["texts"][0]
    assert own["objects"][0] is state


def test_a_task_of_an_async_reward_s_own(bench: Bench) -> None:
    """asyncio lets SystemExit end the event loop itself; the loop has to outlive it."""

    async def one(index: int) -> float:
        if index == 2:
            raise SystemExit(1)
        return 10.0 * index

    async def reward(row: Rows, **_: Any) -> list[float]:
        return list(await asyncio.gather(*(one(index) for index in row)))

    stack = bench.stack(reward, on_error="exclude")
    for _ in range(2):
        assert stack.evaluate(**BATCH)["mine"].raw == [0.0, 10.0, None, 30.0]


@pytest.mark.parametrize("on_error", ["raise", "exclude"])
def test_ctrl_c_during_a_reward_is_not_a_failure_of_the_reward(bench: Bench, on_error: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        bench(picky(2, lambda: signal.raise_signal(signal.SIGINT)), on_error=on_error)
    assert signal.getsignal(signal.SIGINT) is before
    assert bench.recorded == []


def test_a_forked_child_of_a_reward_can_exit(bench: Bench) -> None:
    """multiprocessing itself ends a forked child by os._exit."""

    def reward(row: Rows, **_: Any) -> list[float]:
        child = multiprocessing.get_context("fork").Process(target=os._exit, args=[7])
        child.start()
        child.join(30)
        return [float(child.exitcode or 0)] * len(row)

    assert bench(reward).raw == [7.0] * 4


MINE = """
class Unprintable(RuntimeError):
    def __str__(self):
        raise RuntimeError("no str")

def long(completions, **columns):
    raise ValueError("begin" + "x" * 3_000_000 + "the end")

def unprintable(completions, **columns):
    raise Unprintable

def leaves(completions, **columns):
    raise SystemExit("x" * 3_000_000)
"""


def test_a_text_is_cut_in_the_middle() -> None:
    cut = shortened("begin" + "x" * 10_000 + "the end", 100)
    assert (shortened("short"), cut[:6], cut[-8:]) == ("short", "beginx", "xthe end")
    assert "[9912 characters left out]" in cut


def test_an_error_without_a_text_has_one() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise KeyError("no str")

    for text in (described(Unprintable()), in_a_line(Unprintable()), traceback_of(Unprintable())):
        assert "Unprintable: " in text
    assert "KeyError" in message_of(Unprintable())


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("which", ["long", "unprintable", "leaves"])
def test_long_errors_are_shortened(train, workplace: Path, capfd: Any, which: str, isolate: bool) -> None:
    (workplace / "mine.py").write_text(MINE)
    given = f"fn: './mine.py:{which}', weight: 1.0, trial: false, isolate: {str(isolate).lower()}"
    code, folder = train(f"++rewards.mine={{{given}}}")
    assert code == 1
    out, err = capfd.readouterr()
    assert "error: reward 'mine' " in err
    assert {"long": "the end", "unprintable": "no message", "leaves": "SystemExit"}[which] in err
    assert json.loads(folder.status.read_text())["reason"].startswith("reward 'mine' ")
    sizes = {file.name: file.stat().st_size for file in folder.path.iterdir() if file.is_file()}
    assert all(size < 100_000 for size in sizes.values()), sizes
    assert len(out) + len(err) < 60_000
    assert main(["status", folder.shown]) == 0
    assert len(capfd.readouterr().out) < 10_000


def test_a_loop_may_be_closed_twice() -> None:
    loop = RewardLoop()
    assert loop.run(asyncio.sleep(0, result=7), 5.0) == 7
    loop.close()
    loop.close()


def test_this_process_waits_for_threads_that_are_no_daemons() -> None:
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait, daemon=is_daemon) for is_daemon in (True, False)]
    for thread in threads:
        thread.start()
    found = _waited_for()
    ended.set()
    assert [thread in found for thread in threads] == [False, True]


def test_a_reward_that_is_cancelled_by_itself_has_failed() -> None:
    """Unlike rewards that still wait when the loop is closed, which are not tried again."""

    async def cancels() -> None:
        raise asyncio.CancelledError

    with contextlib.closing(RewardLoop()) as loop, pytest.raises(concurrent.futures.CancelledError):
        loop.run(cancels(), 5.0)
