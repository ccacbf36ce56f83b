"""Train a critic beside a policy: a model of its own, with its own optimizer, schedule, clipping and checkpoint.

It goes backward after the policy, on the same micro-batch. So neither gradient ever waits in memory for the other, no
parameter group is shared, and the policy's engine (DDP, FSDP2 or ZeRO) need not know of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import safetensors.torch
import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, Trainer, get_scheduler

from rlhf_cli.packing.packable import has_relative_positions
from rlhf_cli.packing.packed_rows import rows_by_prompt
from rlhf_cli.trainers.ppo.valued_places import has_value, laid_out, whole_rows
from rlhf_cli.trainers.trim import by_length
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

if TYPE_CHECKING:
    from peft import PeftModel

_STATE = "critic_state.pt"

Autocast = Callable[[], AbstractContextManager[None]]
"""Opens the context in which a model computes in the run's precision: accelerate's `autocast`."""


@dataclass(frozen=True)
class CriticSettings:
    """Hold how a critic is trained. `warmup_steps`: optimizer steps at the start in which it alone is trained."""

    learning_rate: float
    warmup_steps: int = 0
    value_clip: float | None = 0.2
    loss_coef: float = 0.5
    max_grad_norm: float = 1.0


class Critic:
    """Hold what both arrangements have in common: an optimizer of their own, rollout values, steps, checkpoints.

    `model` is the one the parameters are in. `shares_backward`: the value loss goes backward with the policy's.
    """

    shares_backward = False

    def __init__(self, model: PreTrainedModel | PeftModel, settings: CriticSettings) -> None:
        self.model = model
        self.settings = settings
        self.may_move = has_relative_positions(model.config)
        self._last_token = model.config.get_text_config().vocab_size - 1
        self._optimizer: Optimizer
        self._schedule: LRScheduler

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the critic's own parameters."""
        raise NotImplementedError

    def body(self) -> torch.nn.Module:
        """Return what lies below the head."""
        raise NotImplementedError

    def prepare(self, trainer: TrlTrainer, num_training_steps: int) -> None:
        """Make the optimizer and the schedule, both of the policy's kind, and place the model."""
        args = trainer.args
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args, cast(PreTrainedModel, self.model))
        options |= {"lr": self.settings.learning_rate}
        self.model.to(trainer.accelerator.device)
        decaying = set(trainer.get_decay_parameter_names(self.model))
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for parameter in self.parameters():
            groups[names[id(parameter)] in decaying].append(parameter)
        optimizer = optimizer_class(
            [
                {"params": parameters, "weight_decay": args.weight_decay * decays}
                for decays, parameters in groups.items()
            ],
            **options,
        )
        self._optimizer = self._wrap(trainer, optimizer)
        self._schedule = get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )

    def rollout_values(
        self,
        ids: Tensor,
        mask: Tensor,
        num_completion: int,
        batch_size: int,
        autocast: Autocast,
        *,
        is_packed: bool = False,
    ) -> Tensor:
        """Return (B, C + 1): the value before every completion token and after the last one; no gradient, no
        dropout.

        ids, mask: (B, P + C), prompts padded on the left, completions on the right. Rows go through the model by prompt
        where they are packed, else sorted by length, `batch_size` at a time.
        """
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                values = mask.new_zeros((len(ids), num_completion + 1), dtype=torch.float32)
                prompts = slice(ids.shape[1] - num_completion)
                order = rows_by_prompt(ids[:, prompts], mask[:, prompts]) if is_packed else by_length(mask)
                for rows in order.split(batch_size):
                    values[rows] = self._values(ids[rows], mask[rows], num_completion, autocast, is_packed=is_packed)
        finally:
            self.model.train(was_training)
        return values

    def values(self, batch: TrlBatch, autocast: Autocast, *, is_packed: bool = False) -> Tensor:
        """Return (B, C): the value before every completion token of a micro-batch, with a gradient."""
        num_completion = batch["completion_ids"].shape[1]
        return self._values(*whole_rows(batch), num_completion, autocast, is_packed=is_packed)[:, :-1]

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Accumulate the gradient of a micro-batch, where `shares_backward` is False."""
        raise NotImplementedError

    def step(self) -> float:
        """Take one optimizer step, and return the norm of the gradient before it was clipped."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.settings.max_grad_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)

    @property
    def learning_rate(self) -> float:
        """Return the learning rate of the next step."""
        return float(self._schedule.get_last_lr()[0])

    def not_mine(self, policy: torch.nn.Module) -> list[torch.nn.Parameter]:
        """Return the policy's own parameters."""
        return list(policy.parameters())

    def hidden_from_policy(self) -> AbstractContextManager[None]:
        """Open a context in which the policy's optimizer is made, and sees nothing of the critic's."""
        return contextlib.nullcontext()

    def left_out_of_policy(self) -> AbstractContextManager[None]:
        """Open a context in which the policy is saved, and nothing of the critic's with it."""
        return contextlib.nullcontext()

    def save(self, folder: Path) -> None:
        """Write the critic where the libraries can load it."""
        raise NotImplementedError

    def save_state(self, folder: Path) -> None:
        """Write what training needs to go on: the weights, the optimizer, the schedule."""
        self.save(folder)
        state = {"optimizer": self._optimizer.state_dict(), "schedule": self._schedule.state_dict()}
        torch.save(state, folder / _STATE)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote."""
        self._load_weights(folder)
        state = torch.load(folder / _STATE, map_location="cpu", weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])

    def _wrap(self, trainer: TrlTrainer, optimizer: Optimizer) -> Optimizer:
        """Place the model among the ranks, and return the optimizer to be used."""
        raise NotImplementedError

    def states(self, ids: Tensor, mask: Tensor, num_completion: int, autocast: Autocast, *, is_packed: bool) -> Tensor:
        """Return (states, H): what the head reads of (B, P + C) rows, entries of size 1, for a trial of packing.

        Values would not do: a new head is 0, and values all states alike.
        """
        inputs, places = self._laid_out(ids, mask, num_completion, is_packed=is_packed)
        found = self._every_state(inputs, autocast).flatten(0, 1)[places].float()
        return torch.nn.functional.rms_norm(found, found.shape[-1:])

    def _values(self, ids: Tensor, mask: Tensor, num_completion: int, autocast: Autocast, *, is_packed: bool) -> Tensor:
        """Return (B, C + 1) values from (B, P + C) ids and mask; 0 behind the one after a row's last token."""
        inputs, places = self._laid_out(ids, mask, num_completion, is_packed=is_packed)
        found = self._every_value(inputs, autocast).flatten()[places]
        is_state = has_value(mask, num_completion)
        return found.new_zeros(is_state.shape).masked_scatter(is_state, found)

    def _laid_out(
        self, ids: Tensor, mask: Tensor, num_completion: int, *, is_packed: bool
    ) -> tuple[dict[str, object], Tensor]:
        # A policy with a larger padded vocabulary may sample a row that is no token of any text.
        ids = ids.clamp(max=self._last_token)
        return laid_out(ids, mask, num_completion, is_packed=is_packed, may_move=self.may_move)

    def _every_state(self, inputs: Mapping[str, object], autocast: Autocast) -> Tensor:
        """Return (B, L, H): what the head reads at all places of what the model is called with."""
        raise NotImplementedError

    def _every_value(self, inputs: Mapping[str, object], autocast: Autocast) -> Tensor:
        """Return (B, L) values of all places of what the model is called with."""
        raise NotImplementedError

    def _load_weights(self, folder: Path) -> None:
        raise NotImplementedError


