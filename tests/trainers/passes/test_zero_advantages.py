"""Rows whose advantages are all 0 have no gradient: they are computed without one, and only where that is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.trainers.forward_pass import Forward
from tests.trainers.passes.same_rollouts import distance, trained

EXACT: dict[str, Any] = {"dtype": torch.float64}


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
    for name in ("packed", "trimmed"):
        real = getattr(Forward, name)

        def counting(self: Forward, ids: Any, mask: Any, num_completion: int, *, real: Any = real, **named: Any) -> Any:
            counted[torch.is_grad_enabled()] += int(mask[:, -num_completion:].sum())
            return real(self, ids, mask, num_completion, **named)

        monkeypatch.setattr(Forward, name, counting)
    return counted


@pytest.mark.parametrize("passes", ["packed", "trimmed"])
@pytest.mark.parametrize("settings", [{}, {"trainer": "RLOO"}], ids=["GRPO", "RLOO"])
def test_the_gradient_is_trl_s(tmp_path: Path, tokens: dict[bool, int], passes: Any, settings: dict[str, Any]) -> None:
    expected, _ = trained(tmp_path / "trl", None, reward=half_alike, **settings, **EXACT)
    tokens.update({True: 0, False: 0})
    found, ours = trained(tmp_path / "ours", passes, reward=half_alike, **settings, **EXACT)
    limit = 5e-6 if settings else 1e-6  # RLOO's ratio is that of a whole row, summed in the float32 of TRL's head
    assert distance(found[0], expected[0]) < limit
    (log,) = [log for log in ours.state.log_history if "passes/zero_advantage_share" in log]
    assert 0 < log["passes/zero_advantage_share"] < 1
    assert tokens[True] < int(log["num_tokens"])
    assert tokens[False] > 0


def test_where_nothing_is_to_be_learned_there_is_a_gradient_of_0(tmp_path: Path, tokens: dict[bool, int]) -> None:
    """Of every micro-batch the shortest row goes backward: DDP waits for every rank's."""
    found, _ = trained(tmp_path, "packed", reward=all_alike, **EXACT)
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
    expected, _ = trained(tmp_path / "trl", None, reward=half_alike, **settings, **EXACT)
    tokens.update({True: 0, False: 0})
    found, ours = trained(tmp_path / "ours", "packed", reward=half_alike, **settings, **EXACT)
    assert distance(found[-1], expected[-1]) < 1e-6
    steps = settings.get("max_steps", 1)
    assert tokens[True] == steps * sum(int(batch["completion_mask"].sum()) for batch in ours._buffered_inputs)
