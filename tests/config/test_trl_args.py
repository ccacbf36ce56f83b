"""Which values fit a TRL argument, from the annotation and the docstring alone."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.config.trl_args import TrlField, config_fields, expected_instead

GRPO = config_fields("GRPOConfig")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 1e-5),
        ("learning_rate", 1),  # an integer is a number
        ("max_steps", 3),
        ("gradient_checkpointing", True),
        ("loss_type", "dr_grpo"),
        ("scale_rewards", "batch"),
        ("scale_rewards", False),  # annotated str, documented "`str` or `bool`"
        ("lr_scheduler_type", "cosine"),
        ("optim", "adamw_torch"),
        ("save_strategy", "best"),
        ("reward_weights", [1.0, 2]),
        ("optim_target_modules", ["a", "b"]),
        ("optim_target_modules", "all-linear"),
        ("include_for_metrics", ["loss"]),
        ("min_p", None),
        ("generation_kwargs", {"eos_token_id": 2}),
        ("model_init_kwargs", {"anything": [1, {"goes": True}]}),
        ("pad_to_multiple_of", 8),
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
        ("learning_rate", None, "a number, such as 1e-06, the default"),
        ("max_steps", 1.5, "a whole number, such as -1, the default"),
        ("max_steps", "3", "a whole number, such as -1, the default"),
        ("gradient_checkpointing", 1, "bool"),
        ("gradient_checkpointing", "yes", "bool"),
        ("loss_type", "grpoo", "one of grpo, dr_grpo, dapo, bnpo, cispo, sapo, luspo, vespo"),
        ("loss_type", "xyzzy", "one of grpo, dr_grpo, dapo, bnpo, cispo, sapo, luspo, vespo"),
        ("loss_type", 3, "str"),
        ("scale_rewards", "gruop", "one of group, batch, none"),
        ("eval_strategy", "epochs", "one of no, steps, epoch"),
        ("vllm_mode", "colocated", "one of server, colocate"),
        ("reward_weights", ["one"], "list[float] | None"),
        ("include_for_metrics", ["los"], "values among inputs, loss"),
        ("generation_kwargs", 3, "dict | str | None"),
    ],
)
def test_it_does_not(name: str, value: Any, expected: str) -> None:
    assert expected_instead(GRPO[name], value) == expected


def test_a_scalar_where_trl_takes_a_list() -> None:
    assert expected_instead(TrlField("f", "list[float]", None, ()), 0.1) is None
    assert expected_instead(TrlField("f", "list[float]", None, ()), [0.1]) is None
    assert expected_instead(TrlField("f", "list[float]", None, ()), "a") == "list[float]"


def test_the_values_of_an_enum_are_read_from_transformers() -> None:
    assert GRPO["lr_scheduler_type"].choices[:2] == ("linear", "cosine")
    assert GRPO["save_strategy"].choices == ("no", "steps", "epoch", "best")
    assert expected_instead(GRPO["lr_scheduler_type"], "cosin") == "one of " + ", ".join(
        GRPO["lr_scheduler_type"].choices
    )
