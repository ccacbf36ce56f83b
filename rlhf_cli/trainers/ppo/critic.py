"""Train a critic beside the policy.

Its backward pass follows the policy's, on the same micro-batch. So the two gradients need no memory at the same time,
no parameter group is shared, and the policy's engine (DDP, FSDP2 or ZeRO) is not involved.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import safetensors.torch
import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import PreTrainedModel, Trainer, get_scheduler

from rlhf_cli.models.packing.packed_rows import rows_by_prompt
from rlhf_cli.models.packing.row_attention import has_relative_positions
from rlhf_cli.models.weight_shapes import load_renamed
from rlhf_cli.numerics.ppo import adapted_coef
from rlhf_cli.process import keeping_options
from rlhf_cli.tables.trl_values import FOLLOW_EVALUATIONS, MAX_RELATIVE_KL_ERROR
from rlhf_cli.trainers.forward_pass import by_length, has_value, in_evaluation_mode, model_rows

if TYPE_CHECKING:
    from peft import PeftModel

    from rlhf_cli.algorithms.ppo import Ppo
    from rlhf_cli.trainers.trl_protocol import TrlArguments, TrlBatch, TrlTrainer


def prompts_and_completions(batch: TrlBatch) -> tuple[Tensor, Tensor, int]:
    """Return (B, P + C) ids and mask of a batch's prompts and completions, and C."""
    ids, mask = (torch.cat([batch[f"prompt_{part}"], batch[f"completion_{part}"]], dim=1) for part in ("ids", "mask"))
    return ids, mask, batch["completion_ids"].shape[1]


_STATE = "critic_state.pt"


@dataclass(frozen=True)
class CriticSettings:
    """How a critic is trained. `warmup_steps`: optimizer steps at the start that train only the critic."""

    learning_rate: float
    warmup_steps: int
    value_clip: float | None
    loss_coef: float
    max_grad_norm: float


def _recompute_activations(model: PreTrainedModel | PeftModel, args: TrlArguments) -> None:
    """Enable activation checkpointing if the arguments do; transformers 5.17 calls it gradient checkpointing."""
    if not hasattr(args, "activation_checkpointing"):
        if args.gradient_checkpointing:
            model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
    elif args.activation_checkpointing:
        given = dict(args.activation_checkpointing_kwargs or {})
        model.activation_checkpointing_enable(
            every_n_layers=given.pop("every_n_layers", 1),
            offload=given.pop("offload", False),
            activation_checkpointing_kwargs=given or None,
        )


