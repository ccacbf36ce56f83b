"""Real runs, kept small: a model of a few thousand weights without a warm start, three steps, in this very process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from tests.support import small_reward_runs
from tests.support.small_runs import PPO_SMALL, SMALL


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def workplace(
    tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """An empty current folder, as a newcomer has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHF_CACHE", str(model_cache))
    if not {"capsys", "capfd"} & set(request.fixturenames):
        without_panels(monkeypatch)
    return tmp_path


def without_panels(patch: pytest.MonkeyPatch) -> None:
    """What is shown before and after a run is a seventh of a small one: a test that reads no output does without."""
    for module in ("one_run", "resuming"):
        patch.setattr(f"rlhf_cli.launch.{module}.show_start", lambda *args, **named: None)
    patch.setattr("rlhf_cli.display.run_tables.show_end", lambda *args, **named: None)


@pytest.fixture
def train(workplace: Path):
    """`train(*overrides)` runs the small experiment under run.name=one; returns (exit code, run folder)."""

    def run(*overrides: str, name: str = "one") -> tuple[int, RunFolder]:
        code = main(["train", *SMALL, f"run.name={name}", *overrides])
        return code, RunFolder(workplace / "runs" / "quickstart" / name)

    return run


@pytest.fixture
def train_ppo(train) -> Callable[..., tuple[int, RunFolder]]:
    """`train_ppo(*overrides)` as `train`, with PPO."""
    return partial(train, *PPO_SMALL)


@pytest.fixture
def before_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
    """`before_training(function)`: the function is given every trainer, assembled, before its first step."""
    import rlhf_cli.trainers.assemble.trainer

    functions: list[Callable[[Any], None]] = []
    assemble = rlhf_cli.trainers.assemble.trainer.assemble

    def assembled(*args: Any, **named: Any) -> Any:
        trainer = assemble(*args, **named)
        for function in functions:
            function(trainer)
        return trainer

    monkeypatch.setattr(rlhf_cli.trainers.assemble.trainer, "assemble", assembled)
    return functions.append


@pytest.fixture
def says(before_training) -> Callable[..., None]:
    """`says(*completions)`: the policy gives these lists of token ids in turn, for any prompt."""

    def set_completions(*completions: list[int]) -> None:
        def set_on(trainer: Any) -> None:
            def generate(prompt_ids: list[Any], *args: Any, **named: Any) -> Any:
                ids = [list(completions[row % len(completions)]) for row in range(len(prompt_ids))]
                return ids if type(trainer).__name__ == "RLOOTrainer" else (ids, None)

            trainer._generate_single_turn = generate

        before_training(set_on)

    return set_completions


@pytest.fixture
def learn(workplace: Path) -> Callable[..., tuple[int, RunFolder]]:
    """`learn(*overrides)` trains a small reward model under run.name=one; returns (exit code, run folder).

    The data is the embedded one where the overrides name none.
    """

    def run(*overrides: str, name: str = "one") -> tuple[int, RunFolder]:
        data = [] if "data=file" in overrides else small_reward_runs.WORLD
        code = main(["train", *small_reward_runs.SMALL, *data, f"run.name={name}", *overrides])
        return code, RunFolder(workplace / "runs" / "reward" / name)

    return run
