"""The conf/reward files of these rewards: they resolve, say their columns, pickle, and import nothing heavy."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.rewards.stack.reward_functions import required_columns, resolve

FOLDER = Path(__file__).parents[2] / "conf" / "reward"
COLUMNS: dict[str, list[str]] = {"server": [], "judge": [], "code_runs": [], "code_passes_tests": ["tests"]}


def load(name: str) -> dict[str, Any]:
    entry: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return entry


@pytest.mark.parametrize("name", COLUMNS)
def test_file(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert 4 <= len(lines) <= 12
    entry = load(name)
    assert list(entry) == ["fn", "args", "weight"]
    reward = resolve(entry["fn"], entry["args"], where=f"rewards.{name}")
    assert required_columns(reward) == COLUMNS[name]
    assert required_columns(pickle.loads(pickle.dumps(reward))) == COLUMNS[name]


def test_resolving_them_imports_nothing_heavy() -> None:
    entries = [load(name) for name in COLUMNS]
    heavy = ["torch", "transformers", "trl", "datasets", "accelerate", "numpy", "openai"]
    code = f"""
import sys
from rlhf_cli.rewards.stack.reward_functions import resolve
for entry in {entries}:
    resolve(entry["fn"], entry["args"], where="rewards.x")
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
