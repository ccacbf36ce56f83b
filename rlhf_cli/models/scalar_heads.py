"""Load reward models and build critics: transformers whose head gives one number, and reject a lost head.

transformers and PEFT would initialise a missing head at random and continue. A critic is a token-classification model
with one label, so transformers alone can load a saved one. Its value at position t is that of the state in which token
t + 1 is chosen.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from huggingface_hub.errors import StrictDataclassError  # a value of another type in config.json
from peft import PeftConfig, PeftModel, load_peft_weights
from peft.tuners.tuners_utils import BaseTuner
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import find_adapter_config_file
from transformers.utils import logging as transformers_logging

from rlhf_cli.errors import ModelError
from rlhf_cli.models.model_folders import (
    EXPECTED_REWARD_MODEL,
    check_reward_config,
    describe_reward_model,
    is_language_model,
    refuse_other_tokens,
)

_CRITIC = "critic.init"
_UNREADABLE = (OSError, ValueError, StrictDataclassError)


def load_reward_model(
    path: str,
    *,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    tokenizer: str | None = None,
    revision: str | None = None,
) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """Return the one-label classifier in a folder, or in a hub id at `revision`, with its head, and its tokenizer.

    `dtype` of the weights; `auto` is the checkpoint's own. `tokenizer` is that of another folder or hub id. Raise
    ModelError if it is not a reward model, lost its head, or cannot be loaded.
    """
    where = where_reward_model(path)
    given: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    describe_reward_model(path, where=where)
    of_tokenizer = given if tokenizer is None else {**given, "revision": None}
    read_tokenizer = partial(AutoTokenizer.from_pretrained, tokenizer or path, **of_tokenizer)
    try:
        if find_adapter_config_file(path, revision=revision) is not None:
            base, of_base = _base_of(path, revision)
            saved = load_peft_weights(path, device="cpu", revision=revision)
            body, made_up, _ = _read(AutoModelForSequenceClassification, base, dtype, trust_remote_code, of_base)
            if lost := {key for key in made_up if f"base_model.model.{key}" not in saved}:
                raise _lost(path, lost, body, f"neither the adapter nor its base {base} has it")
            adapted = _with_adapter(body, path, revision)
            try:
                return adapted, read_tokenizer()
            except (OSError, ValueError):  # an adapter saved without one uses its base's
                if tokenizer is not None:
                    raise
                given["revision"] = of_base
                return adapted, AutoTokenizer.from_pretrained(base, **given)
        config = AutoConfig.from_pretrained(path, **given)
        check_reward_config(config.architectures or [], config.num_labels, got=path, where=where)
        model, made_up, is_causal = _read(AutoModelForSequenceClassification, path, dtype, trust_remote_code, revision)
        if made_up:
            raise _lost(path, made_up, model, "it holds a causal language model" if is_causal else None)
        return model, read_tokenizer()
    except (*_UNREADABLE, RuntimeError, ImportError, UserWarning, UnpicklingError) as error:
        has_code = isinstance(error, UnpicklingError) or "trust_remote_code" in str(error)
        what = "the reward model cannot be loaded" + ("; its code was not executed" if has_code else "")
        got, expected = f"{type(error).__name__}: {error!s:.400}", EXPECTED_REWARD_MODEL
        expected += " that loads without code of its own" if has_code else ""
        raise ModelError(what, where=where, got=got, expected=expected) from error


def _base_of(path: str, revision: str | None = None) -> tuple[str, str | None]:
    """Return the name of an adapter's base and the revision that it was trained on."""
    config = PeftConfig.from_pretrained(path, revision=revision)
    return str(config.base_model_name_or_path), config.revision


def _with_adapter(body: PreTrainedModel, path: str, revision: str | None = None) -> PeftModel:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        return PeftModel.from_pretrained(body, path, autocast_adapter_dtype=False, revision=revision)


