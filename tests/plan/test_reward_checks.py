"""`check` and `train` call every reward function on a row before torch is loaded, and advise what helps."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rlhf_cli.cli import main
from rlhf_cli.data.peeking import LEFT_OUT
from rlhf_cli.errors import RewardError
from rlhf_cli.plan.checks import reward_checks
from rlhf_cli.plan.checks.reward_checks import advice_on
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.returned_scores import as_numbers, as_scores
from rlhf_cli.rewards.stack.reward_functions import resolve

MINE = """
import os, re, sys, time

calls = []

def raises(completions, answer, **columns):
    return [re.search("<a>(.*)</a>", said).group(1) for said in completions]  # line 7

def none(completions):  # line 9
    [os.write(stream, b"not to be seen") for stream in (1, 2)]

def texts(completions):  # line 12
    return ["1.0" for _ in completions]

def short(completions):  # line 15
    return [1.0]

def leaves(completions):
    sys.exit(3)  # line 19

def dies(completions):
    os.kill(os.getpid(), 11)
def late(completions):
    time.sleep(60)
def isolated_with_state(completions, trainer_state):
    assert (trainer_state.global_step, trainer_state.max_steps) == (0, 1)
    return [1.0] * len(completions)
def heavy(completions, prompts, answer, trainer_state, log_extra, log_metric, completion_ids):
    import sqlite3
    print("not to be seen")
    assert completions == ["3"] * 7 + ["3 "] and answer == ["3"] * 8 and prompts == ["1+2="] * 8
    assert [bytes(ids).decode() for ids in completion_ids] == completions
    log_extra(column="said", values=completions)
    log_metric(name="x", value=float(trainer_state.global_step))
    calls.append(completions)
    with open("called", "a") as stream:
        print(os.getpid(), file=stream)
    return [1.0] * len(completions)
def messages(completions, **columns):
    return [len(said[0]["content"]) for said in completions]
async def later(completions):
    return [1.0] * len(completions)
def dense(completions, completion_ids):
    return [[0.5] * len(ids) for ids in completion_ids]
def spans(completions):
    return [[(0, 1, 1.0)] for _ in completions]
def slow(completions):
    time.sleep(0.5)
    return [1.0] * len(completions)
def keyed(completions):
    return os.environ["MY_OWN_KEY"]
def logs(completions, log_metric):
    log_metric("share", "high")
def extra(completions, log_extra):
    log_extra("said", ["one"])
    return [1.0] * len(completions)
def pairs(completions):
    return [(1.0, 0.5) for _ in completions]
def odd(completions, **columns):
    return [float(number) for number in columns["odd"]]
"""


OF_AN_OBJECT = """
def f(completions):
    raise LookupError

class Of:
    def __call__(self, completions):
        return []

