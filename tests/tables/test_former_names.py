"""Former names and names of other tools are not fields of today's TRL, and their replacements exist."""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import Any

import pytest

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.experiment import field_at
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.tables.former_names import FORMER_NAMES, VALUE_SYNONYMS
from rlhf_cli.tables.trl_trainers import TRAINERS

ARGS = "trainer.args."


@pytest.fixture(scope="module")
def todays() -> set[str]:
    """Every field of every config class that is run here, as TRL itself says when it is imported."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    configs: list[Any] = [getattr(importlib.import_module(row.module), row.config_class) for row in TRAINERS.values()]
    return {field.name for config in configs for field in dataclasses.fields(config)}


def test_no_row_names_a_field_of_today(todays: set[str]) -> None:
    of_distillation = {"wandb_log_unique_prompts", "max_prompt_length", "max_new_tokens"}  # former names elsewhere
    assert set(FORMER_NAMES) & (todays | set(PpoArgs.model_fields)) == of_distillation
    assert len(FORMER_NAMES) > 100


def test_negative_control_todays_fields_are_noticed(todays: set[str]) -> None:
    assert {"learning_rate", "loss_type", "max_length"} <= todays


def test_replacements_exist(todays: set[str]) -> None:
    for row in FORMER_NAMES.values():
        answers = [*row.today.split(","), *(row.with_critic or "").split(",")]
        for answer in filter(None, answers):
            key, _, value = answer.partition("=")
            if key.startswith(ARGS):
                name = key.removeprefix(ARGS).partition(".")[0]
                assert name in todays | set(PpoArgs.model_fields), row
                assert name not in RESERVED_ARGS, row
            elif key in groups():
                assert value in groups()[key], row
            else:
                parts = key.split(".")
                assert field_at(parts) is not None or parts[-2] == "rename", row


def test_each_name_has_one_row() -> None:
    """A second row of a name would hide the first without a word."""
    source = importlib.import_module("rlhf_cli.tables.former_names")
    names = [name for by_today in source._TODAY.values() for several in by_today.values() for name in several.split()]
    assert len(names) == len(FORMER_NAMES)


def test_synonyms_are_not_values_but_their_meanings_are() -> None:
    for name, spoken in VALUE_SYNONYMS.items():
        if name in groups():
            assert not set(spoken) & set(groups()[name])
            assert set(spoken.values()) <= set(groups()[name])
