"""What to do about a reward function that failed on the first row: what helps, and no more."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.errors import RewardError
from rlhf_cli.plan.checks.reward_checks import advice_on
from rlhf_cli.rewards.stack.returned_scores import as_scores

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


def test_a_function_that_reads_messages_is_given_them(
    write: Callable[[str, str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """What is advised is typed, and helps; also with a template of the user's."""
    write("mine.py", "def f(completions, **columns): return [len(said[0]['content']) for said in completions]\n")
    write("rows.jsonl", "".join(json.dumps({"prompt": f"{row}+2=", "answer": "3"}) + "\n" for row in range(8)))
    rewards = "~rewards.correct ~rewards.format ~rewards.brevity expect=null rewards.x.fn=./mine.py:f"
    words = ["+exp=quickstart", *rewards.split(), "data=file", "data.path=rows.jsonl"]
    for template in ([], ["data.prompt='Say: {prompt}'"]):
        assert main(["check", *words, *template, "--json"]) == 2
        (problem,) = json.loads(capfd.readouterr().out)["problems"]
        typed = shlex.split(problem["advice"].partition("; ")[2])[0]
        assert ("Say: {prompt}" in typed, TRIAL in problem["advice"]) == (bool(template), False)
        assert main(["check", *words, typed]) == 0
        capfd.readouterr()


def test_a_function_that_reads_texts_is_told_of_messages() -> None:
    row = {"prompt": [{"role": "user", "content": "1+1="}]}
    for got in ("AttributeError: 'list' object has no attribute 'strip'", "TypeError: expected string, got 'list'"):
        assert "completion[0]['content']" in advice_on("x", got, row, None)


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
]


@pytest.mark.parametrize(("returned", "said"), RETURNED)
def test_what_is_returned_is_mended_by_what_is_advised(returned: object, said: str) -> None:
    with pytest.raises(RewardError) as caught:
        as_scores("x", returned, 2)
    advice = advice_on("x", f"{caught.value.what}: {caught.value.got}", TEXTS, None)
    assert said in advice
    assert re.search(r"float\(score\)", advice) is None or isinstance(returned, list)


def test_an_environment_variable_is_no_column(
    write: Callable[[str, str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    write("mine.py", "import os\ndef f(completions, **columns):\n    return os.environ['MY_OWN_KEY']\n")
    words = ["~rewards.correct", "~rewards.format", "~rewards.brevity", "expect=null", "rewards.x.fn=./mine.py:f"]
    assert main(["check", "+exp=quickstart", *words, "--json"]) == 2
    (problem,) = json.loads(capfd.readouterr().out)["problems"]
    assert ("export MY_OWN_KEY=" in problem["advice"], "rename" in problem["advice"]) == (True, False)
    assert "(mine.py:3)" in problem["where"]
