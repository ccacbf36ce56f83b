"""Small PPO runs that are watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.runs.run_status import read_status
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.ppo_by_hand import DISCOUNTED, DROP, ENDINGS, LIMIT, PLAIN, REWARDS, Rollouts, rows_of, stir
from tests.support.watched_critic import Watched


@pytest.fixture
def watch(train_ppo, before_training) -> Callable[..., Watched]:
    """`watch(*overrides)` runs the small PPO experiment and returns what was seen of it; `on` is given it at first."""
    found: list[Watched] = []
    starts: list[Callable[[Watched], None]] = []

    def begin(trainer: Any) -> None:
        found.append(Watched(trainer))
        for start in starts:
            start(found[-1])

    before_training(begin)

    def run(*overrides: str, name: str = "one", on: Callable[[Watched], None] | None = None) -> Watched:
        starts[:] = [on] if on else []
        code, folder = train_ppo(*overrides, name=name)
        assert code == 0
        assert read_status(folder).state == "finished"
        found[-1].folder = folder
        return found[-1]

    return run


@pytest.fixture
def prepared(workplace: Path, before_training) -> list[Any]:
    """Rewards in a file; a policy apart from its reference, a critic apart from 0, many endings. The trainers made."""
    (workplace / "mine.py").write_text(REWARDS)
    made: list[Any] = []

    def prepare(trainer: Any) -> None:
        made.append(trainer)
        stir(trainer.model, 0.05, seed=1)
        stir(trainer.critic.model, 0.3, seed=2)
        trainer.eos_token_ids = trainer.generation_config.eos_token_id = ENDINGS

    before_training(prepare)
    return made


@pytest.fixture
def rollouts(train_ppo, prepared, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rollouts]:
    """`rollouts(*overrides)`: a small PPO run, and what was in its rollouts."""
    seen = Rollouts()
    set_advantages = PpoMixin._set_advantages

    def spied(self: Any, output: dict[str, Any]) -> Any:
        rows = rows_of(self, output)
        shares = set_advantages(self, output)
        seen.rows.append(rows)
        seen.outputs.append({name: value.clone() for name, value in output.items()})
        seen.found.append(self._rollout)
        seen.settled.append(self._settled)
        return shares

    monkeypatch.setattr(PpoMixin, "_set_advantages", spied)

    def run(*overrides: str, rewards: tuple[str, ...] = PLAIN, name: str = "one") -> Rollouts:
        nonlocal seen
        seen = Rollouts()
        settings = (f"trainer.args.max_completion_length={LIMIT}", "trainer.args.max_steps=2")
        code, folder = train_ppo(*DROP, *rewards, *settings, *DISCOUNTED, *overrides, name=name)
        assert code == 0
        seen.folder, seen.trainer = folder, prepared[-1]
        return seen

    return run
