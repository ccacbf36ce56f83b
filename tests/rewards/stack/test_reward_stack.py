"""The stack: one evaluation a batch, schedules, gates, and rewards that wait together."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Component, ScoreGate, levels
from rlhf_cli.rewards.stack.isolated import Isolated
from rlhf_cli.rewards.stack.reward_stack import RewardStack, runs_elsewhere
from tests.support.reward_bench import TWO_ROWS, Counting


def stack_of(**rewards: Any) -> RewardStack:
    return RewardStack([Component(name, score) for name, score in rewards.items()])


def test_names_and_columns_keep_the_given_order() -> None:
    late = Component("late", Counting(1, 2), gates=(ScoreGate("early"),))
    stack = RewardStack([late, Component("early", Counting(1, 2))])
    assert stack.names == [column.__name__ for column in stack.columns()] == ["late", "early"]
    assert list(stack.evaluate(**TWO_ROWS)) == ["early", "late"]
    assert levels({"b": [], "a": [], "c": []}) == [["b", "a", "c"]]
    assert levels({"d": ["b", "c"], "c": ["a"], "b": ["a"], "a": [], "e": []}) == [["a", "e"], ["c", "b"], ["d"]]


def test_weights_at_a_step() -> None:
    weights = -0.25, 0.0, Schedule(0.0, 1.0, fraction=0.5)
    stack = RewardStack([Component(f"r{place}", Counting(), weight) for place, weight in enumerate(weights)])
    assert [stack.weights(step, 100) for step in (0, 25, 99)] == [[-0.25, 0.0, last] for last in (0.0, 0.5, 1.0)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # p = 0, 1/4, 1/2, 3/4, 1, and beyond; cosine: (1 - cos(pi/4)) / 2 = 0.14644661, its mirror 0.85355339
        ("linear", [2.0, 3.0, 4.0, 5.0, 6.0, 6.0]),
        ("cosine", [2.0, 2.58578644, 4.0, 5.41421356, 6.0, 6.0]),
        ("step", [2.0, 2.0, 2.0, 2.0, 6.0, 6.0]),
    ],
)
def test_shapes(shape: str, expected: list[float]) -> None:
    schedule = Schedule(2.0, 6.0, steps=4, shape=shape)  # type: ignore[arg-type]
    assert [schedule.at(step, 100) for step in (0, 1, 2, 3, 4, 50)] == pytest.approx(expected)


def test_a_ramp_over_a_fraction_of_training_over_steps_or_over_all_of_it() -> None:
    schedule = Schedule(1.0, 0.0, fraction=0.5)
    assert [schedule.at(step, 8) for step in (0, 1, 2, 4, 8)] == [1.0, 0.75, 0.5, 0.0, 0.0]
    assert schedule.at(4, 16) == 0.5  # the same step of a run twice as long has gone half as far
    schedule = Schedule(0.0, 1.0, steps=10)
    assert schedule.at(5, 10) == schedule.at(5, 1000) == 0.5
    assert Schedule(0.0, 2.0, steps=1).at(0, 1) == 0.0
    assert Schedule(0.0, 2.0).at(0, 0) == 2.0  # a ramp without a step is over
    assert Schedule(0.0, 2.0).at(2, 4) == 1.0


def test_one_evaluation_a_batch_however_many_columns_are_asked() -> None:
    first, second, third = Counting(1, 2), Counting(3, 4), Counting(5, 6)
    stack = stack_of(first=first, second=second, third=third)
    one, two, three = stack.columns()
    with stack.batch():
        # not in the order of the columns, and one of them twice
        assert [ask(**TWO_ROWS) for ask in (two, one, three, two)] == [[3, 4], [1, 2], [5, 6], [3, 4]]
    assert [len(reward.calls) for reward in (first, second, third)] == [1, 1, 1]
    # The stack forgets a batch when it is over, or has failed.
    first.scores = [7, 8]
    assert one(**TWO_ROWS) == [7.0, 8.0]
    first.scores, second.scores = [9, 9], [9]
    with pytest.raises(RewardError), stack.batch():
        one(**TWO_ROWS)
    second.scores = [3, 4]
    assert one(**TWO_ROWS) == [9.0, 9.0]


def test_rewards_that_wait_do_so_together_and_threads_end_with_the_stack() -> None:
    """Each of these 33 waits until all of them are there; a pool has 32 threads at most by default."""
    all_there = asyncio.Barrier(33)

    async def reward(**batch: Any) -> list[float]:
        await asyncio.wait_for(all_there.wait(), 20)
        return [1, 2]

    stack = stack_of(**{f"r{number}": reward for number in range(33)})
    assert [outcome.raw for outcome in stack.evaluate(**TWO_ROWS).values()] == [[1, 2]] * 33
    pool = stack._threads
    stack.close()
    with pytest.raises(RuntimeError):
        pool.submit(int)


def test_one_event_loop_for_all_batches() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def reward(**batch: Any) -> list[float]:
        loops.append(asyncio.get_running_loop())
        assert threading.current_thread().daemon, "a run that fails would wait for it"
        return [1, 2]

    stack = stack_of(one=reward, two=reward)
    stack.evaluate(**TWO_ROWS)
    stack.evaluate(**TWO_ROWS)
    assert len(loops) == 4
    assert len(set(map(id, loops))) == 1
    stack.close()
    assert loops[0].is_closed()


RAISES_BESIDE_ASYNC = """
import asyncio, sys
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack, runs_elsewhere