of = Of()
"""


def test_where_a_call_failed(write: Callable[[str, str], Path]) -> None:
    """In the last line of the user's file that was reached, else where the function or its class's call begins."""
    write("mine.py", OF_AN_OBJECT)
    error = RewardError("it failed", where="fn", got="x" * 400)
    for name, line in (("f", 2), ("of", 6)):
        function = resolve(f"./mine.py:{name}", {}, where="fn")
        got, place = reward_checks._reason(error, f"./mine.py:{name}", function)
        assert (len(got), place) == (300, f" (mine.py:{line})")
    function = resolve("./mine.py:f", {}, where="fn")
    with pytest.raises(LookupError) as caught:
        function([""])
    error.__cause__ = caught.value
    assert reward_checks._reason(error, "./mine.py:f", function)[1] == " (mine.py:3)"
    assert reward_checks._reason(error, "builtins:len", function)[1] == ""


@pytest.fixture
def words(write: Callable[[str, str], Path]) -> list[str]:
    write("mine.py", MINE)
    write("rows.jsonl", "\n".join(json.dumps({"prompt": f"{row}+2=", "answer": str(row + 2)}) for row in range(1, 9)))
    typed = "+exp=quickstart ~rewards.correct ~rewards.format ~rewards.brevity data=file data.path=rows.jsonl"
    return typed.split()


def found(words: list[str], name: str, capfd: pytest.CaptureFixture[str], *more: str) -> list[dict[str, str]]:
    code = main(["check", *words, f"rewards.x.fn=./mine.py:{name}", "--json", *more])
    printed = capfd.readouterr()
    assert "not to be seen" not in printed.out + printed.err
    problems: list[dict[str, str]] = json.loads(printed.out).get("problems", [])
    assert code == (2 if problems else 0)
    return problems


@pytest.mark.parametrize(
    ("name", "line", "got"),
    [
        ("raises", 7, "AttributeError"),
        ("none", 9, "NoneType"),
        ("texts", 12, "'1.0'"),
        ("short", 15, "1 values for 8"),
        ("leaves", 19, "SystemExit: 3"),
        ("keyed", 51, "MY_OWN_KEY"),
        ("logs", 53, "TypeError: log_metric('share', ...) takes a number, and was given 'high'"),
        ("extra", 55, "TypeError: log_extra('said', ...) takes 8 values, one per completion, and was given 1"),
        ("pairs", 57, "2 values for a completion of 1 tokens"),
    ],
)
def test_the_line_of_a_failure(
    name: str, line: int, got: str, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (problem,) = found(words, name, capfd)
    assert problem["kind"] == "RewardError"
    assert f"(mine.py:{line})" in problem["where"]
    assert (got in problem["got"], "here '3'" in problem["expected"]) == (True, True)
    told = {"none": "return one entry per", "texts": "[float(score) for score", "short": "one entry per completion"}
    told["keyed"] = "export MY_OWN_KEY="  # which is no column
    told |= {"logs": "mend the line", "extra": "mend the line", "pairs": "return one number per completion"}
    assert told.get(name, "rewards.x.trial=false") in problem["advice"]
    assert found(words, name, capfd, "rewards.x.trial=false") == []


def test_a_function_that_dies_or_lacks_an_argument_in_a_worker(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (problem,) = found(words, "dies", capfd)
    assert "died" in problem["got"]
    (problem,) = found(words, "isolated_with_state", capfd, "rewards.x.isolate=true")
    assert "trainer_state" in problem["got"]
    assert found(words, "isolated_with_state", capfd) == []


def test_a_function_slower_than_its_limit_is_refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    (problem,) = found(words, "late", capfd, "rewards.x.timeout_s=0.5")
    assert "no answer within 0.5 s" in problem["got"]


def test_a_call_that_would_pass_after_its_limit_is_late(words: list[str]) -> None:
    """A reward without a limit of its own has that of the trial."""
    reward = prepare([*words, "rewards.x.fn=./mine.py:slow"]).experiment.rewards["x"]
    failed = reward_checks._failure("x", reward, {"prompts": "1+2="}, ["3", "3 "], 0.1)
    assert failed is not None
    assert "no answer within 0.1 s" in failed[0]
    assert failed[1] == " (mine.py:47)"


def test_a_long_trial_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reward_checks, "_QUIET_S", 0.05)
    assert reward_checks.in_fork(lambda: time.sleep(0.3), 5.0, "the reward 'slow'") is None
    assert "'slow'" in capfd.readouterr().err
    monkeypatch.setattr(reward_checks, "_QUIET_S", 60)
    assert reward_checks.in_fork(lambda: None, 5.0, "the reward 'quick'") is None
    assert capfd.readouterr().err == ""
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_a_trial_reads_no_keys_and_leaves_neither_processes_nor_open_files(place: Path) -> None:
    def starts() -> tuple[str, str]:
        Path("pid").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
        return os.read(0, 9).decode(), "read"

    (reads, writes), keyboard, before = os.pipe(), os.dup(0), len(os.listdir("/proc/self/fd"))
    os.write(writes, b"typed")
    os.dup2(reads, 0)
    try:
        assert reward_checks.in_fork(starts, 5.0, "it") == ("", "read")
    finally:
        os.dup2(keyboard, 0)
    assert len(os.listdir("/proc/self/fd")) == before
    for file in (reads, writes, keyboard):
        os.close(file)
    started = Path(f"/proc/{Path('pid').read_text()}/stat")
    while started.exists() and started.read_text().split()[2] != "Z":
        time.sleep(0.01)  # a test that waits for good has a timeout


@pytest.mark.parametrize("name", ["later", "dense", "spans"])
def test_sound_functions_pass(
    name: str, words: list[str], write: Callable[[str, str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert found(words, name, capfd) == []
    write("rows.jsonl", Path("rows.jsonl").read_text().replace('"3"', '"drei für é"'))  # letters of several bytes
    assert found(words, name, capfd) == []


def test_a_tolerated_failure_gives_a_notice(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words, "rewards.x.fn=./mine.py:raises", "rewards.x.on_error=exclude"]) == 0
    assert "AttributeError" in capfd.readouterr().out


def test_the_trial_leaves_this_process_unchanged(words: list[str], tmp_path: Path) -> None:
    """The function imports a module and keeps what it saw: neither happens in the process that goes on to train."""
    code = (
        "import sys; from rlhf_cli.cli import main\n"
        f"assert main(['check', *{words!r}, 'rewards.x.fn=./mine.py:heavy']) == 0\n"
        "(mine,) = [module for name, module in sys.modules.items() if name.startswith('rlhf_cli.user_files.mine')]\n"
        "assert mine.calls == [] and 'sqlite3' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    (pid,) = Path("called").read_text().split()
    assert not Path(f"/proc/{pid}").exists()


def test_a_resumed_run_is_not_tried(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    words = [*words, "rewards.x.fn=./mine.py:heavy", "rewards.x.trial=false", "track=none", "expect=null", "run.name=r"]
    assert main(["train", *words, "trainer.args.max_steps=1", "trainer.args.per_device_train_batch_size=8"]) == 1
    Path("called").unlink(missing_ok=True)
    main(["reproduce", "runs/quickstart/r"])
    assert not Path("called").exists()


TRIAL, SAME = "rewards.x.trial=false", "fail in the same way"
TEXTS = {"prompt": "1+1=", "answer": "2", "level": 3}

# what a function failed with on a row of texts | what the advice says. The completion of the trial is no sentence of a
# model: what a function looks for in it, or reads from it as JSON, may be there in the run
ADVISED = [
    ("AttributeError: 'NoneType' object has no attribute 'group'", TRIAL),
    ("TypeError: 'float' object is not subscriptable", TRIAL),
    ("AttributeError: 'StateOfTrainer' object has no attribute 'epoch'", TRIAL),
    ("ValueError: could not convert string to float: 'x'", TRIAL),
    ("IndexError: list index out of range", TRIAL),
    ("sys.exit(3)", TRIAL),
    ("its process died", TRIAL),
    ("TypeError: 'int' object is not iterable", SAME),  # the row has such a value, which the function may read
    ("TypeError: unhashable type: 'list'", SAME),
    ("AttributeError: 'str' object has no attribute 'get'", SAME),
    ("NameError: name 'np' is not defined", SAME),
    ("TypeError: f() missing 1 required positional argument: 'trainer_state'", SAME),
    ("ModuleNotFoundError: No module named 'latex2sympy2_extended.x'", "has latex2sympy2_extended where"),
    ("ImportError: cannot import name 'x' from 'y'", "install"),
    ("KeyError: 'solution'", "data.rename.solution=COLUMN"),
    ("KeyError: 'answer'", TRIAL),
    ("the environment variable OPENAI_API_KEY is not set", "export OPENAI_API_KEY=..."),
]


@pytest.mark.parametrize(("got", "said"), ADVISED)
def test_leaving_out_the_trial_is_offered_where_a_run_may_differ(got: str, said: str) -> None:
    advice = advice_on("x", got, TEXTS, None)
    assert said in advice
    assert (TRIAL in advice) == (said == TRIAL)


def test_a_function_that_reads_messages_is_given_them(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """What is advised is typed, and helps; also with a template of the user's."""
    for template in ([], ["data.prompt='Say: {prompt}'"]):
        (problem,) = found(words, "messages", capfd, *template)
        typed = shlex.split(problem["advice"].partition("; ")[2])[0]
        assert ("Say: {prompt}" in typed, TRIAL in problem["advice"]) == (bool(template), False)
        assert "TypeError" in problem["got"]
        assert found(words, "messages", capfd, typed, "rewards.x.trial=true") == []


