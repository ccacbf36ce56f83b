"""Build a critic: a transformer with a value for every token.

It is a token-classification model with one label, so transformers alone can load a saved critic. The value at position
t is that of the state in which token t + 1 is chosen.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

import torch
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
)
from transformers.utils import find_adapter_config_file

from rlhf_cli.errors import ModelError
from rlhf_cli.models.model_folders import is_language_model, refuse_other_tokens
from rlhf_cli.models.reward_checkpoint import load_reward_model, quiet_transformers

_WHERE = "critic.init"


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
    policy: its folder or hub id.
    revision: the commit, branch or tag of the policy on the hub; None for the default branch.
    dropout: the share of hidden units dropped before the head, 0 for none.

    Raise ModelError if the checkpoint has no head with one label or the architecture has no such model.
    """
    path = policy if init == "policy" else init
    try:
        kind = "policy" if init == "policy" else _kind_of(path, trust_remote_code)
        is_headless = kind in ("policy", "language model")
        if kind == "LoRA critic":
            critic = _from_lora_critic(path, dtype, trust_remote_code)
        elif kind == "reward model":
            critic = _from_reward_model(path, dtype, trust_remote_code)
        else:
            revision = revision if kind == "policy" else None
            critic = _loaded(path, dtype, trust_remote_code, needs_head=not is_headless, revision=revision)
    except (OSError, RuntimeError, ValueError, UserWarning) as error:
        raise ModelError(
            "a critic cannot be made from this checkpoint",
            where=_WHERE,
            got=f"{path}: {error!s:.300}",
            expected="an architecture that transformers knows as a token classifier, such as Llama, Qwen or Gemma",
        ) from error
    for name, module in critic.named_children():
        if isinstance(module, nn.Dropout):  # transformers always uses 0.1 here
            setattr(critic, name, nn.Dropout(dropout) if dropout else nn.Identity())
    name, linear = _head(critic)
    head = ValueHead(linear.in_features, 1)
    with torch.no_grad():
        for ours, loaded in ((head.weight, linear.weight), (head.bias, linear.bias)):
            ours.zero_() if is_headless or loaded is None else ours.copy_(loaded)
    setattr(critic, name, head)
    trained: PreTrainedModel = critic.train()
    return trained


def _head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return name and module of the linear layer with one output beside the backbone. Raise ValueError without one."""
    heads = [
        (name, module)
        for name, module in model.named_children()
        if isinstance(module, nn.Linear) and module.out_features == 1
    ]
    if len(heads) != 1:
        raise ValueError(f"{type(model).__name__} has {len(heads)} heads with one output")
    return heads[0]


def _kind_of(path: str, trust_remote_code: bool) -> Literal["LoRA critic", "reward model", "language model", "critic"]:
    """Return what a checkpoint is. A LoRA critic shared its policy's backbone; as a reward model it would lose its
    bias, because reward heads have none.
    """
    if find_adapter_config_file(path) is not None:
        return "LoRA critic" if PeftConfig.from_pretrained(path).task_type == "TOKEN_CLS" else "reward model"
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if is_language_model(config.to_dict()):
        return "language model"
    is_scorer = any("SequenceClassification" in name for name in config.architectures or [])
    return "reward model" if is_scorer else "critic"


def _from_lora_critic(path: str, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    base = str(PeftConfig.from_pretrained(path).base_model_name_or_path)
    body = _loaded(base, dtype, trust_remote_code, needs_head=False)
    saved, name = load_peft_weights(path, device="cpu"), _head(body)[0]
    lost = {f"{name}.{part}" for part in ("weight", "bias") if f"base_model.model.{name}.{part}" not in saved}
    if lost:
        raise _lost_head(path, lost)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        critic: PreTrainedModel = PeftModel.from_pretrained(body, path, autocast_adapter_dtype=False).merge_and_unload()
    return critic.requires_grad_(True)


def _loaded(
    path: str, dtype: str, trust_remote_code: bool, *, needs_head: bool, revision: str | None = None
) -> PreTrainedModel:
    critic: PreTrainedModel
    with quiet_transformers():  # a new head is either wanted or rejected below
        critic, info = AutoModelForTokenClassification.from_pretrained(
            path,
            num_labels=1,
            dtype=dtype,
            revision=revision or "main",
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    made_up = set(info["missing_keys"])
    if made_up and needs_head:
        raise _lost_head(path, made_up)
    if getattr(critic, "_hf_peft_config_loaded", False):
        raise ValueError("it is an adapter: transformers would train neither it nor the weights below it")
    head = {name for name in made_up if not name.startswith(f"{critic.base_model_prefix}.")}
    if made_up - head:
        raise ValueError(f"weights are missing: {', '.join(sorted(made_up - head)[:4])}")
    return critic


def _lost_head(path: str, keys: set[str]) -> ModelError:
    return ModelError(
        "the critic's checkpoint lost its head: it would value states with random weights",
        where=_WHERE,
        got=f"{', '.join(sorted(keys))} not in the files of {path}",
        expected="a reward model with its head, or a critic that a run saved",
        hint="critic.init=policy",
    )


def _from_reward_model(path: str, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    """Return a critic with the reward model's backbone and head; loading fails if the head is missing."""
    loaded = load_reward_model(path, dtype=dtype, trust_remote_code=trust_remote_code).model
    tuner = loaded.base_model if isinstance(loaded, PeftModel) else None
    # The critic trains all weights, also those of an adapter's base.
    reward_model = tuner.merge_and_unload() if isinstance(tuner, BaseTuner) else loaded
    critic: PreTrainedModel
    with torch.device("meta"):
        critic = AutoModelForTokenClassification.from_config(reward_model.config, trust_remote_code=trust_remote_code)
    setattr(critic, critic.base_model_prefix, reward_model.base_model)
    setattr(critic, _head(critic)[0], _head(reward_model)[1])
    return critic.requires_grad_(True)


def check_tokens(critic: PreTrainedModel, path: str, tokenizer: str, *, trust_remote_code: bool = False) -> None:
    """Compare a critic loaded from `path` with the tokenizer of its policy, a folder or hub id.

    Raise ModelError if a token of the policy has another id in the critic, or none. Skip the check if both are local
    folders: `describe_critic` compared them before loading.
    """
    if Path(path).expanduser().is_dir() and Path(tokenizer).expanduser().is_dir():
        return
    written = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code).get_vocab()
    try:
        read = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code).get_vocab()
    except (OSError, ValueError):  # a critic is saved without a tokenizer, so only the sizes can be compared
        read = written
    refuse_other_tokens(read, written, critic.config.get_text_config().vocab_size, where="critic.init")


def head_names(path: str, *, revision: str | None = None, trust_remote_code: bool = False) -> list[str]:
    """Return the head modules: `["score"]` for Llama, Qwen and most others, `["classifier"]` for BERT, and DeBERTa's
    pooler.

    They are newly initialised when a language model becomes a reward model, so they are trained fully and saved with an
    adapter. Build the model without weights. Raise ModelError if the architecture has no classifier.
    """
    try:
        config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code, num_labels=1)
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(
            "no reward model can be made of this model",
            where="model.path",
            got=f"{path}: {error!s:.300}",
            expected="an architecture that transformers has a ...ForSequenceClassification of",
        ) from error
    return [
        name
        for name, module in model.named_children()
        if name != model.base_model_prefix and any(True for _ in module.parameters())
    ]


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
