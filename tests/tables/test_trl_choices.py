"""The words that TRL's arguments take, against what the installed TRL and transformers compare and list."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from typing import Any

import transformers
import trl
from trl.trainer import dpo_trainer, grpo_trainer

from rlhf_cli.tables.trl_values import CHOICES


def listed(config: Any, name: str) -> set[str]:
    """The choices that a field of a config class has in its metadata."""
    return set(next(field for field in dataclasses.fields(config) if field.name == name).metadata["choices"])


def test_what_is_compared_when_a_loss_is_computed() -> None:
    source = inspect.getsource(grpo_trainer)
    level = set(re.findall(r'self\.importance_sampling_level == "(\w+)"', source))
    assert set(CHOICES["importance_sampling_level"]) == level == {"token", "sequence"}
    divergence = set(re.findall(r'self\.f_divergence_type == "(\w+)"', inspect.getsource(dpo_trainer)))
    assert set(CHOICES["f_divergence_type"]) == divergence


def test_what_is_listed_where_a_loss_is_unknown() -> None:
    source = re.sub(r'"\n\s*"', "", inspect.getsource(dpo_trainer))
    match = re.search(r"Unknown loss type: \{loss_type\}\. Should be one of (\[.*?\])", source)
    assert match is not None
    assert set(CHOICES["DPOConfig.loss_type"]) == set(ast.literal_eval(match[1]))


def test_what_stands_in_the_metadata_of_fields() -> None:
    arguments = transformers.TrainingArguments
    assert set(CHOICES["truncation_mode"]) == listed(trl.DPOConfig, "truncation_mode")
    assert set(CHOICES["truncation_mode"]) == listed(trl.SFTConfig, "truncation_mode")
    assert set(CHOICES["packing_strategy"]) - {"bfd-requeue"} == listed(trl.SFTConfig, "packing_strategy")
    assert "bfd-requeue" in inspect.getsource(trl.SFTConfig)  # deprecated, and still taken
    assert set(CHOICES["KTOConfig.train_sampling_strategy"]) == listed(trl.KTOConfig, "train_sampling_strategy")
    for name in ("dataloader_multiprocessing_context", "log_level", "log_level_replica"):
        assert set(CHOICES[name]) == listed(arguments, name)
    seen = re.search(r"Must be one of (\[[^\]]*\])", arguments.__doc__ or "")
    assert seen is not None
    assert set(CHOICES["include_num_input_tokens_seen"]) == set(ast.literal_eval(seen[1]))


def test_negative_control_a_word_more_is_seen() -> None:
    assert {*CHOICES["truncation_mode"], "keep_middle"} != listed(trl.DPOConfig, "truncation_mode")
