"""Train a critic on the policy's frozen backbone: a second LoRA adapter and a head, with one copy of the big weights.

Policy and critic share one backward pass. PEFT supports one active adapter, and freezes all others whenever it changes.
So this file activates the adapter without PEFT, and unfreezes the critic's parameters before every use.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import AutoModelForTokenClassification, PreTrainedModel

from rlhf_cli.errors import ModelError
from rlhf_cli.models.scalar_heads import CRITIC_HEAD
from rlhf_cli.process import temporary_attributes
from rlhf_cli.trainers.ppo.critic import CriticSettings, TrainedCritic

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlTrainer

ADAPTER = "critic"
_WEIGHTS = "adapter_model.safetensors"
_SHAPE = (
    *("r", "lora_alpha", "lora_dropout", "bias", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out", "revision"),
)
"""What the critic has of the policy's settings: not other modules that are trained, nor the first weights."""


class SharedLoraCritic(TrainedCritic):
    """A LoRA adapter of the policy's shape and a float32 linear head, with an optimizer of their own.

    model: a PeftModel. The head becomes its child `critic_head`, so that it is placed and synchronised between ranks
    with it; neither the head nor the adapter is saved with the policy.
    """

    shares_backward = True
    model: PeftModel

    def __init__(self, model: PeftModel, settings: CriticSettings, *, dropout: float) -> None:
        super().__init__(model, settings)
        policy = model.peft_config[model.active_adapter]
        model.add_adapter(ADAPTER, LoraConfig(**{name: getattr(policy, name) for name in _SHAPE}))
        self._head, self._dropout = nn.Linear(model.config.get_text_config().hidden_size, 1), dropout
        for parameter in self._head.parameters():
            nn.init.zeros_(parameter)
        model.add_module(CRITIC_HEAD, self._head.to(next(model.parameters()).device))
        self._layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
        try:  # saved weights need the name of the token classifier's head in the policy's architecture
            with torch.device("meta"):
                classifier = AutoModelForTokenClassification.from_config(copy.deepcopy(model.config))
        except ValueError as error:
            what = "transformers knows no token classifier of this architecture, which a saved critic is"
            expected, given = "an architecture such as Llama, Qwen or Gemma", model.config.model_type
            raise ModelError(what, where="critic.share", got=given, expected=expected) from error
        heads = (name for name, module in classifier.named_children() if isinstance(module, nn.Linear))
        self._name_of_head = next(heads)
        self._head_prefix = f"base_model.model.{self._name_of_head}."

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the critic's adapter and head."""
        adapter = [parameter for name, parameter in self.model.named_parameters() if f".{ADAPTER}." in name]
        return [*adapter, *self._head.parameters()]

    def body(self) -> nn.Module:
        """Return the policy's model with both adapters; the dropout before the head is not a module of it."""
        return self.model

    def _wrap(self, trainer: TrlTrainer, optimizer: Optimizer) -> Optimizer:
        """Return the prepared optimizer; the policy's module already contains the parameters."""
        return cast(Optimizer, trainer.accelerator.prepare(optimizer))

    def _every_state(self, inputs: Mapping[str, object]) -> Tensor:
        model = cast(PreTrainedModel, self.model.get_base_model())
        self._take_gradients()
        with self._active(), self._autocast():
            return cast(Tensor, getattr(model, model.base_model_prefix)(**inputs, use_cache=False).last_hidden_state)

    def _every_value(self, inputs: Mapping[str, object]) -> Tensor:
        hidden = self._every_state(inputs)
        # A separate dropout module would miss the model's eval(), and would also drop in rollout values.
        hidden = nn.functional.dropout(hidden, self._dropout, training=self.model.training)
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self._head(hidden.float())
        return values.squeeze(2)

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        """Make the layers use the critic's adapter in this context; PEFT's own switch would freeze the others."""
        before = [(layer, layer._active_adapter, layer._disable_adapters) for layer in self._layers]
        for layer in self._layers:
            layer._active_adapter, layer._disable_adapters = [ADAPTER], False
        try:
            yield
        finally:
            for layer, adapter, is_disabled in before:
                layer._active_adapter, layer._disable_adapters = adapter, is_disabled

    def _take_gradients(self) -> None:
        """Unfreeze the critic: generation and the reference's forward pass switch adapters and silently freeze ours."""
        for parameter in self.parameters():
            parameter.requires_grad_(True)

    @contextlib.contextmanager
    def hidden_from_policy(self) -> Iterator[None]:
        """Freeze the critic in this context, and make PEFT save every adapter except its own."""
        others = [name for name in self.model.peft_config if name != ADAPTER]
        # PEFT must know our adapter to exclude its weights: without a configuration they are saved as the policy's.
        save = functools.partial(self.model.save_pretrained, selected_adapters=others)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        with temporary_attributes(self.model, save_pretrained=save):
            yield
        self._take_gradients()

    def save(self, folder: Path) -> None:
        """Save adapter and head in PEFT's format, for AutoPeftModelForTokenClassification.from_pretrained(folder)."""
        config = LoraConfig(**{**asdict(self.model.peft_config[ADAPTER]), "task_type": "TOKEN_CLS"})
        config.base_model_name_or_path = cast(PreTrainedModel, self.model.get_base_model()).config.name_or_path
        config.modules_to_save, config.inference_mode = [self._name_of_head], True
        config.save_pretrained(str(folder))
        weights: dict[str, Tensor] = get_peft_model_state_dict(self.model, adapter_name=ADAPTER)
        weights |= {self._head_prefix + name: value for name, value in self._head.state_dict().items()}
        save_file({name: value.contiguous() for name, value in weights.items()}, folder / _WEIGHTS)

    def _load_weights(self, folder: Path) -> None:
        state, prefix = load_file(folder / _WEIGHTS), self._head_prefix
        head = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
        set_peft_model_state_dict(self.model, state, adapter_name=ADAPTER)
        self._head.load_state_dict(head)
