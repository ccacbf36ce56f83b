"""Load a reward model's checkpoint, full or an adapter, and reject a checkpoint without its head.

transformers and PEFT would initialise a random head and continue.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import NamedTuple

import torch
from peft import PeftConfig, PeftModel, load_peft_weights
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import find_adapter_config_file
from transformers.utils import logging as transformers_logging

from rlhf_cli.errors import ModelError
from rlhf_cli.models.model_folders import EXPECTED_REWARD_MODEL, check_reward_config, describe_reward_model


class LoadedRewardModel(NamedTuple):
    """A sequence-classification model with one label (possibly in a PEFT model) and its tokenizer."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase


class _Read(NamedTuple):
    model: PreTrainedModel
    made_up: set[str]  # weights missing from the files: random
    is_causal: bool  # the files hold a language model's head instead


def load_reward_model(path: str, *, dtype: str = "auto", trust_remote_code: bool = False) -> LoadedRewardModel:
    """Return the reward model in a folder or hub id, with its head loaded.

    `dtype` of the weights; `auto` is the checkpoint's own. Raise ModelError if it is not a reward model, lost its head,
    or cannot be loaded.
    """
    describe_reward_model(path, where=where_reward_model(path))
    torch_dtype = getattr(torch, dtype, "auto")
    with _loading(path):
        is_adapter = find_adapter_config_file(path) is not None
    if is_adapter:
        return _load_adapter(path, torch_dtype, trust_remote_code)
    with _loading(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    check_reward_config(config.architectures or [], config.num_labels, got=path, where=where_reward_model(path))
    read = _read(path, path, torch_dtype, trust_remote_code)
    if read.made_up:
        raise _lost(path, read.made_up, read, "it holds a causal language model" if read.is_causal else None)
    with _loading(path):
        return LoadedRewardModel(read.model, AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code))


def _load_adapter(path: str, dtype: torch.dtype | str, trust_remote_code: bool) -> LoadedRewardModel:
    with _loading(path):
        adapter = PeftConfig.from_pretrained(path)
        saved = load_peft_weights(path, device="cpu")
    base = adapter.base_model_name_or_path
    read = _read(path, base, dtype, trust_remote_code)
    made_up = {f"base_model.model.{key}": key for key in read.made_up}
    if lost := {key for name, key in made_up.items() if name not in saved}:
        raise _lost(path, lost, read, f"neither the adapter nor its base {base} has it")
    with _loading(path), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        model = PeftModel.from_pretrained(read.model, path, autocast_adapter_dtype=False)
    # PEFT does not load strictly. It may ignore a saved head that its config does not list, so check that the head is
    # in use.
    in_use = {name.replace(".modules_to_save.default", ""): weight for name, weight in model.named_parameters()}
    ignored = {
        name
        for name in saved.keys() & in_use.keys()
        if not torch.equal(in_use[name], saved[name].to(in_use[name].dtype))
    }
    if ignored:
        raise _lost(path, ignored, read, "they are in the adapter's file, and PEFT did not load them")
    with _loading(path):
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        except (OSError, ValueError):  # an adapter saved without one uses its base's
            tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=trust_remote_code)
    return LoadedRewardModel(model, tokenizer)


def _read(path: str, weights: str, dtype: torch.dtype | str, trust_remote_code: bool) -> _Read:
    # transformers would warn about a random head, which is either rejected below or provided by the adapter.
    with _loading(path), quiet_transformers():
        model, info = AutoModelForSequenceClassification.from_pretrained(
            weights,
            num_labels=1,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    made_up = set(info["missing_keys"]) | {key for key, *_ in info["mismatched_keys"]}
    return _Read(model, made_up, any(key.startswith("lm_head") for key in info["unexpected_keys"]))


def _lost(path: str, keys: set[str], read: _Read, why: str | None) -> ModelError:
    is_head = any(not key.startswith(f"{read.model.base_model_prefix}.") for key in keys)
    return ModelError(
        "the reward model lost its head: it would score with random weights"
        if is_head
        else "the reward model lost weights: it would score with random ones",
        where=where_reward_model(path),
        got=", ".join(sorted(keys)[:4]) + " not in its files" + (f": {why}" if why else ""),
        expected=f"{EXPECTED_REWARD_MODEL}, saved with its head",
        advice="train it with task_type=SEQ_CLS or modules_to_save=['score'], if it is LoRA" if is_head else None,
    )


def where_reward_model(path: str) -> str:
    """Return how a message names the reward model."""
    return f"reward model {path}"


@contextmanager
def _loading(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError, UserWarning, UnpicklingError) as error:
        refused = isinstance(error, UnpicklingError) or "trust_remote_code" in str(error)
        raise ModelError(
            "the reward model cannot be loaded" + ("; no code in it was executed" if refused else ""),
            where=where_reward_model(path),
            got=f"{type(error).__name__}: {error!s:.400}",
            expected=EXPECTED_REWARD_MODEL + (" that loads without code of its own" if refused else ""),
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide warnings of transformers in this context."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
