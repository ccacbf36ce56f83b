"""At the end of a PPO run the best policy comes back together with the critic that went with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin


class LoadsTheBest:
    """What TRL's trainer does at the end, as a note."""

    loaded: list[str]

    def _load_best_model(self) -> None:
        self.loaded.append("policy")


class Alone(PpoMixin, LoadsTheBest):  # type: ignore[misc]
    def __init__(self, best: Path) -> None:
        self.loaded = []
        self.state: Any = SimpleNamespace(best_model_checkpoint=str(best))
        self.critic: Any = SimpleNamespace(load_state=lambda folder: self.loaded.append(str(folder)))


def test_policy_and_critic_are_of_one_checkpoint(tmp_path: Path) -> None:
    trainer = Alone(tmp_path / "checkpoint-3")
    trainer._load_best_model()
    assert trainer.loaded == ["policy", str(tmp_path / "checkpoint-3" / "critic")]