class TrainedCritic:
    """A token-classification model with one label, its optimizer and its checkpoints; a base of SharedLoraCritic."""

    shares_backward = False  # True: the value loss is part of the policy's backward pass
    model: PreTrainedModel | PeftModel

    def __init__(self, model: PreTrainedModel | PeftModel, settings: CriticSettings) -> None:
        self.model = model
        self.settings = settings
        self.may_move = has_relative_positions(model.config)
        self._last_token = model.config.get_text_config().vocab_size - 1
        self._optimizer: Optimizer
        self._schedule: LRScheduler
        self._wrapped: torch.nn.Module = model
        self._accelerator: Accelerator | None = None
        self._autocast: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Open the context in which a model computes in the run's precision: accelerate's `autocast`."""

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters of the distributed model."""
        return list(self._wrapped.parameters())

    def body(self) -> torch.nn.Module:
        """Return the backbone."""
        return cast(torch.nn.Module, getattr(self.model, self.model.base_model_prefix))

    def prepare(self, trainer: TrlTrainer, num_training_steps: int) -> None:
        """Create optimizer and schedule, of the policy's kinds; a separate model checkpoints activations if it does."""
        self._wrapped, args, self._autocast = self.model, trainer.args, trainer.accelerator.autocast
        if not self.shares_backward:
            _recompute_activations(self.model, args)
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args, cast(PreTrainedModel, self.model))
        options |= {"lr": self.settings.learning_rate}
        self.model.to(trainer.accelerator.device)
        decaying = set(trainer.get_decay_parameter_names(self.model))
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for parameter in self.parameters():
            groups[names[id(parameter)] in decaying].append(parameter)
        optimizer = optimizer_class(
            [{"params": some, "weight_decay": args.weight_decay * decays} for decays, some in groups.items()], **options
        )
        self._optimizer = self._wrap(trainer, optimizer)
        if args.lr_scheduler_type in FOLLOW_EVALUATIONS:  # follow the policy's rate
            self._schedule = LambdaLR(optimizer, lambda _: trainer.optimizer.param_groups[0]["lr"] / args.learning_rate)
            return
        steps, kind = (args.get_warmup_steps(num_training_steps), num_training_steps), args.lr_scheduler_type
        self._schedule = get_scheduler(kind, optimizer, *steps, scheduler_specific_kwargs=args.lr_scheduler_kwargs)

    def rollout_values(
        self, ids: Tensor, mask: Tensor, num_completion: int, batch_size: int, *, is_packed: bool = False
    ) -> Tensor:
        """Return (B, C + 1): the value before every completion token and after the last one, without gradient.

        Dropout is off. ids, mask: (B, P + C), prompts padded on the left, completions on the right. The rows go through
        the model `batch_size` at a time, sorted by prompt if they are packed, else by length.
        """
        values = mask.new_zeros((len(ids), num_completion + 1)).float()
        prompts = slice(ids.shape[1] - num_completion)
        order = rows_by_prompt(ids[:, prompts], mask[:, prompts]) if is_packed else by_length(mask)
        with in_evaluation_mode(self.model), torch.no_grad():
            for rows in order.split(batch_size):
                values[rows] = self._values(ids[rows], mask[rows], num_completion, is_packed=is_packed)
        return values

    def values(self, batch: TrlBatch, *, is_packed: bool = False) -> Tensor:
        """Return (B, C): the value before every completion token of a micro-batch, with a gradient."""
        with self._exchange():
            return self._values(*prompts_and_completions(batch), is_packed=is_packed)[:, :-1]

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of a micro-batch."""
        with self._exchange():
            loss.backward()

    def _exchange(self) -> AbstractContextManager[None]:
        """Open a context in which DDP exchanges gradients only at a window's end, as the forward pass decides."""
        is_last = self._accelerator is None or self._accelerator.sync_gradients
        if is_last or not isinstance(self._wrapped, DistributedDataParallel):
            return contextlib.nullcontext()
        return cast("AbstractContextManager[None]", self._wrapped.no_sync())

    def step(self) -> tuple[float, float]:
        """Take one optimizer step, and return its learning rate and the norm of the gradient before it was clipped."""
        rate = float(self._schedule.get_last_lr()[0])
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.settings.max_grad_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        return rate, float(norm)

    def hidden_from_policy(self) -> AbstractContextManager[None]:
        """Exclude the critic from what the policy trains and saves in this context."""
        return contextlib.nullcontext()

    def save(self, folder: Path) -> None:
        """Save a folder that AutoModelForTokenClassification.from_pretrained(folder) loads."""
        self.model.save_pretrained(str(folder))

    def save_state(self, folder: Path) -> None:
        """Save what resuming needs: the weights, the optimizer, the schedule."""
        self.save(folder)
        state = {"optimizer": self._optimizer.state_dict(), "schedule": self._schedule.state_dict()}
        torch.save(state, folder / _STATE)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote."""
        self._load_weights(folder)
        state = torch.load(folder / _STATE, map_location="cpu", weights_only=True)
        with keeping_options(self._optimizer):
            self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])

    def _load_weights(self, folder: Path) -> None:
        weights: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights |= safetensors.torch.load_file(file)
        is_renamed = load_renamed(cast(PreTrainedModel, self.model), folder)
        self.model.load_state_dict(weights, strict=not is_renamed)

    def _wrap(self, trainer: TrlTrainer, optimizer: Optimizer) -> Optimizer:
        accelerator = self._accelerator = trainer.accelerator
        if accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP):
            # A second engine on one accelerator crashes (ZeRO-2) or never trains (ZeRO-3), and one rank alone could not
            # save shards. So every rank has the whole critic.
            self._wrapped = DistributedDataParallel(self.model)
            return optimizer
        prepared: Optimizer
        self._wrapped, prepared = accelerator.prepare(self.model, optimizer)
        return prepared

    def states(self, ids: Tensor, mask: Tensor, num_completion: int, *, is_packed: bool) -> Tensor:
        """Return (states, H): the head's input for (B, P + C) rows, normalised to RMS 1, for a trial of packing."""
        # Values would not work: a new head is 0, and all its values are equal.
        inputs, places = self._laid_out(ids, mask, num_completion, is_packed=is_packed)
        found = self._every_state(inputs).flatten(0, 1)[places].float()
        return torch.nn.functional.rms_norm(found, found.shape[-1:])

    def _values(self, ids: Tensor, mask: Tensor, num_completion: int, *, is_packed: bool) -> Tensor:
        """Return (B, C + 1) values from (B, P + C) ids and mask; 0 beyond the value after a row's last token."""
        inputs, places = self._laid_out(ids, mask, num_completion, is_packed=is_packed)
        found = self._every_value(inputs).flatten()[places]
        is_state = has_value(mask, num_completion)
        return found.new_zeros(is_state.shape).masked_scatter(is_state, found)

    def _laid_out(
        self, ids: Tensor, mask: Tensor, num_completion: int, *, is_packed: bool
    ) -> tuple[dict[str, object], Tensor]:
        known = ids.clamp(max=self._last_token)  # a policy's larger, padded vocabulary may give an id without a token
        return model_rows(known, mask, num_completion, is_packed=is_packed, may_move=self.may_move, with_last=True)

    def _every_state(self, inputs: Mapping[str, object]) -> Tensor:
        with self._autocast():
            return cast(Tensor, self.body()(**inputs, use_cache=False).last_hidden_state)

    def _every_value(self, inputs: Mapping[str, object]) -> Tensor:
        with self._autocast():
            logits: Tensor = self._wrapped(**inputs, use_cache=False).logits
        return logits[:, :, 0].float()


