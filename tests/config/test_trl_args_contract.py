"""Contract: what config/trl_args.py reads from TRL's source is what TRL says of itself when it is imported."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
from functools import cache
from typing import Any

import pytest

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import RESERVED_ARGS, RESERVED_WITH_A_CRITIC
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES, TRAINERS, TrainerRow

NAMES = list(TRAINERS)


def real(row: TrainerRow, name: str) -> Any:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    return getattr(importlib.import_module(row.module), name)


@cache
def real_fields(name: str) -> dict[str, Any]:
    config = real(TRAINERS[name], TRAINERS[name].config_class)
    return {field.name: field for field in dataclasses.fields(config) if field.init}


@pytest.mark.parametrize("name", NAMES)
def test_the_fields_and_their_defaults(name: str) -> None:
    fields, real = trl_args.fields_of(name), real_fields(name)
    assert set(fields) == set(real)
    read = {field.name: field.default for field in fields.values() if field.default is not None}
    assert len(read) > 50
    assert {key: real[key].default for key in read} == read
    made = {key: one.default_factory for key, one in real.items() if one.default_factory is not dataclasses.MISSING}
    defaults = {key: made[key]() if key in made else one.default for key, one in real.items()}
    told = {key: trl_args.expected_instead(fields[key], default) for key, default in defaults.items()}
    assert {key: (defaults[key], expected) for key, expected in told.items() if expected is not None} == {}


@pytest.mark.parametrize("row", TRAINERS.values(), ids=lambda row: row.name)
def test_a_row_says_what_the_class_is(row: TrainerRow) -> None:
    trainer = real(row, row.name)
    parameters = set(inspect.signature(trainer).parameters)
    assert row.generates == ("reward_funcs" in parameters)
    prepares = hasattr(trainer, "_prepare_dataset") and row.name != "GKDTrainer"  # which sets skip_prepare_dataset
    assert (row.measured is not None) == prepares
    # What the assembler gives; GMPO hands what it does not name to GRPO.
    given = {"model", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config"}
    assert given <= parameters or "kwargs" in parameters


def test_what_plans_and_rules_read_is_there() -> None:
    """plan/batches.py and the rules ask for these; a renamed one would silently become None, and be refused no more."""
    for name in ("GRPOTrainer", "RLOOTrainer"):
        fields = trl_args.fields_of(name)
        for read in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "num_iterations"):
            assert isinstance(fields[read].default, int)
        assert {"generation_batch_size", "steps_per_generation", "max_steps", "num_train_epochs"} <= set(fields)
    fields = trl_args.fields_of("GRPOTrainer")
    assert set(POLICY_LOSSES) == set(fields["loss_type"].choices) > {"grpo", "bnpo", "dr_grpo", "dapo"}
    assert {"scale_rewards", "off_policy_mask_threshold", "use_bias_correction_kl"} <= set(fields)
    assert fields["importance_sampling_level"].default == "token"
    assert fields["gradient_checkpointing"].default is True
    assert isinstance(fields["max_completion_length"].default, int)


def test_what_we_own_is_a_field_of_some_trainer_and_ppos_arguments_of_none() -> None:
    """PPO's stand beside TRL's in `trainer.args`; a namesake in a later TRL would be taken from it without a word."""
    every = {field for name in NAMES for field in real_fields(name)}
    assert set(RESERVED_ARGS) - every <= {"push_to_hub_token"}  # gone from transformers 5, still a secret
    assert set(RESERVED_WITH_A_CRITIC) - set(RESERVED_ARGS) <= set(real_fields("GRPOTrainer"))
    assert not set(PpoArgs.model_fields) & every


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", "1e-5", "a number, such as 1e-06, the default"),
        ("max_steps", 1.5, "a whole number, such as -1, the default"),
        ("gradient_checkpointing", 1, "true or false"),
        ("loss_type", "grpoo", "one of grpo, dr_grpo, dapo, bnpo, cispo, sapo, luspo, vespo"),
        ("scale_rewards", "gruop", "one of group, batch, none"),
        ("reward_weights", ["one"], "list[float] or null"),
        ("include_for_metrics", ["los"], "values among inputs, loss"),
        ("generation_kwargs", 3, "dict or a text or null"),
        ("scale_rewards", False, None),  # annotated str, documented "`str` or `bool`"
        ("optim_target_modules", "all-linear", None),
        ("lr_scheduler_type", "cosine", None),
        ("model_init_kwargs", {"anything": [1, {"goes": True}]}, None),
    ],
)
def test_what_fits_and_what_is_expected_instead(name: str, value: Any, expected: str | None) -> None:
    assert trl_args.expected_instead(trl_args.fields_of("GRPOTrainer")[name], value) == expected


def test_the_keys_inside_an_argument_are_those_of_what_gets_them() -> None:
    """No key is refused that torch or transformers takes; `checkpoint` takes preserve_rng_state out of its **kwargs."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from torch.utils.checkpoint import checkpoint
    from transformers import optimization, trainer
    from transformers.trainer_pt_utils import AcceleratorConfig
    from trl.trainer import sft_trainer

    def parameters(function: Any) -> set[str]:
        given = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch", "function", "args", "kwargs"}
        return set(inspect.signature(function).parameters) - given - {"context_fn"}

    functions = {str(getattr(name, "value", name)): to for name, to in optimization.TYPE_TO_SCHEDULER_FUNCTION.items()}
    functions |= {"reduce_lr_on_plateau": ReduceLROnPlateau, "greedy": optimization.GreedyLR}
    taken = {name: parameters(function) for name, function in functions.items()}
    own = set(re.findall(r'gc_kwargs\.pop\("(\w+)"', inspect.getsource(trainer)))
    own |= set(re.findall(r'gradient_checkpointing_kwargs\.pop\("(\w+)"', inspect.getsource(sft_trainer)))
    taken["gradient_checkpointing_kwargs"] = parameters(checkpoint) | own | {"preserve_rng_state"}
    taken["accelerator_config"] = {field.name for field in dataclasses.fields(AcceleratorConfig)}
    taken["activation_checkpointing_kwargs"] = taken["gradient_checkpointing_kwargs"]
    own_lists = ("liger_kernel_config", "dataset_kwargs")  # a package that need not be installed; one key of TRL's
    assert {name: set(trl_args.INNER_FIELDS[name]) for name in trl_args.INNER_FIELDS.keys() - own_lists} == taken
