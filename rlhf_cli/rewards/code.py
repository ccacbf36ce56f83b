"""Reward code that runs or passes tests in a sandbox: a crash or a limit scores 0, a failure of the sandbox raises."""

from __future__ import annotations

import ast
import os
import re
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, TypeVar

from annotated_types import Ge, Gt

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, checked_columns, text_of
from rlhf_cli.services.sandbox.running import Isolation, run_code
from rlhf_cli.text.regular_files import parse_python

_Row = TypeVar("_Row")
_Value = TypeVar("_Value")

_OPENING = re.compile(r"(?:\s*|.*?[^`~\w\s]\s*)(`{3,}|~{3,})[ \t]*([\w+.-]*)[^`\n]*$")
_CLOSING = re.compile(r"\s*(`{3,}|~{3,})(?!\s*[\w+.-])")
_PYTHON = ("python", "python3", "py")

_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CANNOT_FAIL = (*_DEFINES, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Pass)
_CALL_IT = "append to each a line that calls what it defines; for HumanEval check(NAME), with the name in entry_point"
_NO_PAIRS = "write each pair of input and output as an assert: programs are not run with a standard input"

# Runs in the sandbox. Each pass is reported at once, with a random token, so that exiting early, printing or replacing
# sys.stdout passes no test. It is no secret: a program that looks into its callers' frames finds it, and can pass all.
_HARNESS = """
def main(source, tests, token):
    import os, sys, types
    write, out, module = os.write, os.dup(1), types.ModuleType("solution")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.modules["solution"] = module
    exec(compile(source, "solution.py", "exec"), module.__dict__)
    for number, test in enumerate(tests):
        try:
            exec(compile(test, "test.py", "exec"), module.__dict__)
        except BaseException as error:
            print(f"test {{number}}: {{type(error).__name__}}: {{error}}", file=sys.stderr)
        else:
            write(out, f"\\n{{token}} {{number}}\\n".encode())
main({source!r}, {tests!r}, {token!r})
"""


def code_in(text: str) -> str:
    """Return the program in a completion: the last block fenced as Python, else the last unmarked, else all of it."""
    blocks: list[tuple[str, list[str]]] = []  # an unclosed one extends to the end
    fence, indent = "", 0
    for line in text.splitlines(keepends=True):
        blanks = len(line) - len(line.lstrip(" "))
        if not fence and (opening := _OPENING.match(line)):  # also behind `<answer>` or `Answer:`
            fence, indent = opening[1], blanks
            blocks.append((opening[2].lower(), []))
        elif fence and (closing := _CLOSING.match(line)) and closing[1].startswith(fence):
            fence = ""
        elif fence:
            blocks[-1][1].append(line[min(indent, blanks) :])  # a block in a list is indented
    marked = [lines for language, lines in blocks if language in _PYTHON]
    unmarked = [lines for language, lines in blocks if not language]
    chosen = (marked or unmarked)[-1:]
    return "".join(chosen[0]) if chosen else text


def code_runs(
    completions: Sequence[Completion],
    *,
    timeout_s: Annotated[float, Gt(0)] = 5.0,
    memory_mb: Annotated[int, Ge(64)] = 512,
    max_processes: Annotated[int, Ge(1)] = 16,
    max_file_mb: Annotated[int, Ge(1)] = 16,
    isolation: Isolation = "auto",
    max_workers: Annotated[int, Ge(1)] | None = None,
    **kwargs: object,
) -> list[float]:
    """Score 1.0 if the completion's program ends with exit code 0, else 0.0; 0.0 if there is no program.

    A program that runs need not do anything useful: `pass` runs. Combine this with another reward.

    Args:
        completions: one per row; `code_in` finds the program.
        timeout_s: limit on the wall time of a row.
        memory_mb: limit on the address space of each process, and on the resident memory of all processes of a row.
        max_processes: limit on the processes and threads of a row.
        max_file_mb: limit on the size of a file; with namespaces also the size of the writable folder.
        isolation: `auto` uses the strongest method that works here: bubblewrap, else namespaces, else limits, whose
            gaps are logged. Another value requires that method.
        max_workers: number of rows that run at once; None = the number of processors.
    """
    run = partial(run_code, timeout_s=timeout_s, memory_mb=memory_mb, isolation=isolation)
    run = partial(run, max_processes=max_processes, max_file_mb=max_file_mb)

    def score(completion: Completion) -> float:
        source = code_in(text_of(completion))
        return float(bool(source.strip()) and run(source).returncode == 0)

    return _in_parallel(score, completions, max_workers)


def _check_tests(tests: object) -> None:
    split_tests(tests, 0)


