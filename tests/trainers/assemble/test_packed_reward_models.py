"""A reward model is packed as `trainer.passes` says, in training as in `rlhf score`: seen in what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaModel

from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.running_reward import RunningReward
from rlhf_cli.trainers.assemble.stack_building import reward_stack, training_stack
from tests.support.random_reward_model import save_random_reward_model
from tests.support.tolerances import MODEL

PROMPTS = ["which of these?"] * 4 + ["another"]
COMPLETIONS = [" this", " that one here", " one", "", " a"]
WIDEST = len("which of these? that one here")
NUM_TOKENS = sum(map(len, PROMPTS + COMPLETIONS))
"""A byte is a token."""


@pytest.fixture
def given() -> Iterator[list[tuple[int, int]]]:
    """The (rows, places) of every call of a Llama."""
    seen: list[tuple[int, int]] = []

    def noted(module: Any, _: object, output: Any) -> None:
        if isinstance(module, LlamaModel):
            rows, places, _ = output.last_hidden_state.shape
            seen.append((rows, places))

    handle = torch.nn.modules.module.register_module_forward_hook(noted)
    yield seen
    handle.remove()


def in_score(words: list[str], _: Path) -> RewardStack:
    return reward_stack(prepare(words, keep_run_names=True).experiment, device="cpu")


def in_training(words: list[str], place: Path) -> RewardStack:
    experiment, run = prepare(words, keep_run_names=True).experiment, RunFolder(place / "run")
    return training_stack(experiment, device="cpu", run=run, rank=0, running=RunningReward(place, 0))


@pytest.mark.parametrize("build", [in_score, in_training])
def test_packed_where_passes_allow_it(
    place: Path, given: list[tuple[int, int]], build: Callable[[list[str], Path], RewardStack]
) -> None:
    """The same scores of all; one flat row of fewer places than there are tokens, for prompts go once, or all rows."""
    save_random_reward_model(place / "rm")
    words = ["exp=quickstart", "launch=cpu", "~rewards.correct", "~rewards.format", "~rewards.brevity"]
    words += ["+rewards.rm.model=rm", "+rewards.rm.batch_size=8", "+rewards.rm.with_eos=false"]
    scores = {}
    for passes in ("auto", "packed", "trimmed", "plain"):
        (component,) = build([*words, f"trainer.passes={passes}"], place).components
        scores[passes] = component.score(prompts=PROMPTS, completions=COMPLETIONS)
        if passes in ("auto", "packed"):
            assert given[-1][0] == 1
            assert WIDEST < given[-1][1] < NUM_TOKENS
            assert len(given) == 3  # and the trial, of both ways
        else:
            assert given == [(len(PROMPTS), WIDEST)]
        assert scores[passes] == pytest.approx(scores["auto"], **MODEL)
        given.clear()