def test_a_function_that_reads_texts_is_told_of_messages() -> None:
    row = {"prompt": [{"role": "user", "content": "1+1="}]}
    for got in ("AttributeError: 'list' object has no attribute 'strip'", "TypeError: expected string, got 'list'"):
        assert "completion[0]['content']" in advice_on("x", got, row, None)


def test_a_column_that_is_left_out_is_named(
    write: Callable[[str, str], Path], words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its values are of several kinds, so no reward gets it; a reward named no such column, and its name is there."""
    rows = [{"prompt": f"{row}+2=", "self": "x", "odd": row if row % 2 else str(row)} for row in range(1, 9)]
    write("rows.jsonl", "\n".join(map(json.dumps, [*rows, {"prompt": "9+2=", "large": 2**63}])))
    (problem,) = found(words, "odd", capfd)
    assert (problem["got"], problem["advice"]) == ("KeyError: 'odd'", LEFT_OUT.format("odd"))
    assert main(["check", *words, "rewards.x.fn=./mine.py:later"]) == 0
    printed = capfd.readouterr()
    assert all(LEFT_OUT.format(name)[:40] in printed.out + printed.err for name in ("odd", "large"))


# what a function returned for two completions | what helps
RETURNED: list[tuple[object, str]] = [
    (None, "without `return`"),
    (1.0, "one entry per completion"),
    ([1.0], "one entry per completion"),
    ([1.0] * 3, "one entry per completion"),
    ({"score": [1.0, 1.0]}, 'result["score"]'),
    ([{"score": 1.0, "acc": True}] * 2, '[result["score"] for result in results]'),
    ([math.nan, 1.0], "None instead of NaN"),
    ([-math.inf, 1.0], "None instead of NaN"),
    ([1e39, 1.0], "None instead of NaN or infinity"),
    (["1.0", "0.0"], "[float(score) for score in scores]"),
    ((score for score in (1.0, 1.0)), "list(scores)"),
    ([(1.0, "why")] * 2, "one number per completion"),
]


@pytest.mark.parametrize(("returned", "said"), RETURNED)
def test_what_is_returned_is_mended_by_what_is_advised(returned: object, said: str) -> None:
    with pytest.raises(RewardError) as caught:
        as_scores("x", returned, 2, lambda _, value: as_numbers(value, "token"))
    advice = advice_on("x", f"{caught.value.what}: {caught.value.got}", TEXTS, None)
    assert said in advice
    assert re.search(r"float\(score\)", advice) is None or isinstance(returned, list)