@checked_columns(tests=_check_tests)
def code_passes_tests(
    completions: Sequence[Completion],
    tests: Sequence[str | Sequence[str] | None],
    *,
    timeout_s: Annotated[float, Gt(0)] = 5.0,
    memory_mb: Annotated[int, Ge(64)] = 512,
    max_processes: Annotated[int, Ge(1)] = 16,
    max_file_mb: Annotated[int, Ge(1)] = 16,
    isolation: Isolation = "auto",
    max_workers: Annotated[int, Ge(1)] | None = None,
    **kwargs: object,
) -> list[float | None]:
    """Score the share of a row's tests that the completion's program passes; None if the row has no tests.

    The program runs first, as a module that is not `__main__`, then the tests, one after another, in its namespace. A
    test passes if it ends without an exception. A test that ends the process or exceeds the time limit fails, and so do
    the tests after it. The program and its tests share a process: one that inspects its callers' frames can cheat.

    Args:
        completions: one per row; `code_in` finds the program.
        tests: dataset column: a list of tests, or a text with assert statements. Each assert is one test, together with
            the statements between it and the assert before. Tests in which nothing can fail, such as definitions that
            no line calls, are refused.
        timeout_s: limit on the wall time of a row with all its tests.
        memory_mb: limit on the address space of each process, and on the resident memory of all processes of a row.
        max_processes: limit on the processes and threads of a row.
        max_file_mb: limit on the size of a file; with namespaces also the size of the writable folder.
        isolation: `auto` uses the strongest method that works here: bubblewrap, else namespaces, else limits, whose
            gaps are logged. Another value requires that method.
        max_workers: number of rows that run at once; None = the number of processors.
    """
    run = partial(run_code, timeout_s=timeout_s, memory_mb=memory_mb, isolation=isolation)
    run = partial(run, max_processes=max_processes, max_file_mb=max_file_mb)
    todo = list(zip(completions, [split_tests(of_row, row) for row, of_row in enumerate(tests)], strict=True))

    def score(row: tuple[Completion, list[str]]) -> float | None:
        completion, wanted = row
        if not wanted:
            return None
        source, token = code_in(text_of(completion)), secrets.token_hex(16)
        if not source.strip():
            return 0.0
        outcome = run(_HARNESS.format(source=source, tests=wanted, token=token))
        lines = set(outcome.stdout.splitlines())
        return sum(f"{token} {number}" in lines for number in range(len(wanted))) / len(wanted)

    return _in_parallel(score, todo, max_workers)


def split_tests(tests: object, row: int) -> list[str]:
    """Return a row's tests as a list; what cannot fail goes before the next test, or is left out at the end.

    Raise RewardError, naming the row, if they are not text or not Python, or if nothing in them can fail.
    """
    if tests is None:
        return []
    if isinstance(tests, str):  # split it after each assert
        split: list[list[ast.stmt]] = [[]]
        for statement in _parsed(tests, row).body:
            split[-1].append(statement)
            if isinstance(statement, ast.Assert):
                split.append([])
        parts = [("\n".join(map(ast.unparse, part)), part) for part in split]
    elif isinstance(tests, Sequence) and all(isinstance(text, str) for text in tests):
        parts = [(text, _parsed(text, row).body) for text in tests]
    else:
        raise _refused("invalid tests", row, tests)
    wanted, before, statements = list[str](), list[str](), list[ast.stmt]()
    for text, part in parts:
        before.append(text)
        statements += part
        if any(map(_can_fail, part)):
            wanted.append("\n".join(before))
            before.clear()
    if statements and not wanted:
        advice = _CALL_IT if any(isinstance(one, _DEFINES) for one in statements) else _NO_PAIRS
        raise _refused("nothing in the tests can fail, so every program would pass", row, tests, advice)
    return wanted


def _can_fail(statement: ast.stmt) -> bool:
    """Return whether a statement does more than define, import or name something, or drop a value."""
    if isinstance(statement, ast.Expr):  # of `f(1) == 2`, the result is dropped
        calls = any(isinstance(node, ast.Call) for node in ast.walk(statement))
        return calls and not isinstance(statement.value, ast.Compare)
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return False  # the program and its tests are no script
    return not isinstance(statement, _CANNOT_FAIL)


def _parsed(text: str, row: int) -> ast.Module:
    try:
        return parse_python(text)
    except SyntaxError as error:
        raise _refused(f"a test is not Python: {error}", row, text) from None


def _refused(what: str, row: int, tests: object, advice: str = _NO_PAIRS) -> RewardError:
    got = tests if isinstance(tests, str) else repr(tests)
    expected = "a text of assert statements, or a list of such texts: assert f(1) == 2"
    error = RewardError(what, where=f"column tests, row {row}", got=got[:200], expected=expected, advice=advice)
    error.row = row
    return error


def _in_parallel(score: Callable[[_Row], _Value], rows: Sequence[_Row], max_workers: int | None) -> list[_Value]:
    # Threads, because they only wait for processes. A run ends with the thread that started it, so that thread must
    # wait for it.
    with ThreadPoolExecutor(max_workers or os.cpu_count() or 1) as pool:
        return list(pool.map(score, rows))
