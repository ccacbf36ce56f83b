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


def messages_of_mypy(source: str, folder: Path, *more: str) -> dict[int, list[str]]:
    """Return line of `source` -> mypy's messages under the project's configuration; `more` has none."""
    file = folder / "planted.py"
    file.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary", *more, str(file)]
    environment = {**os.environ, "MYPYPATH": str(structure.ROOT)}
    done = subprocess.run(command, cwd=structure.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    found = [(line, re.search(r"planted\.py:(\d+): (.*)", line)) for line in done.stdout.splitlines()]
    assert [line for line, match in found if not match] == [], "of another file"
    lines: dict[int, list[str]] = {}
    for _, match in found:
        lines.setdefault(int(match[1]), []).append(match[2])
    return lines


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """Return mypy's messages for the planted mistakes; the package itself has none."""
    return messages_of_mypy(PLANTED, tmp_path_factory.mktemp("planted"), structure.PACKAGE)


def test_negative_control_each_planted_mistake_is_refused(messages: dict[int, list[str]]) -> None:
    refused = {line for line, texts in messages.items() if any(text.startswith("error:") for text in texts)}
    planted = {number for number, text in enumerate(PLANTED.splitlines(), 1) if "# refused" in text}
    assert refused == planted
    for number in planted:
        codes = PLANTED.splitlines()[number - 1].rpartition("# refused: ")[2].split(", ")
        assert any(f"[{code}]" in message for code in codes for message in messages[number])


def test_numerics_has_no_any_and_ignores_no_type() -> None:
    files = (structure.ROOT / structure.PACKAGE / "numerics").glob("*.py")
    assert [file.name for file in files if re.search(r"\bAny\b|type: ignore", file.read_text(encoding="utf-8"))] == []
