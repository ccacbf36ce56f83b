"""Test that mypy checks types: a Tensor is torch's and not Any, so planted mistakes are refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import structure

pytestmark = pytest.mark.whole

PLANTED = """\
from torch import Tensor

from rlhf_cli.numerics.ppo import whiten
from rlhf_cli.numerics.ppo import k1


def right(logp: Tensor, logq: Tensor) -> Tensor:
    return whiten(k1(logp, logq), logp > 0)[0]


def text_for_tensor(logp: Tensor) -> Tensor:
    return k1(logp, "a text")  # refused: arg-type


def float_for_tensor(logp: Tensor) -> Tensor:
    return 0.5  # refused: return-value


def tensor_for_float(logp: Tensor) -> float:
    return k1(logp, logp)  # refused: return-value


def no_such_method(logp: Tensor) -> Tensor:
    return k1(logp, logp).whitened()  # refused: attr-defined, no-any-return
"""


def test_negative_control_each_planted_mistake_is_refused(tmp_path: Path) -> None:
    """mypy checks the package, which has none, and the mistakes, under the project's configuration."""
    file = tmp_path / "planted.py"
    file.write_text(PLANTED, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary"]
    environment = {**os.environ, "MYPYPATH": str(structure.ROOT)}
    typed = [*command, structure.PACKAGE, str(file)]
    done = subprocess.run(typed, cwd=structure.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    refused: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        match = re.search(r"planted\.py:(\d+): error: .*\[([\w-]+)\]$", line)
        assert match or "planted.py" in line, f"of another file: {line}"
        if match:
            refused.setdefault(int(match[1]), []).append(match[2])
    planted = {
        number: text.partition("# refused: ")[2].split(", ")
        for number, text in enumerate(PLANTED.splitlines(), 1)
        if "# refused" in text
    }
    assert refused.keys() == planted.keys()
    assert [number for number, codes in planted.items() if not set(codes) & set(refused[number])] == []


def test_numerics_has_no_any_and_ignores_no_type() -> None:
    files = (structure.ROOT / structure.PACKAGE / "numerics").glob("*.py")
    assert [file.name for file in files if re.search(r"\bAny\b|type: ignore", file.read_text(encoding="utf-8"))] == []