async def lines():
    try:
        yield
    finally:
        print("closed", flush=True)

opened = lines()

async def slow(**batch):
    await anext(opened)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)
        print("let go", flush=True)
    return [1.0]

def broken(**batch):
    import time
    time.sleep(0.2)
    raise ValueError("mine")

stack = RewardStack([Component("broken", broken), Component("slow", slow)])
try:
    stack.evaluate(prompts=["p"], completions=["c"])
except Exception as error:
    print(error.what, flush=True)
stack.close()
"""


def test_an_error_beside_an_async_reward_cancels_that_reward() -> None:
    """In a process of its own: the coroutine is cancelled and not tried again, no warning is given, and it ends."""
    words = [sys.executable, "-W", "error", "-X", "dev", "-c", RAISES_BESIDE_ASYNC]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.splitlines() == ["reward 'broken' failed on row 0", "let go", "closed"]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_computing_reward_stays_in_the_callers_thread() -> None:
    """Only there does a deadline's signal interrupt it; libraries that time themselves with signals work there too."""
    threads: list[threading.Thread] = []

    def computes(**_: Any) -> list[float]:
        threads.append(threading.current_thread())
        return [1.0, 1.0]

    class Asks:
        async def __call__(self, **_: Any) -> list[float]:
            return [2.0, 2.0]

    stack = stack_of(a=computes, b=computes, asks=Asks())
    stack.evaluate(**TWO_ROWS)
    stack.close()
    assert threads == [threading.current_thread()] * 2
    assert [runs_elsewhere(component.score) for component in stack.components] == [False, False, True]
    assert runs_elsewhere(Isolated("mine:own", {}, timeout_s=None))


NAMES = ["p0", "p1", "p2", "p3"]
BATCH: dict[str, Any] = {"prompts": NAMES, "completions": [*"abcd"], "completion_ids": [[1]] * 4, "row": [0, 1, 2, 3]}


class Table:
    """A reward that returns the score of a row number and remembers the rows it scored."""

    def __init__(self, *scores: float | None) -> None:
        self.scores = scores
        self.asked: list[list[int]] = []

    def __call__(self, row: list[int], **batch: Any) -> list[float | None]:
        assert all(len(batch[key]) == len(row) for key in ("prompts", "completions", "completion_ids"))
        assert batch["prompts"] == [NAMES[index] for index in row]
        self.asked.append(list(row))
        return [self.scores[index] for index in row]


def at_least(by: str, **otherwise: Any) -> ScoreGate:
    return ScoreGate(by, low=1.0, **otherwise)


def evaluated(*components: Component) -> RewardStack:
    stack = RewardStack(components)
    stack.evaluate(**BATCH)
    stack.close()
    return stack


@pytest.mark.parametrize(
    ("gate", "is_open", "is_closed"),
    [
        (ScoreGate("g", low=0.5), [0.5, 0.51, 9.0], [0.49, 0.0, -9.0]),
        (ScoreGate("g", high=0.5), [0.5, 0.0, -9.0], [0.51, 9.0]),
        (ScoreGate("g", low=-1.0, high=1.0), [-1.0, 0.0, 1.0], [-1.01, 1.01]),
        (ScoreGate("g"), [0.0, -9.0], []),
    ],
)
def test_bounds_of_a_gate_that_no_score_closes(gate: ScoreGate, is_open: list[float], is_closed: list[float]) -> None:
    assert all(gate.is_open(raw) for raw in is_open)
    assert not any(gate.is_open(raw) for raw in (*is_closed, None, math.nan))


