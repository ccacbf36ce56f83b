"""A critic of its own checkpoints its activations where the policy does, and as the policy does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.trainers.ppo import critic as critic_module


class Model:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def activation_checkpointing_enable(self, **options: Any) -> None:
        self.asked.append(options)


@pytest.mark.parametrize(
    ("is_on", "given", "asked"),
    [
        (False, {"offload": True}, []),
        (True, None, [{"every_n_layers": 1, "offload": False, "activation_checkpointing_kwargs": None}]),
        (
            True,
            {"every_n_layers": 2, "offload": True, "use_reentrant": False},
            [{"every_n_layers": 2, "offload": True, "activation_checkpointing_kwargs": {"use_reentrant": False}}],
        ),
    ],
)
def test_as_the_policy(monkeypatch: pytest.MonkeyPatch, is_on: bool, given: Any, asked: list[dict[str, Any]]) -> None:
    kind = critic_module.SeparateCritic
    prepared: list[int] = []
    monkeypatch.setattr(kind.__mro__[1], "prepare", lambda self, trainer, steps: prepared.append(steps))
    critic = object.__new__(kind)
    critic.model = Model()  # type: ignore[assignment]
    arguments = SimpleNamespace(activation_checkpointing=is_on, activation_checkpointing_kwargs=given)
    before = None if given is None else dict(given)
    critic.prepare(SimpleNamespace(args=arguments), 7)  # type: ignore[arg-type]
    assert critic.model.asked == asked
    assert prepared == [7]
    assert given == before  # the policy reads them, too
