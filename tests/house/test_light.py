"""Test that verbs which train nothing import no training library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("place")
HEAVY = ("torch", "transformers", "trl", "wandb", "datasets", "pandas", "scipy")


def heavy_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('HEAVY', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


COMMANDS = [
    *(["--help"], ["list"], ["show", "+exp=quickstart"], ["check", "+exp=quickstart"]),
    *(["train", "--dry-run", "+exp=quickstart"], ["audit", "+exp=quickstart", "--kinds", "empty"]),
    *(["list", "trainer", "ppo"], ["list", "reward", "trl_repetition"]),
    ["check", "+exp=quickstart", "data=file", "data.path=rows.jsonl", "track=wandb"],
    ["score", "+exp=quickstart", "--completions", "rows.jsonl", "--label", "ok"],  # no reward of it needs a model
]


def test_no_command_that_trains_nothing_imports_a_training_library(place: Path) -> None:
    """One interpreter runs all commands; the first heavy one fails."""
    (place / "rows.jsonl").write_text('{"prompt": "1+1=", "completion": "2", "a": 1, "b": 1, "ok": true}\n' * 9)
    each = f"""
from rlhf_cli.cli import main
for words in {COMMANDS!r}:
    assert main(words) == 0, words
    assert not [name for name in {HEAVY} if name in sys.modules], words
"""
    assert heavy_after(each) == set()


def test_a_rank_process_handles_signals_before_large_imports() -> None:
    assert heavy_after("import rlhf_cli.launch.rank_process") == set()


def test_negative_control_a_heavy_import_is_noticed() -> None:
    assert heavy_after("import rlhf_cli.numerics.intervals, scipy") == {"scipy"}
