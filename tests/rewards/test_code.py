"""The rewards that run code: what is taken for the program, what passes."""

from __future__ import annotations

import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.code import code_in, code_passes_tests, code_runs, split_tests
from rlhf_cli.services.sandbox import running as sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox wants Linux")

ADD = "```python\ndef add(a, b):\n    return a + b\n```"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nbye", "x = 1\n"),
        ("```py\na\n```\nor\n```python3\nb\n```\n```\noutput\n```", "b\n"),
        ("```\na\n```\n```json\n{}\n```", "a\n"),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("```python\nx = 1", "x = 1"),
        ("````python\n'''\n```\n'''\n````", "'''\n```\n'''\n"),
        ("~~~Python title=x\na\n~~~", "a\n"),
        ("  ```python\n  a\n\n    b\n c\n  ```", "a\n\n  b\nc\n"),
        ("1. Do:\n\n   ```python\n   def f():\n       pass\n   ```", "def f():\n    pass\n"),
        *((f"{before}```python\nx = 1\n```\nbye", "x = 1\n") for before in ("<answer>", "Answer: ", "</think>")),
        ("Use ```x``` and say ``` or so:\n```\ny\n```", "y\n"),
    ],
)
def test_code_in(text: str, code: str) -> None:
    assert code_in(text) == code


def test_code_runs() -> None:
    said = [{"role": "assistant", "content": "So:\n```python\nimport sys\nsys.exit(0)\n```"}]
    completions: list[Any] = ["print('hi')", said, "1 / 0", "while True: pass", "def", "  ", "input()", "exit(3)"]
    started = time.monotonic()
    assert code_runs(completions, timeout_s=1.0) == [1, 1, 0, 0, 0, 0, 0, 0]
    assert time.monotonic() - started < 8
    assert code_runs([]) == []


def test_each_row_has_the_limits_that_are_documented_unless_others_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"timeout_s": 5.0, "memory_mb": 512, "max_processes": 16, "max_file_mb": 16, "isolation": "auto"}
    others = {"timeout_s": 2.5, "memory_mb": 64, "max_processes": 3, "max_file_mb": 4, "isolation": "limits"}
    seen: list[object] = []

    def run(source: str, **limits: object) -> Any:
        seen.append(limits)
        return SimpleNamespace(returncode=0, stdout="")

    def pool(size: int) -> ThreadPoolExecutor:
        seen.append(size)
        return ThreadPoolExecutor(1)

    for name, value in (("run_code", run), ("ThreadPoolExecutor", pool)):
        monkeypatch.setattr(f"rlhf_cli.rewards.code.{name}", value)
    monkeypatch.setattr(os, "cpu_count", iter((7, None)).__next__)
    for given in ({}, {**others, "max_workers": 3}):
        assert code_runs(["pass"], **given) == [1.0]  # type: ignore[arg-type]
        assert code_passes_tests(["pass"], ["assert True"], **given) == [0.0]  # type: ignore[arg-type]
    assert seen == [7, limits, 1, limits, 3, others, 3, others]


def test_code_passes_tests() -> None:
    tests = ["assert add(1, 2) == 3", "assert add(1, 1) == 3", "assert add('a', 'b') == 'ab'", "assert sub(1, 1) == 0"]
    assert code_passes_tests([ADD, "def add(", ""], [tests] * 3) == [0.5, 0.0, 0.0]
    # The program is a module and no script.
    code = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\ndef f(n): return P(n)\n"
    code += "if __name__ == '__main__':\n    input()\n"
    assert code_passes_tests([code], [["assert f(1) == P(1)", "assert f(1).x == 1"]]) == [1.0]


def test_split_tests() -> None:
    assert split_tests("import x\nassert a\n\nassert b; c()", 0) == ["import x\nassert a", "assert b", "c()"]
    assert split_tests(("assert a\nassert b",), 0) == ["assert a\nassert b"]
    for wrong in ("assert", ["assert a", "assert"], 3, ["assert a", 1], {"a": 1}):
        with pytest.raises(RewardError) as caught:
            split_tests(wrong, 7)
        assert "row 7" in str(caught.value)


HUMAN_EVAL = "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1) == 1\n"
CANNOT_FAIL = [
    HUMAN_EVAL,
    '{"inputs": ["1\\n"], "outputs": ["1\\n"], "fn_name": null}',  # APPS, TACO
    '[{"input": "1\\n", "output": "2\\n"}]',
    "from solution import f\n\ndef test_f():\n    assert f(1) == 1\n",  # KodCode
    "import unittest\nclass T(unittest.TestCase): ...\nif __name__ == '__main__':\n    unittest.main()",
    "f(1) == 2",
    "x: int = f(1)",
    ["import math", "def check(f): assert f(1)"],
]


@pytest.mark.parametrize("tests", CANNOT_FAIL)
def test_tests_in_which_nothing_can_fail_are_refused(tests: Any) -> None:
    with pytest.raises(RewardError) as caught:
        code_passes_tests(["pass", "pass"], ["assert True", tests])
    assert (caught.value.where, caught.value.row) == ("column tests, row 1", 1)
    called = "check(NAME)" if re.search("def |class ", str(tests)) else "input and output"
    assert called in str(caught.value.advice)


def test_what_cannot_fail_is_no_test_of_its_own() -> None:
    called = [HUMAN_EVAL + "check(f)", ["def check(f): assert f(1) == 1", "check(f)", "done = True"]]
    called += ["assert f(1) == 1\nimport math", "for n in [1]:\n    assert f(n) == 1"]
    assert [len(split_tests(tests, 0)) for tests in called] == [1] * 4
    for code, score in (("def f(n): return n", 1.0), ("def f(n): return 2", 0.0)):
        assert code_passes_tests([code] * 4, called) == [score] * 4
    assert [split_tests(nothing, 0) for nothing in (None, "", [], "# no test")] == [[]] * 4


@pytest.mark.parametrize(
    "cheat",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "def add(a, b):\n    import os; os._exit(0)",
        "def add(a, b):\n    raise SystemExit(0)",
        "print('0' * 32, 0)",
        "import sys; sys.stdout = open('x', 'w')",
        "class Yes:\n    def __eq__(self, other): raise KeyboardInterrupt\ndef add(a, b): return Yes()",
    ],
)
def test_leaving_early_passes_nothing(cheat: str) -> None:
    assert code_passes_tests([cheat], [["assert add(1, 2) == 3"]]) == [0.0]


def test_tests_that_end_the_process_or_the_time_end_the_row() -> None:
    code = "def f(n):\n    import os\n    return os._exit(0) if n == 1 else n\nprint('x' * 10**6)"
    assert code_passes_tests([code], [["assert f(0) == 0", "assert f(1)", "assert f(2) == 2"]]) == [1 / 3]
    loop = "def f(n):\n    while n: pass\n    return n"
    assert code_passes_tests([loop], [["assert f(0) == 0", "assert f(1)", "assert f(0) == 0"]], timeout_s=1) == [1 / 3]


def test_a_sandbox_that_fails_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.protections()
    monkeypatch.setattr(sandbox, "interpreter", lambda: "/bin/false")
    with pytest.raises(RewardError):
        code_runs(["pass"])
    with pytest.raises(RewardError):
        code_passes_tests(["pass"], ["assert True"])