class TestWhatIsComputed:
    @pytest.mark.parametrize("eager", [False, True])
    def test_only_the_rows_that_are_open(self, eager: bool) -> None:
        """An eager reward scores closed rows, too; they still count as closed."""
        a, b = Table(1, 0, 1, 0), Table(0.5, 7, 0.1, 7)
        stack = evaluated(Component("b", b, gates=(at_least("a"),), eager=eager), Component("a", a))
        assert (a.asked, b.asked) == ([[0, 1, 2, 3]], [[0, 1, 2, 3] if eager else [0, 2]])
        found = stack.outcomes["b"]
        assert found.raw == [0.5, None, 0.1, None]
        assert found.fixed == [None, 0.0, None, 0.0]
        assert found.closed_by == [None, "a", None, "a"]
        calls = (4, 0) if eager else (2, 2)
        assert (found.calls, found.calls_saved, found.num_open, found.num_excluded) == (*calls, 2, 0)

    def test_none_where_every_gate_is_closed(self) -> None:
        b = Table(1, 1, 1, 1)
        found = evaluated(Component("a", Table(0, 0, 0, 0)), Component("b", b, gates=(at_least("a"),))).outcomes["b"]
        assert (b.asked, found.calls, found.calls_saved) == ([], 0, 4)

    def test_a_chain_of_gates_passes_on_open_rows(self) -> None:
        """A gate reads raw scores: the 5.0 that b's closed row is given is none, and c's gate is closed there, too."""
        a, b, c = Table(1, 1, 1, 0), Table(1, 0, 1, 1), Table(5, 6, 7, 8)
        gated = Component("b", b, gates=(at_least("a", otherwise=5.0),))
        outcomes = evaluated(Component("c", c, gates=(at_least("b"),)), gated, Component("a", a)).outcomes
        assert (a.asked, b.asked, c.asked) == ([[0, 1, 2, 3]], [[0, 1, 2]], [[0, 2]])
        assert (outcomes["c"].raw, outcomes["c"].closed_by) == ([5, None, 7, None], [None, "b", None, "b"])
        assert (outcomes["b"].fixed, outcomes["b"].closed_by) == ([None, None, None, 5.0], [None, None, None, "a"])

    def test_all_of_several_must_open(self) -> None:
        a, b, c = Table(1, 1, 0, 0), Table(0, 1, 0, 1), Table(1, 2, 3, 4)
        gates = (at_least("a"), ScoreGate("b", high=0.5, otherwise="exclude"))
        found = evaluated(Component("a", a), Component("b", b), Component("c", c, gates=gates)).outcomes["c"]
        assert c.asked == [[0]]
        assert found.closed_by == [None, "b", "a", "a"]  # the first that is closed decides
        assert found.fixed == [None, None, 0.0, 0.0]
        assert found.num_excluded == 1

    def test_a_row_that_failed_closes_what_reads_it(self) -> None:
        def a(row: list[int], **_: Any) -> list[float]:
            if 2 in row:
                raise ValueError("two")
            return [1.0] * len(row)

        b = Table(1, 1, 1, 1)
        stack = evaluated(Component("a", a, on_error=1.0), Component("b", b, gates=(at_least("a"),)))
        assert stack.outcomes["a"].fixed == [None, None, 1.0, None]
        assert b.asked == [[0, 1, 3]]


@pytest.mark.parametrize("rules", [{"gates": (at_least("a"),)}, {"on_error": "exclude"}, {"eval_only": True}])
def test_a_batch_without_logged_values_still_has_the_column(rules: dict[str, Any]) -> None:
    """TRL would otherwise show the last batch's values beside this batch's completions."""

    def says(row: list[int], log_extra: Any, **_: Any) -> list[float]:
        log_extra("said", [f"row {index}" for index in row])
        return [1.0] * len(row)

    passes = [1.0] * 4
    stack = RewardStack([Component("a", lambda **_: passes), Component("b", says, **rules)])
    stack.evaluate(**BATCH, log_extra=print)
    stack.is_training, passes[:] = True, [0.0] * 4
    stack.evaluate(**BATCH | {"row": None}, log_extra=print)
    assert stack.outcomes["b"].extra == {"said": [None] * 4}
    stack.close()
