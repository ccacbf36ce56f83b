"""Our layer changes no numbers: TRL called by hand with the same arguments gives the same losses to the last digit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset

from rlhf_cli.data.worlds import generate
from rlhf_cli.rewards.length import length_ramp
from rlhf_cli.rewards.toy import digits_only, sums_correct
from rlhf_cli.runs.metrics_file import read_metrics, series
from tests.support.small_runs import starting_model
from tests.support.tolerances import ARITHMETIC

SHORT: dict[str, Any] = {
    **{"max_steps": 3, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True},
    **{"seed": 0, "use_cpu": True, "bf16": False, "model_init_kwargs": {"dtype": "auto"}},
}
COMPARED = ("loss", "grad_norm", "reward", "reward_std", "entropy")
MEANS = {"rewards/correct/mean": "rewards/sums_correct/mean", "rewards/brevity/mean": "rewards/length_ramp/mean"}
"""Our metric -> what TRL calls it after the function's own name. We take these means ourselves, in another order."""


def by_hand(trainer_name: str, output_dir: Path, weights: list[float], model: Path) -> list[dict[str, float]]:
    """What a user of plain TRL writes for the experiment of conftest.SMALL."""
    brevity = functools.partial(length_ramp, full=2, zero=16, unit="characters")
    config = getattr(trl, trainer_name.replace("Trainer", "Config"))(
        output_dir=str(output_dir),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=4,
        learning_rate=1e-3,
        gradient_checkpointing=False,
        reward_weights=weights,
        **SHORT,
    )
    trainer = getattr(trl, trainer_name)(
        model=str(model),
        reward_funcs=[sums_correct, digits_only, brevity],
        args=config,
        train_dataset=Dataset.from_list(generate("toy_sums", {"num_rows": 64, "max_value": 20}, seed=0)),
    )
    trainer.train()
    return [event for event in trainer.state.log_history if "loss" in event]


@pytest.mark.parametrize("trainer", ["grpo", "rloo"])
def test_losses_equal_a_plain_trl_script(train, tmp_path: Path, trainer: str) -> None:
    code, folder = train(f"trainer={trainer}", "trainer.passes=plain")
    assert code == 0
    events = [event for event in read_metrics(folder.metrics) if "loss" in event]
    plain = by_hand(f"{trainer.upper()}Trainer", tmp_path / "plain", [1.0, 0.5, 0.2], starting_model(folder))
    for name in COMPARED:
        assert series(events, name)[1] == [event[name] for event in plain], name
    for ours, theirs in MEANS.items():
        assert series(events, ours)[1] == pytest.approx([event[theirs] for event in plain], **ARITHMETIC), ours
    assert len(plain) == 3
    assert any(event["grad_norm"] > 0 for event in plain)
    # Negative control: with another weight the losses are others.
    other = by_hand(f"{trainer.upper()}Trainer", tmp_path / "other", [1.0, 0.5, 5.0], starting_model(folder))
    assert series(events, "grad_norm")[1] != [event["grad_norm"] for event in other]


@pytest.mark.parametrize(("learning_rate", "is_same"), [(0.01, True), (0.02, False)])
def test_a_reward_model_s_losses_equal_a_plain_trl_script(
    learn, tmp_path: Path, learning_rate: float, is_same: bool
) -> None:
    """With another learning rate they do not: the negative control."""
    code, folder = learn()
    assert code == 0
    rows = Dataset.from_list(generate("toy_preferences", {"num_rows": 40, "max_value": 20}, seed=0))
    config = trl.RewardConfig(output_dir=str(tmp_path / "plain"), learning_rate=learning_rate, **SHORT)
    trainer = trl.RewardTrainer(
        model=str(starting_model(folder)),
        args=config,
        train_dataset=rows.remove_columns(["score_chosen", "score_rejected"]),
    )
    trainer.train()
    plain = [event["loss"] for event in trainer.state.log_history if "loss" in event]
    ours = [event["loss"] for event in read_metrics(folder.metrics) if "loss" in event]
    assert (ours == plain) is is_same