def _read(
    kind: type[AutoModelForSequenceClassification | AutoModelForTokenClassification],
    path: str,
    dtype: str,
    trust_remote_code: bool,
    revision: str | None = None,
) -> tuple[PreTrainedModel, set[str], bool]:
    """Return a model with one label, the weights that its files lack, and whether they hold a language model's head."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the caller rejects random weights, or replaces the head
    try:
        model, info = kind.from_pretrained(
            path,
            num_labels=1,
            dtype=dtype,
            revision=revision or "main",
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    finally:
        transformers_logging.set_verbosity(verbosity)
    made_up = set(info["missing_keys"]) | {key for key, *_ in info["mismatched_keys"]}
    return model, made_up, any(key.startswith("lm_head") for key in info["unexpected_keys"])


def _lost(path: str, keys: set[str], model: PreTrainedModel, why: str | None) -> ModelError:
    is_head = any(not key.startswith(f"{model.base_model_prefix}.") for key in keys)
    return ModelError(
        f"the reward model lost {'its head' if is_head else 'weights'}: it would score with random ones",
        where=where_reward_model(path),
        got=", ".join(sorted(keys)[:4]) + " not in its files" + (f": {why}" if why else ""),
        expected=f"{EXPECTED_REWARD_MODEL}, saved with its head",
        advice="train it with task_type=SEQ_CLS or modules_to_save=['score'], if it is LoRA" if is_head else None,
    )


def where_reward_model(path: str) -> str:
    """Return how a message names the reward model."""
    return f"reward model {path}"


CRITIC_HEAD = "critic_head"
"""Name of the head of a critic that shares the policy's body, as a child of the PeftModel."""


class ValueHead(nn.Linear):
    """A head with one output, always in float32, because bfloat16 has only two significant digits."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the values, (..., 1) in float32, of hidden states (..., hidden size)."""
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())


