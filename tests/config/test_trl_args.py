"""Which values fit a TRL argument, from the annotation and the docstring alone."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.config.trl_args import config_fields, expected_instead

GRPO = config_fields("GRPOConfig")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 1e-5),
        ("learning_rate", 1),  # an integer is a number
        ("loss_type", "dr_grpo"),
        ("scale_rewards", "batch"),
        ("scale_rewards", False),  # annotated str, documented "`str` or `bool`"
        ("lr_scheduler_type", "cosine"),
        ("reward_weights", [1.0, 2]),
        ("optim_target_modules", ["a", "b"]),
        ("optim_target_modules", "all-linear"),
        ("min_p", None),
        ("generation_kwargs", {"eos_token_id": 2}),
        ("model_init_kwargs", {"anything": [1, {"goes": True}]}),
        ("pad_to_multiple_of", "auto"),
    ],
)
def test_it_fits(name: str, value: Any) -> None:
    assert expected_instead(GRPO[name], value) is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", "1e-5", "a number, such as 1e-06, the default"),
        ("learning_rate", True, "a number, such as 1e-06, the default"),
        ("max_steps", 1.5, "a whole number, such as -1, the default"),
        ("gradient_checkpointing", 1, "bool"),
        ("loss_type", "grpoo", "one of grpo, dr_grpo, dapo, bnpo, cispo, sapo, luspo, vespo"),
        ("loss_type", 3, "str"),
        ("scale_rewards", "gruop", "one of group, batch, none"),
        ("eval_strategy", "epochs", "one of no, steps, epoch"),
        ("reward_weights", ["one"], "list[float] | None"),
        ("include_for_metrics", ["los"], "values among inputs, loss"),
        ("generation_kwargs", 3, "dict | str | None"),
    ],
)
def test_it_does_not(name: str, value: Any, expected: str) -> None:
    assert expected_instead(GRPO[name], value) == expected