@dataclass(frozen=True)
class KlPenalty:
    """A KL(policy || reference) penalty: k1 subtracted from every token's reward, or k3 in TRL's loss.

    Never both, which would count it twice. With `target` (nats per completion) and `horizon` (completions), the
    coefficient adapts to the measured divergence; otherwise it is constant.
    """

    where: str
    coef: float
    target: float | None = None
    horizon: int | None = None

    @property
    def is_used(self) -> bool:
        """Return whether a reference model is needed."""
        return self.where != "none"

    @property
    def coef_in_reward(self) -> float:
        """Return the coefficient in the tokens' rewards, 0 if the penalty is in the loss."""
        return self.coef if self.where == "reward" else 0.0

    def updated(self, kl: float, num_rows: int) -> KlPenalty:
        """Return the penalty after `num_rows` completions with a mean divergence of `kl` nats; NaN: no row counted."""
        if self.target is None or self.horizon is None or math.isnan(kl):
            return self
        error = MAX_RELATIVE_KL_ERROR
        coef = adapted_coef(self.coef, kl, num_rows, target=self.target, horizon=self.horizon, max_error=error)
        return replace(self, coef=coef)


@dataclass(frozen=True)
class PpoSetup:
    """What PPO needs beside rewards. `make_critic` is called once, with the loaded policy."""

    settings: Ppo
    kl: KlPenalty
    make_critic: Callable[[PreTrainedModel | PeftModel], TrainedCritic]
