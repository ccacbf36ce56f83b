"""Translate the section `rewards` into components of a stack."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.config.schema import reward_sections as schema
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Component, ScoreGate


@dataclass
class StateOfTrainer:
    """The state that a reward is given outside of training: transformers', which is imported for more than the step."""

    global_step: int
    max_steps: int

    def __getattr__(self, name: str) -> object:
        from transformers import TrainerState

        return getattr(TrainerState(), name)


_BEFORE = r"(?<![^\s'\"(=,])"


def relative_to_cwd(text: str) -> str:
    """Return a text in which paths below the working folder are relative to it; other paths are unchanged."""
    here = str(Path.cwd())
    return text if here == os.sep else re.sub(_BEFORE + re.escape(here + os.sep), "", text)


A_CALL_S, A_ROW_S = 900.0, 60.0
"""Default time limits in seconds: for a call on a batch, and for an isolated call on a row."""
KEEP_TIME = ("rlhf_cli.rewards.server:", "rlhf_cli.rewards.judge:", "rlhf_cli.rewards.code:")
"""Ready-made functions with their own `timeout_s` per row: the time of a batch depends on its size."""


def component(name: str, reward: schema.Reward, score: Callable[..., object]) -> Component:
    """Return a component of the stack: `score` with the experiment's rules for it."""
    weight = reward.weight
    assert not isinstance(reward.offset, str), "resolve_runs made a number of it"
    return Component(
        name=name,
        score=score,
        weight=weight if isinstance(weight, float) else Schedule(**weight.model_dump()),
        gates=tuple(map(_gate, reward.gates)),
        offset=reward.offset,
        clip=reward.clip,
        normalize=reward.normalize,
        on_error=reward.on_error,
        # An isolated function has its own limit per row, and is killed when it exceeds it.
        timeout_s=None if reward.isolate else timeout_of(reward),
        eager=reward.eager,
        spread=reward.spread,
    )


def timeout_of(reward: schema.Reward) -> float | None:
    """Return how long a call may take in seconds (per row if it is isolated); None for no limit."""
    if reward.timeout_s != "auto":
        return reward.timeout_s if isinstance(reward.timeout_s, float) else None
    if reward.isolate:
        return A_ROW_S
    return None if reward.fn is None or reward.fn.startswith(KEEP_TIME) else A_CALL_S


def describe_scorer(reward: schema.Reward, *, is_chat: bool) -> str:
    """Describe the scorer for the start panel: a function, or a reward model and whether its texts end with eos.

    `is_chat`: it scores conversations. Neither these nor texts with eos tell an answer that was cut off.
    """
    if reward.model is None:
        relative = relative_to_cwd(str(reward.fn))
        return relative if relative == reward.fn else f".{os.sep}{relative}"  # as ./rewards.py:short
    from rlhf_cli.runs.text_endings import trained_with_eos  # only a reward model ends texts

    text, was = relative_to_cwd(f"reward model {reward.model}"), trained_with_eos(reward.model)
    if is_chat:
        return f"{text}, its chat template ends every answer, cut off or not"
    ends = (was is True) if reward.with_eos == "auto" else reward.with_eos
    unlike = ", unlike in its training" if was not in (None, ends) else ""
    ending = "with eos, cut off or not" if ends else "without eos"
    return text + (f", texts end {ending}{unlike}" if ends or unlike else "")


def _gate(gate: schema.Gate) -> ScoreGate:
    low, high = float("-inf"), float("inf")
    if gate.between is not None:
        low, high = gate.between
    elif gate.equals is not None:
        low = high = gate.equals
    low = gate.at_least if gate.at_least is not None else low
    high = gate.at_most if gate.at_most is not None else high
    return ScoreGate(gate.by, low, high, 0.0 if gate.otherwise == "zero" else gate.otherwise)
