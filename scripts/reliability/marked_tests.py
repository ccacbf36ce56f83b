"""Find the tests marked with a fault by parsing their files, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TARGETS = {"slow": "test-slow", "processes": "test-processes", "slurm": "test-slurm", "whole": "test-whole"}
"""Markers of tests that `make test` leaves out -> the target that runs them."""


@dataclass(frozen=True)
class MarkedTest:
    """A test of the fault `number`. `file` is below the project; `target` is the make target that runs it."""

    number: int
    file: str
    name: str
    target: str


def marked_tests(root: Path) -> list[MarkedTest]:
    """Return the tests below `root`/tests marked `pytest.mark.fault(N)`, by number, file and line.

    A mark of a class or module counts for each of its tests, a mark of a parameter for its test.
    """
    found: list[MarkedTest] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.fault" in text:
            found += _in_file(ast.parse(text), path.relative_to(root).as_posix())
    return sorted(found, key=lambda test: (test.number, test.file))


def _in_file(module: ast.Module, file: str) -> Iterator[MarkedTest]:
    everywhere = [node.value for node in module.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                yield from _of_test(inner, [*everywhere, *node.decorator_list], file)
        else:
            yield from _of_test(node, everywhere, file)


def _of_test(node: ast.stmt, inherited: list[ast.expr], file: str) -> Iterator[MarkedTest]:
    if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
        return
    marks = [*inherited, *node.decorator_list]
    names = {name for mark in marks for name in _names(mark)}
    target = next((target for marker, target in TARGETS.items() if marker in names), "test")
    for number in sorted({number for mark in marks for number in _numbers(mark)}):
        yield MarkedTest(number, file, node.name, target)


def _is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _numbers(mark: ast.expr) -> Iterator[int]:
    for node in ast.walk(mark):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
            for argument in node.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, int):
                    raise ValueError(f"line {node.lineno}: fault takes numbers, not {ast.unparse(argument)}")
                yield argument.value


def _names(mark: ast.expr) -> Iterator[str]:
    """Yield the markers of a whole test, without those of single parameters."""
    for outer in mark.elts if isinstance(mark, ast.List | ast.Tuple) else [mark]:
        plain = outer.func if isinstance(outer, ast.Call) else outer
        if isinstance(plain, ast.Attribute):
            yield plain.attr
