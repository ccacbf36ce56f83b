"""What a reward does to its process is put back: the training's numbers are those of a reward that leaves it alone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf_cli.cli import main
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.provenance import weights_hash

BATCH = {"prompts": ["p", "q"], "completions": ["a", "bb"]}


def scores(*functions: Callable[..., object], **batch: object) -> list[object]:
    components = [Component(f"r{place}", function) for place, function in enumerate(functions)]
    with contextlib.closing(RewardStack(components)) as stack:
        return [outcome.raw for outcome in stack.evaluate(**{**BATCH, **batch}).values()]


def numbers(completions: list[str], **columns: object) -> list[float]:
    return [float(len(one)) for one in completions]


def after(change: Callable[[], object]) -> Callable[..., list[float]]:
    def reward(completions: list[str], **columns: object) -> list[float]:
        change()
        return numbers(completions)

    return reward


def drawn() -> tuple[float, float, float]:
    """Return what the three streams give next."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def seed_all(seed: int) -> None:
    for one in (random.seed, np.random.seed, torch.manual_seed):
        one(seed)


@pytest.mark.parametrize(
    "change",
    [lambda: seed_all(0), torch.seed, drawn, lambda: random.setstate(random.Random(3).getstate())],
    ids=["seeds", "torch.seed", "draws", "state"],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_reward_does_not_change_the_trainings_random_numbers(change: Callable[[], object], fails: bool) -> None:
    seed_all(5)
    expected = drawn()
    seed_all(5)
    reward = after(lambda: (change(), 1 / 0) if fails else change())
    RewardStack([Component("mine", reward, on_error=0.0)]).evaluate(**BATCH)
    assert drawn() == expected


def test_random_numbers_of_a_reward_depend_on_the_batch_only() -> None:
    def noise(completions: list[str], **columns: object) -> list[float]:
        return [sum(drawn()) for _ in completions]

    first, second = scores(noise, noise)
    drawn()  # the training goes on
    assert [first, second] == scores(noise, noise)
    assert first != second
    assert first != scores(noise, completions=["a", "b"])[0]


HANDLER = signal.getsignal(signal.SIGTERM)
CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "torch's default_dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "torch's grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "torch's default_device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "torch's num_threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "torch's deterministic_debug_mode": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "torch's float32_matmul_precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "the working folder": (lambda: os.chdir("/"), os.getcwd),
    "the handler of SIGTERM": (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), lambda: HANDLER),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_put_back_before_the_next_reward(name: str) -> None:
    change, read = CHANGES[name]
    before, seen = read(), []

    def looks(completions: list[str], **columns: object) -> list[float]:
        seen.append(read())
        return numbers(completions)

    for _ in range(2):
        assert scores(after(change), looks) == [[1.0, 2.0], [1.0, 2.0]]
    assert seen == [before, before]
    assert read() == before
    assert signal.getsignal(signal.SIGTERM) == HANDLER


def test_an_async_reward_among_threads() -> None:
    async def sets(completions: list[str], **columns: object) -> list[float]:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        return numbers(completions)

    torch.manual_seed(5)
    state = torch.get_rng_state()
    scores(sets, sets, numbers)
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)


def test_a_child_that_a_reward_forks_does_not_train_on(tmp_path: Path) -> None:
    def forks(completions: list[str], **columns: object) -> list[float]:
        if (pid := os.fork()) != 0:
            (tmp_path / "ended").write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        return numbers(completions)

    owner = os.getpid()
    assert scores(forks) == [[1.0, 2.0]]
    if os.getpid() != owner:
        os._exit(77)
    assert (tmp_path / "ended").read_text() == "1"


MINE = """
import random

import numpy
import torch
{at_import}

def plain(completions, **columns):
    return [float(len(one) % 3) for one in completions]

def meddles(completions, **columns):
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
    torch.set_default_dtype(torch.float64), torch.set_grad_enabled(False)
    return plain(completions)
"""


@pytest.mark.whole
def test_a_reward_that_changes_the_process_does_not_change_the_weights(train, workplace: Path) -> None:
    hashes = {}
    for name, which, at_import in (
        ("plain", "plain", ""),
        ("meddles", "meddles", ""),
        ("imports", "plain", "torch.manual_seed(0), torch.set_default_dtype(torch.float64)"),
    ):
        (workplace / f"{name}.py").write_text(MINE.format(at_import=at_import))
        code, folder = train(f"++rewards.mine.fn=./{name}.py:{which}", f"run.name={name}")
        assert code == 0
        hashes[name] = weights_hash(folder.model)
    assert len(set(hashes.values())) == 1, hashes


def test_a_module_beside_a_reward_is_found_from_any_folder(train, workplace: Path, monkeypatch, tmp_path: Path) -> None:
    """Also where the folder in which the command is typed has a module of the same name."""
    (workplace / "beside_it.py").write_text("FACTOR = 1.0\n")
    text = "import beside_it\ndef mine(completions, **k): return [beside_it.FACTOR * len(one) for one in completions]\n"
    (workplace / "mine.py").write_text(text)
    code, folder = train("++rewards.mine={fn: './mine.py:mine', isolate: true}")
    assert code == 0
    run = str(folder.path.resolve())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "beside_it.py").write_text("raise SystemError('the wrong one')\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(workplace)])
    for name in [one for one in sys.modules if one == "beside_it" or one.startswith("rlhf_user_mine")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["resume", run, "trainer.args.max_steps=5", "--allow", "trainer.args.max_steps"]) == 0