def build_critic(
    init: str, policy: str, *, dtype: str, dropout: float, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedModel:
    """Return a token-classification model with one label, in training mode, its head in float32.

    init: `policy` for the policy's backbone under a head of zeros (so that V is 0 everywhere at first, as in Ziegler et
        al.'s code), else a folder or hub id, of any size: a reward model, whose head then values every token, a saved
        critic, or a language model, whose backbone gets a head of zeros.
    policy: its folder or hub id; revision: its commit, branch or tag on the hub, None for the default branch.
    dropout: the share of hidden units dropped before the head, 0 for none.

    Raise ModelError if the checkpoint has no head with one label or the architecture has no such model.
    """
    path = policy if init == "policy" else init
    try:
        kind = "policy" if init == "policy" else _kind_of(path, trust_remote_code)
        is_headless = kind in ("policy", "language model")
        if kind == "LoRA critic":
            base, of_base = _base_of(path)
            body = _load_critic(base, dtype, trust_remote_code, needs_head=False, revision=of_base)
            saved, name = load_peft_weights(path, device="cpu"), _head(body)[0]
            lost = {f"{name}.{part}" for part in ("weight", "bias") if f"base_model.model.{name}.{part}" not in saved}
            if lost:
                raise _lost_critic_head(path, lost)
            critic: PreTrainedModel = _with_adapter(body, path).merge_and_unload()
        elif kind == "reward model":
            critic = _critic_of_reward_model(path, dtype, trust_remote_code)
        else:
            revision = revision if kind == "policy" else None
            critic = _load_critic(path, dtype, trust_remote_code, needs_head=not is_headless, revision=revision)
    except (*_UNREADABLE, RuntimeError, UserWarning) as error:
        what = "a critic cannot be made from this checkpoint"
        expected = "an architecture that transformers knows as a token classifier, such as Llama, Qwen or Gemma"
        raise ModelError(what, where=_CRITIC, got=f"{path}: {error!s:.300}", expected=expected) from error
    for name, module in critic.named_children():
        if isinstance(module, nn.Dropout):  # transformers always uses 0.1 here
            setattr(critic, name, nn.Dropout(dropout) if dropout else nn.Identity())
    name, linear = _head(critic)
    head = ValueHead(linear.in_features, 1)
    with torch.no_grad():
        for ours, loaded in ((head.weight, linear.weight), (head.bias, linear.bias)):
            ours.zero_() if is_headless or loaded is None else ours.copy_(loaded)
    setattr(critic, name, head)
    trained: PreTrainedModel = critic.requires_grad_(True).train()
    return trained


def _head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return name and module of the linear layer with one output beside the backbone. Raise ValueError without one."""
    linear = [(name, child) for name, child in model.named_children() if isinstance(child, nn.Linear)]
    (head,) = (named for named in linear if named[1].out_features == 1)
    return head


def _kind_of(path: str, trust_remote_code: bool) -> Literal["LoRA critic", "reward model", "language model", "critic"]:
    """Return what a checkpoint is. A LoRA critic is no reward model: as one it would lose the bias of its head."""
    if find_adapter_config_file(path) is not None:
        return "LoRA critic" if PeftConfig.from_pretrained(path).task_type == "TOKEN_CLS" else "reward model"
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if is_language_model(config.to_dict()):
        return "language model"
    is_scorer = any("SequenceClassification" in name for name in config.architectures or [])
    return "reward model" if is_scorer else "critic"


def _load_critic(
    path: str, dtype: str, trust_remote_code: bool, *, needs_head: bool, revision: str | None = None
) -> PreTrainedModel:
    critic, made_up, _ = _read(AutoModelForTokenClassification, path, dtype, trust_remote_code, revision)
    if made_up and needs_head:
        raise _lost_critic_head(path, made_up)
    if getattr(critic, "_hf_peft_config_loaded", False):
        raise ValueError("it is an adapter: transformers would train neither it nor the weights below it")
    if body := sorted(name for name in made_up if name.startswith(f"{critic.base_model_prefix}.")):
        raise ValueError(f"weights are missing: {', '.join(body[:4])}")
    return critic


def _lost_critic_head(path: str, keys: set[str]) -> ModelError:
    what = "the critic's checkpoint lost its head: it would value states with random weights"
    expected = "a reward model with its head, or a critic that a run saved"
    got = f"{', '.join(sorted(keys))} not in the files of {path}"
    return ModelError(what, where=_CRITIC, got=got, expected=expected, hint="critic.init=policy")


def _critic_of_reward_model(path: str, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    """Return a critic with the reward model's backbone and head; loading fails if the head is missing."""
    loaded = load_reward_model(path, dtype=dtype, trust_remote_code=trust_remote_code)[0]
    tuner = loaded.base_model if isinstance(loaded, PeftModel) else None
    # The critic trains all weights, also those of an adapter's base.
    reward_model = tuner.merge_and_unload() if isinstance(tuner, BaseTuner) else loaded
    critic: PreTrainedModel
    with torch.device("meta"):
        critic = AutoModelForTokenClassification.from_config(reward_model.config, trust_remote_code=trust_remote_code)
    setattr(critic, critic.base_model_prefix, reward_model.base_model)
    setattr(critic, _head(critic)[0], _head(reward_model)[1])
    return critic


def check_tokens(
    critic: PreTrainedModel, path: str, tokenizer: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> None:
    """Compare a critic loaded from `path` with the tokenizer of its policy, a folder or hub id with its `revision`.

    Raise ModelError if a token of the policy has another id in the critic, or none. Skip the check if both are local
    folders: `describe_critic` compared them before loading.
    """
    if Path(path).expanduser().is_dir() and Path(tokenizer).expanduser().is_dir():
        return
    given = {"trust_remote_code": trust_remote_code}
    written = AutoTokenizer.from_pretrained(tokenizer, revision=revision, **given).get_vocab()
    try:
        read = AutoTokenizer.from_pretrained(path, **given).get_vocab()
    except (OSError, ValueError):  # a critic is saved without a tokenizer, so only the sizes can be compared
        read = written
    refuse_other_tokens(read, written, critic.config.get_text_config().vocab_size, where=_CRITIC)


def head_names(path: str, *, revision: str | None = None, trust_remote_code: bool = False) -> list[str]:
    """Return the head modules: `["score"]` for Llama, Qwen and most others, `["classifier"]` for BERT, and DeBERTa's
    pooler.

    They are newly initialised when a language model becomes a reward model, so they are trained fully and saved with an
    adapter. Build the model without weights. Raise ModelError if the architecture has no classifier.
    """
    try:
        config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=trust_remote_code)
    except _UNREADABLE as error:
        what = "no reward model can be made of this model"
        expected = "an architecture that transformers has a ...ForSequenceClassification of"
        raise ModelError(what, where="model.path", got=f"{path}: {error!s:.300}", expected=expected) from error
    heads = [(name, module) for name, module in model.named_children() if name != model.base_model_prefix]
    return [name for name, module in heads if any(True for _ in module.parameters())]


def restore_head_dtype(model: nn.Module) -> None:
    """Restore the dtype of the heads that are trained beside an adapter.

    On quantised weights TRL casts all trained parameters to bfloat16. An adapter layer converts its input, but a head
    does not, so it fails on the first batch if the backbone computes in float32.
    """
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            dtype = next(module.original_module.parameters()).dtype
            for trained in module.modules_to_save.values():
                trained.to(dtype)