class SeparateCritic(Critic):
    """Train a token-classification model with one label, apart from the policy."""

    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel, settings: CriticSettings) -> None:
        super().__init__(model, settings)
        self._wrapped: torch.nn.Module = model
        self._accelerator: Accelerator | None = None

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters of the model as it is placed among the ranks."""
        return list(self._wrapped.parameters())

    def body(self) -> torch.nn.Module:
        """Return the backbone."""
        body: torch.nn.Module = getattr(self.model, self.model.base_model_prefix)
        return body

    def prepare(self, trainer: TrlTrainer, num_training_steps: int) -> None:
        """Make optimizer and schedule; activations are checkpointed where the policy's are."""
        if trainer.args.activation_checkpointing:
            options = dict(trainer.args.activation_checkpointing_kwargs or {})
            self.model.activation_checkpointing_enable(
                every_n_layers=options.pop("every_n_layers", 1),
                offload=options.pop("offload", False),
                activation_checkpointing_kwargs=options or None,
            )
        self._wrapped = self.model
        super().prepare(trainer, num_training_steps)

    def _wrap(self, trainer: TrlTrainer, optimizer: Optimizer) -> Optimizer:
        accelerator = self._accelerator = trainer.accelerator
        if accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP):
            # A second engine on one accelerator crashes (ZeRO-2) or never trains (ZeRO-3); shards could not be saved
            # by one rank alone. So every rank has the whole critic.
            self._wrapped = DistributedDataParallel(self.model)
            return optimizer
        prepared: Optimizer
        self._wrapped, prepared = accelerator.prepare(self.model, optimizer)
        return prepared

    def _every_value(self, inputs: Mapping[str, object], autocast: Autocast) -> Tensor:
        with autocast():
            logits: Tensor = self._wrapped(**inputs, use_cache=False).logits
        return logits[:, :, 0].float()

    def _every_state(self, inputs: Mapping[str, object], autocast: Autocast) -> Tensor:
        with autocast():
            states: Tensor = self.body()(**inputs, use_cache=False).last_hidden_state
        return states

    def values(self, batch: TrlBatch, autocast: Autocast, *, is_packed: bool = False) -> Tensor:
        """Return (B, C) values with a gradient, in the way of DDP that the backward pass needs."""
        with self._exchange(is_last=self._accelerator is None or self._accelerator.sync_gradients):
            return super().values(batch, autocast, is_packed=is_packed)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Accumulate the gradient of a micro-batch; ranks exchange theirs with the last one of a window."""
        with self._exchange(is_last=is_last):
            loss.backward()

    def _exchange(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Open a context for both passes: DDP settles in the forward one whether gradients are exchanged in the
        backward one.
        """
        no_sync = getattr(self._wrapped, "no_sync", None)
        exchange: AbstractContextManager[None] = contextlib.nullcontext() if is_last or no_sync is None else no_sync()
        return exchange

    def save(self, folder: Path) -> None:
        """Write what AutoModelForTokenClassification.from_pretrained(folder) loads."""
        self.model.save_pretrained(folder)

    def _load_weights(self, folder: Path) -> None:
        weights: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights |= safetensors.torch.load_file(file)
        self.model.load_state_dict(weights)
