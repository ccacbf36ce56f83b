"""`rlhf` answers in a blink: no verb that trains nothing imports a training library."""

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


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["list"], ["show", "+exp=quickstart"], ["check", "+exp=quickstart"]),
        *(["train", "--dry-run", "+exp=quickstart"], ["audit", "+exp=quickstart", "--kinds", "empty"]),
        *(["list", "trainer", "ppo"], ["list", "reward", "trl_repetition"]),
    ],
    ids=" ".join,
)
def test_light(words: list[str]) -> None:
    assert heavy_after(f"from rlhf_cli.cli import main\nassert main({words!r}) == 0") == set()


def test_light_when_the_data_is_a_file(place: Path) -> None:
    (place / "rows.jsonl").write_text('{"prompt": "1+1=", "a": 1, "b": 1}\n' * 9)
    words = ["check", "+exp=quickstart", "data=file", "data.path=rows.jsonl", "track=wandb"]
    assert heavy_after(f"from rlhf_cli.cli import main\nassert main({words!r}) == 0") == set()


def test_light_where_no_reward_needs_a_model(place: Path) -> None:
    (place / "c.jsonl").write_text('{"prompt": "1+1=", "completion": "2", "a": 1, "b": 1, "ok": true}\n')
    words = ["score", "+exp=quickstart", "--completions", "c.jsonl", "--label", "ok"]
    assert heavy_after(f"from rlhf_cli.cli import main\nassert main({words!r}) == 0") == set()


def test_a_worker_hears_signals_before_it_imports_anything_large() -> None:
    assert heavy_after("import rlhf_cli.jobs.rank_process") == set()


def test_negative_control_what_computes_is_not() -> None:
    assert "torch" in heavy_after("import rlhf_cli.numerics.gae")
