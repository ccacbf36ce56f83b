"""Packed and trimmed passes give TRL's gradients: compared with TRL's own trainer on the same rollouts.

The distance is the norm of the difference over the norm of TRL's gradient. Everything computes in float64, TRL's head
included, so a wrong row, weight or position shows: it is at 1e-2 and more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from rlhf_cli.models.packing import row_attention
from rlhf_cli.trainers.pass_mixin import PassMixin
from tests.support.tolerances import EXACT, distance
from tests.trainers.passes.same_rollouts import EOS, PAD, VOCABULARY, policy, trained

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")]
"""TRL switches checkpointing off by names that transformers no longer likes."""

FAR = 1e-3
IN_FLOAT64: dict[str, Any] = {"dtype": torch.float64}
BOTH = pytest.mark.parametrize("passes", ["packed", pytest.param("trimmed", marks=pytest.mark.slow)])
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
"""TRL 1.16's; tests/trainers/test_contract.py holds the table that they are of."""


def worst(folder: Path, passes: Any, **settings: Any) -> float:
    expected, _ = trained(folder / "trl", None, **settings)
    found, ours = trained(folder / "ours", passes, **settings)
    assert ours.passes.mode == passes, ours.passes.why
    assert len(found) == len(expected)
    return max(distance(one, other) for one, other in zip(found, expected, strict=True))


@BOTH
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(tmp_path: Path, loss: str, passes: str) -> None:
    """Two steps from a round and two epochs of it with a KL penalty: ratios, clipping and the reference count."""
    several = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 4}
    assert worst(tmp_path, passes, loss_type=loss, beta=0.1, **several, **IN_FLOAT64) < EXACT


@BOTH
@pytest.mark.parametrize(
    "settings",
    [
        {"trainer": "RLOO", "beta": 0.1, "num_iterations": 2, "max_steps": 2},
        {"importance_sampling_level": "sequence", "num_iterations": 2, "max_steps": 2},
        {"temperature": 0.7},
        {"mask_truncated_completions": True},
        {"off_policy_mask_threshold": 0.1, "num_iterations": 2, "max_steps": 2},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"lora": LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"), "beta": 0.1},
        {"gradient_accumulation_steps": 3, "steps_per_generation": 2, "max_steps": 2},
        {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1},
    ],
    ids=lambda settings: "-".join(f"{name}={value}"[:40] for name, value in settings.items()),
)
def test_settings(tmp_path: Path, settings: dict[str, Any], passes: str) -> None:
    assert worst(tmp_path, passes, **settings, **IN_FLOAT64) < EXACT


@pytest.mark.parametrize("passes", ["packed", "trimmed"])
def test_bfloat16_to_its_rounding(tmp_path: Path, passes: str) -> None:
    """Both are as far from the gradient in float64 as bfloat16 makes them; ours not a quarter farther."""
    model = policy(initializer_range=0.05)
    exact, _ = trained(tmp_path / "exact", None, model=model, **IN_FLOAT64)
    theirs, _ = trained(tmp_path / "theirs", None, model=model, bf16=True)
    ours, made = trained(tmp_path / "ours", passes, model=model, bf16=True)  # type: ignore[arg-type]
    assert made.passes.mode == passes
    assert distance(theirs[0], exact[0]) > 1e-4
    assert distance(ours[0], exact[0]) < 1.25 * distance(theirs[0], exact[0])


