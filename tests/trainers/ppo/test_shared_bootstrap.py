"""The return of a truncated answer is bootstrapped by the critic that shares the policy's backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForTokenClassification

from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.ppo_by_hand import (
    DISCOUNTED,
    DROP,
    ENDINGS,
    GAMMA,
    LAMBDA,
    LIMIT,
    PAD,
    PLAIN,
    REWARDS,
    assert_rows,
    gae_of,
    total_of,
    unpadded,
    values_of,
)
from tests.support.watched_critic import SHARED, logged, spread_adapter, spread_head

WORDS = (
    *(*DROP, *PLAIN, *DISCOUNTED, *SHARED, "kl.where=none", f"trainer.args.max_completion_length={LIMIT}"),
    *("trainer.args.whiten_advantages=false", "critic.learning_rate=0.05", "trainer.args.max_steps=4"),
)

OF_FIVE = {"rel": 1e-4, "abs": 1e-4}
"""As tolerances.MODEL, of values that are about 5 and leave returns near 0: rounding is of the values' size."""


@pytest.fixture
def rounds(watch, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`rounds(*overrides)`: a short run whose critic is saved as it is at every rollout; (run, outputs, folders)."""
    (workplace / "mine.py").write_text(REWARDS)
    outputs: list[dict[str, Any]] = []
    saved: list[Path] = []
    set_advantages = PpoMixin._set_advantages

    def spied(self: Any, output: dict[str, Any]) -> Any:
        saved.append(workplace / f"critic-{len(saved)}")
        self.critic.save(saved[-1])
        shares = set_advantages(self, output)
        outputs.append({name: value.clone() for name, value in output.items()})
        return shares

    monkeypatch.setattr(PpoMixin, "_set_advantages", spied)

    def start(seen: Any) -> None:
        spread_head(seen)
        spread_adapter(seen)
        seen.trainer.eos_token_ids = seen.trainer.generation_config.eos_token_id = ENDINGS

    def run(*overrides: str) -> Any:
        return watch(*WORDS, *overrides, on=start), outputs, saved

    return run


def plain_critic(folder: Path) -> Any:
    """What PEFT makes of the saved critic, merged into a model of its own, in float64 but for Llama's norms."""
    loaded = AutoPeftModelForTokenClassification.from_pretrained(folder, num_labels=1)
    return loaded.merge_and_unload().double().eval()


def is_cut(completion: list[int]) -> bool:
    return len(completion) == LIMIT and completion[-1] not in (*ENDINGS, PAD)


@pytest.mark.parametrize("mode", ["replace", "add"])
def test_the_return_of_a_cut_row_is_that_by_hand(rounds, mode: str) -> None:
    """Of a row of T tokens with values V_1..V_{T+1}, V_{T+1} that of the state after its last token, in both rounds:

        delta_t = r_t + gamma V_{t+1} - V_t,  A_t = sum_l (gamma lambda)^l delta_{t+l},  R_t = A_t + V_t,

    r_T the row's score, but 0 in a cut row under `replace`, and gamma V_{T+1} in the last delta of a cut row alone.
    The values are those of the saved critic in a plain model: adapter and head as they were at that rollout.
    """
    seen, outputs, saved = rounds("truncation=bootstrap", f"truncation.mode={mode}")
    assert len(outputs) == 2  # two rounds, and the critic has learned between them
    added: list[list[float]] = []
    for output, folder in zip(outputs, saved, strict=True):
        critic, expected, by_round = plain_critic(folder), [], []
        for prompt, completion in unpadded(output):
            with torch.no_grad():
                values = values_of(critic, prompt, completion).tolist()
            goes_on = is_cut(completion)
            last = values[-1] if goes_on else 0.0
            rewards = [0.0] * len(completion)
            rewards[-1] = 0.0 if goes_on and mode == "replace" else total_of(completion)
            advantages = gae_of(rewards, values[:-1], last, GAMMA, LAMBDA)
            expected.append([a + v for a, v in zip(advantages, values, strict=False)])
            by_round += [GAMMA * last] * goes_on
        assert_rows(output["returns"], expected, OF_FIVE)
        assert 0 < len(by_round) < len(expected)
        added.append(by_round)
    means = [sum(values) / len(values) for values in added]
    assert logged(seen.folder, "rewards/truncation/bootstrap_value") == pytest.approx(means, **OF_FIVE)
    # Control: these values are not 0, are not those of the body without the adapter, and have moved in between.
    assert min(abs(mean) for mean in means) > 0.01
    first, second = (plain_critic(folder) for folder in saved)
    row = next(iter(unpadded(outputs[0])))
    with torch.no_grad():
        assert (values_of(first, *row) - values_of(second, *row)).abs().max() > 0.01
