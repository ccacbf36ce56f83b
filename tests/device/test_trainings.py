"""Every trainer trains whole on a device that is not the CPU, and waits for it only so often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.device.trainings import COMPARED, EVALUATED, PLANTED, RESUMED, STEPS, TRAININGS

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all runs

Seen = dict[str, dict[str, Any]]
ROOT = Path(__file__).parents[2]
WHOLE = [*TRAININGS, *(f"resume {name}" for name in RESUMED), *(f"eval {name}" for name in EVALUATED)]
TOKENS, MORE_TOKENS = 4, 12


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Maps each run's name to its record."""
    folder = tmp_path_factory.mktemp("device")
    command = [sys.executable, "-m", "tests.device.trainings"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: Seen = json.loads((folder / "seen.json").read_text())
    return found


def waits(run: dict[str, Any], *places: str, package: str = "rlhf_cli") -> int:
    """How often the host waited in a package's functions whose place begins so; a copy to the device is no wait."""
    return sum(
        count
        for operation, whose, place, count in run["waits"]
        if whose == package and operation != "copy to the device" and place.startswith(places or "")
    )


@pytest.mark.parametrize("name", WHOLE)
def test_whole_without_a_violation(seen: Seen, name: str) -> None:
    assert seen[name]["violations"] == []
    assert seen[name]["code"] == 0


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a mask of the CPU", "with a tensor of the CPU"),
        ("numpy", ".numpy() of a tensor of the device"),
        ("a generator of the CPU", "multinomial with a generator of the CPU"),
    ],
)
def test_negative_control_what_is_planted_is_caught(seen: Seen, name: str, what: str) -> None:
    assert name in PLANTED
    assert seen[name]["code"] != 0
    assert [one for one in seen[name]["violations"] if what in one]


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_bit_for_bit(seen: Seen, name: str) -> None:
    assert seen[f"resume {name}"]["is_same"]


@pytest.mark.parametrize("name", COMPARED)
def test_it_computes_what_a_cpu_computes(seen: Seen, name: str) -> None:
    """Up to rounding: attention and optimizer have other kernels there. Weights that stay would be a step off."""
    found = seen[f"{name} on the CPU"]
    assert found["code"] == 0
    assert found["off"] < 0.01 * found["step"]


def test_a_token_is_waited_for_once(seen: Seen) -> None:
    """By us; transformers looks at the mask at every token, too."""
    short, long = seen["grpo"], seen["grpo of longer answers"]
    more = STEPS * (MORE_TOKENS - TOKENS)
    assert 0 < waits(long, "models/") - waits(short, "models/") <= more
    everyones = [
        sum(waits(run, package=package) for package in ("rlhf_cli", "trl", "transformers")) for run in (short, long)
    ]
    assert everyones[1] - everyones[0] <= 2 * more


@pytest.mark.parametrize(("name", "rounds"), [("grpo", 2), ("grpo as TRL does it", 2), ("rloo", 2), ("ppo", 1)])
def test_rewards_come_to_the_host_in_one_copy_a_round(seen: Seen, name: str, rounds: int) -> None:
    """And PPO asks where a completion ends, to place its rewards on tokens."""
    assert waits(seen[name], "trainers/reward_mixin.py:_on_cpu") == rounds
    assert waits(seen[name], "rewards/") == (rounds if name == "ppo" else 0)


@pytest.mark.parametrize(
    ("name", "most"), [("grpo", 28), ("grpo as TRL does it", 9), ("rloo", 28), ("ppo", 44), ("dpo", 4), ("reward", 5)]
)
def test_waits_of_a_step(seen: Seen, name: str, most: int) -> None:
    """Ours, with a trial of packed rows, four tokens a row and a log every step."""
    assert 0 < waits(seen[name]) <= most * STEPS


def test_more_rewards_wait_no_more(seen: Seen) -> None:
    """Negative control: TRL's own means do, two a reward."""
    three, one = seen["grpo"], seen["grpo with one reward"]
    assert waits(three, "trainers/reward_mixin.py") == waits(one, "trainers/reward_mixin.py")
    own = "trainer/grpo_trainer.py:_generate_and_score_completions"
    assert waits(three, own, package="trl") > waits(one, own, package="trl")