class ByToken:
    """Every second token of an answer was written by a tool, and every one has an advantage of its own."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        shape = output["completion_ids"].shape
        by_a_tool = (torch.arange(shape[1]) % 2 == 0).int().expand(shape)
        advantages = torch.linspace(-1, 1, shape.numel(), dtype=torch.float64).view(shape)
        return output | {"tool_mask": by_a_tool, "advantages": advantages}


@pytest.mark.parametrize("passes", ["packed", "trimmed"])
def test_masks_and_advantages_of_tokens(tmp_path: Path, passes: str) -> None:
    assert worst(tmp_path, passes, mixed=(ByToken,), beta=0.1, **IN_FLOAT64) < EXACT


def test_negative_control_a_prompt_that_is_not_shared_with_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = row_attention._cut

    def cut(segments: Any, *qkv: Tensor) -> Any:
        for (query, *others), _mask in whole(segments, *qkv):
            key, value = (one[:, :, -query.shape[2] :] for one in others)
            yield (query, key, value), None

    monkeypatch.setattr(row_attention, "_cut", cut)
    monkeypatch.setattr("rlhf_cli.trainers.pass_mixin.PassMixin._has_tried", True)
    assert worst(tmp_path, "packed", **IN_FLOAT64) > FAR


def test_learned_positions_are_trimmed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": None}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, **ids, **drops))
    expected, _ = trained(tmp_path / "trl", None, model=model, **IN_FLOAT64)
    found, ours = trained(tmp_path / "ours", "auto", model=model, **IN_FLOAT64)
    assert ours.passes.describe() == "trimmed: its positions are learned, not rotary"
    assert distance(found[0], expected[0]) < EXACT


# Rows whose advantages are all 0 have no gradient: they are computed without one, and only where that is so.


def half_alike(prompts: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
    """All answers to prompts with an even number of words get the same reward."""
    lengths = [len(prompt.split()) for prompt in prompts]
    return [1.0 if n % 2 == 0 else float(len(ids)) for n, ids in zip(lengths, completion_ids, strict=True)]


def all_alike(completion_ids: list[list[int]], **_: object) -> list[float]:
    """No group has a deviation."""
    return [1.0] * len(completion_ids)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> dict[bool, int]:
    """Completion tokens that went through the policy with a gradient (True) and without."""
    counted = {True: 0, False: 0}
    real: Any = PassMixin._scored

    def counting(self: PassMixin, model: Any, ids: Any, mask: Any, num_completion: int, *others: Any) -> Any:
        counted[torch.is_grad_enabled()] += int(mask[:, -num_completion:].sum())
        return real(self, model, ids, mask, num_completion, *others)

    monkeypatch.setattr(PassMixin, "_scored", counting)
    return counted


@pytest.mark.parametrize("passes", ["packed", "trimmed"])
@pytest.mark.parametrize("settings", [{}, {"trainer": "RLOO"}], ids=["GRPO", "RLOO"])
def test_the_gradient_is_trl_s(tmp_path: Path, tokens: dict[bool, int], passes: Any, settings: dict[str, Any]) -> None:
    expected, _ = trained(tmp_path / "trl", None, reward=half_alike, **settings, **IN_FLOAT64)
    tokens.update({True: 0, False: 0})
    found, ours = trained(tmp_path / "ours", passes, reward=half_alike, **settings, **IN_FLOAT64)
    assert distance(found[0], expected[0]) < EXACT
    (log,) = [log for log in ours.state.log_history if "passes/zero_advantage_share" in log]
    assert 0 < log["passes/zero_advantage_share"] < 1
    assert tokens[True] < int(log["num_tokens"])
    assert tokens[False] > 0


def test_where_nothing_is_to_be_learned_there_is_a_gradient_of_0(tmp_path: Path, tokens: dict[bool, int]) -> None:
    """Of every micro-batch the shortest row goes backward: DDP waits for every rank's."""
    found, _ = trained(tmp_path, "packed", reward=all_alike, **IN_FLOAT64)
    assert found[0].abs().max() == 0
    assert 0 < tokens[True] < tokens[False]


@pytest.mark.parametrize(
    "settings",
    [{"beta": 0.1, "num_iterations": 2, "max_steps": 2}, {"entropy_coef": 0.1}, {"top_entropy_quantile": 0.5}],
    ids=str,
)
def test_rows_that_a_penalty_or_a_bonus_acts_on_have_theirs(
    tmp_path: Path, tokens: dict[bool, int], settings: dict[str, Any]
) -> None:
    expected, _ = trained(tmp_path / "trl", None, reward=half_alike, **settings, **IN_FLOAT64)
    tokens.update({True: 0, False: 0})
    found, ours = trained(tmp_path / "ours", "packed", reward=half_alike, **settings, **IN_FLOAT64)
    assert distance(found[-1], expected[-1]) < EXACT
    steps = settings.get("max_steps", 1)
    assert tokens[True] == steps * sum(int(batch["completion_mask"].sum()) for batch in ours._buffered_inputs)
