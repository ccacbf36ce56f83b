"""Run PPO on TRL's rollout engine: GRPOTrainer with a critic instead of groups (arXiv 1707.06347, 1909.08593).

TRL generates, scores, keeps the rollout, splits it into minibatches and epochs (`steps_per_generation`,
`num_iterations`) and computes the clipped policy loss, which accepts advantages of shape (B, T). This file adds the
critic, advantages and returns (GAE), the value loss, and the KL penalty per token.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from trl.trainer import grpo_trainer

from rlhf_cli.algorithms.base import advantage_metrics
from rlhf_cli.algorithms.ppo import Advantages, Ppo, Rollout, without_last
from rlhf_cli.numerics.ppo import explained_variance, k1, k3, value_losses, whiten
from rlhf_cli.process import temporary_attributes
from rlhf_cli.rewards.stack.aggregating import counting
from rlhf_cli.rewards.stack.reward_matrix import last_token_rewards, token_rewards
from rlhf_cli.runs.heartbeat import CRITIC, VALUES, during
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES
from rlhf_cli.trainers.forward_pass import in_evaluation_mode, switch_off_dropout
from rlhf_cli.trainers.guard_mixin import GuardMixin, Named
from rlhf_cli.trainers.left_out_mixin import IN_WINDOW, tokens_in_loss
from rlhf_cli.trainers.pass_mixin import PassMixin, tried_rows
from rlhf_cli.trainers.ppo.critic import KlPenalty, TrainedCritic, prompts_and_completions
from rlhf_cli.trainers.reward_mixin import RewardMixin, overwrite_last
from rlhf_cli.truncation import Bootstrap

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlBatch

_STATE_FILE = "kl_state.json"
_COEF = "kl_coef"
"""Key of a micro-batch: the KL coefficient in the loss while this round is used for training."""


class PpoMixin(GuardMixin, PassMixin, RewardMixin):
    """For GRPOTrainer: turn it into PPO; `extensions.ppo` has the settings and creates the critic."""

    _has_tried_critic: bool = False
    _micro_batch: TrlBatch
    _ratio_max: float = 0.0
    _rollout: tuple[Rollout, Advantages]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        setup = self.extensions.ppo
        assert setup is not None
        self.ppo, self.kl = setup.settings, setup.kl
        self.critic: TrainedCritic = setup.make_critic(self.model)
        if self.args.disable_dropout:
            switch_off_dropout(self.model)
            switch_off_dropout(self.critic.body())  # `critic.dropout` is not affected: it is applied before the head

    # --- the rollout ---

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        metrics = self._metrics[self._mode]
        metrics.pop("frac_reward_zero_std", None)  # about groups, which PPO does not have
        measured = rollout_metrics(*self._rollout, self.ppo, self.kl, self._sum_over_ranks)
        for name, value in measured.items():
            metrics[name].append(value)
        num_rows = int((~self._settled.totals.isnan()).sum())  # without left-out rows, which have no divergence
        if self._mode == "train" and self.kl.is_used:
            self.kl = self.kl.updated(measured["kl/k1_policy_ref_per_row"], num_rows)
        del self._rollout
        return output

    def _set_advantages(self, output: TrlBatch) -> dict[str, float]:
        ids, mask, num_completion = prompts_and_completions(output)
        batch_size = self.args.per_device_train_batch_size
        if self.kl.is_used and "old_per_token_logps" not in output:
            with torch.no_grad():
                found = self._get_per_token_logps_and_entropies(self.model, ids, mask, num_completion, batch_size)
            output["old_per_token_logps"] = found[0]
        with during(self.extensions.heartbeat, VALUES):
            is_packed = self._packs_values(output)
            values = self.critic.rollout_values(ids, mask, num_completion, batch_size, is_packed=is_packed)
        lengths = output["completion_mask"].sum(dim=1)
        is_bootstrapped = self.truncation.goes_on(self._endings)[self._own_rows].to(lengths.device)
        is_action = tokens_in_loss(output).bool()
        is_token = output["completion_mask"].bool()
        if self.is_dense and not callable(self.aggregate):
            scores, _ = token_rewards(self.reward_stack.token_values, self._settled, is_token, self._own_rows)
        else:
            scores = last_token_rewards(self._settled, is_token, self._own_rows)
        if self.truncation.replaces:  # the critic's value replaces the score of an unfinished row
            self._warn_of_dense_rewards()
            scores = without_last(scores, lengths, is_bootstrapped)
        rollout = Rollout(
            is_action=is_action,
            scores=scores,
            values=values[:, :-1].where(is_action, 0.0),
            last_values=values.gather(1, lengths.unsqueeze(1)).squeeze(1),
            is_bootstrapped=is_bootstrapped,
            logps=output.get("old_per_token_logps") if self.kl.is_used else None,
            ref_logps=output.get("ref_per_token_logps"),
        )
        advantages = self.ppo.advantages(rollout, self.kl.coef_in_reward, self._sum_over_ranks)
        output |= {"advantages": advantages.used, "returns": advantages.returns, "rollout_values": rollout.values}
        if self.kl.where == "loss":  # the round keeps its coefficient, also in a checkpoint in the middle of it
            coef = 0.0 if advantages.is_rounding else self.kl.coef
            output[_COEF] = torch.tensor(coef, dtype=torch.float64)
        else:
            output.pop("ref_per_token_logps", None)
        self._rollout = rollout, advantages
        means = self.accelerator.gather(advantages.used.sum(dim=1) / is_action.sum(dim=1).clamp(min=1))
        overwrite_last(self._logs["advantages"], means.tolist())
        if callable(self.aggregate):
            return {}
        return advantage_metrics(self.ppo.shares(rollout, advantages, self._settled.names, self._sum_over_ranks))

    def _warn_of_dense_rewards(self) -> None:
        """Warn if all rewards that count are dense: `check` only reads annotations. The log shows it once."""
        outcomes = self.reward_stack.outcomes
        counted = [outcomes[name] for name in counting({item.name: item for item in self.reward_stack.components})]
        rows = [row for outcome in counted for row in zip(outcome.raw, outcome.tokens, strict=True)]
        scored = [tokens is not None for raw, tokens in rows if raw is not None]
        if self.truncation.needs_critic and scored and all(scored) and self.accelerator.is_main_process:
            logging.getLogger("rlhf").warning(Bootstrap.REPLACES_DENSE)

    def _packs_values(self, batch: TrlBatch) -> bool:
        """Return whether the critic reads packed rows: if the policy does, and a trial of three rows succeeded."""
        if self.passes.mode == "packed" and not self._has_tried_critic:
            self._has_tried_critic = True
            ids, mask, num_completion = prompts_and_completions(batch)
            few = tried_rows(mask, num_completion)
            states = functools.partial(self.critic.states, ids[few], mask[few], num_completion)
            both = (functools.partial(states, is_packed=is_packed) for is_packed in (False, True))
            self._try(self.critic.model, "the critic's states", *both)
        return self.passes.mode == "packed"

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        # TRL leaves the policy in training mode for the rollout's log-probabilities
        with contextlib.nullcontext() if torch.is_grad_enabled() else in_evaluation_mode(model):
            return super()._get_per_token_logps_and_entropies(model, *args, **named)

    # --- the update ---

    def _prepare_inputs(self, generation_batch: Any) -> TrlBatch:
        if self.num_generations == 1 or not self.ppo.keeps_prompts:
            return super()._prepare_inputs(generation_batch)
        num_rows = self.args.per_device_train_batch_size * self.args.steps_per_generation
        first = self.accelerator.process_index * num_rows
        shuffle = functools.partial(shuffled_prompts, first=first, num_generations=self.num_generations)
        with temporary_attributes(grpo_trainer, shuffle_sequence_dict=shuffle):
            return super()._prepare_inputs(generation_batch)

    def _compute_loss(self, model: Any, inputs: TrlBatch) -> Tensor:
        coef = self.kl.coef if self.kl.where == "loss" else 0.0
        with temporary_attributes(self, beta=float(inputs.get(_COEF, coef))):
            loss = super()._compute_loss(model, inputs)
        self._log_update(loss, inputs)
        self._micro_batch = inputs
        if self.critic.shares_backward and self._mode == "train":
            loss = loss + self._value_loss(inputs)
        return loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Take TRL's step, then the critic's; the policy does not change during the critic's warmup."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        with during(self.extensions.heartbeat, CRITIC):
            if not self.critic.shares_backward:
                self.critic.backward(self._value_loss(self._micro_batch))
            if self.accelerator.sync_gradients:
                if not self.critic.shares_backward:
                    self.refuse_non_finite([], self._named_of_critic())
                rate, norm = self.critic.step()
                self._metrics["train"]["critic/learning_rate"].append(rate)
                self._metrics["train"]["critic/grad_norm"].append(norm)
        if self.state.global_step < self.critic.settings.warmup_steps:
            with self.critic.hidden_from_policy():
                for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
                    parameter.grad = None  # the policy's optimizer skips parameters without gradient
        return loss

    def _value_loss(self, inputs: TrlBatch) -> Tensor:
        """Return the critic's scalar loss on a micro-batch, normalised like the policy's."""
        settings = self.critic.settings
        mask = tokens_in_loss(inputs).bool()
        values = self.critic.values(inputs, is_packed=self._packs_values(inputs))
        losses, is_clipped = value_losses(values, inputs["rollout_values"], inputs["returns"], settings.value_clip)
        losses = losses.where(mask, 0.0)
        self._log_means(inputs, {"ppo/value_loss": losses, "ppo/value_clip_fraction": is_clipped})
        accumulation = self.current_gradient_accumulation_steps
        normaliser = POLICY_LOSSES[self.loss_type]
        if normaliser == "row":
            loss = (losses.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean() / accumulation / self.kept_share(inputs)
        elif normaliser == "max_length":
            num_rows = len(losses) * self.kept_share(inputs)
            loss = losses.sum() / (num_rows * self.max_completion_length) / accumulation
        else:
            # For dapo, and also for bnpo, divide by the window's tokens: with a micro-batch's own, a row's weight would
            # depend on its neighbours.
            tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
            loss = losses.sum() / (tokens * accumulation / self.args.steps_per_generation)
        return settings.loss_coef * loss

    def _log_update(self, loss: Tensor, inputs: TrlBatch) -> None:
        logps, mask = self._latest_logps, tokens_in_loss(inputs).bool()
        old = logps if inputs.get("old_per_token_logps") is None else inputs["old_per_token_logps"]
        ratio = (logps - old).exp()
        is_clipped = (ratio < 1 - self.epsilon_low) | (ratio > 1 + self.epsilon_high)
        divergence = k3(old, logps)
        measured = {"ppo/approx_kl_k3_old_new": divergence, "ppo/ratio_mean": ratio, "ppo/clip_fraction": is_clipped}
        self._log_means(inputs, measured)
        highest = self.accelerator.gather(ratio.where(mask, 0.0).max().reshape(1)).max()
        metrics = self._metrics[self._mode]
        window = self.current_gradient_accumulation_steps if self._mode == "train" else 1
        policy_loss = self.accelerator.reduce(loss.detach() * window, reduction="mean")
        ratio_max, loss_mean = torch.stack([highest.double(), policy_loss.double()]).tolist()
        self._ratio_max = max(self._ratio_max, ratio_max)
        if self._mode != "train" or self.accelerator.sync_gradients:  # the log would average those of a window
            metrics["ppo/ratio_max"].append(self._ratio_max)
            self._ratio_max = 0.0
        metrics["ppo/entropy"].append(metrics["entropy"][-1])
        metrics["ppo/policy_loss"].append(loss_mean)

    def _log_means(self, inputs: TrlBatch, tokens: dict[str, Tensor]) -> None:
        """Append means of (B, T) over the actions of all ranks.

        The log averages a window's micro-batches: each is divided by the actions of a micro-batch on average.
        """
        mask = tokens_in_loss(inputs).bool()
        sums = [mask.sum().double(), *(values.detach().double().where(mask, 0.0).sum() for values in tokens.values())]
        count, *totals = self._sum_over_ranks(torch.stack(sums)).tolist()
        _, divisor = inputs.get(IN_WINDOW, (0.0, count))
        for name, total in zip(tokens, totals, strict=True):
            self._metrics[self._mode][name].append(total / divisor if divisor else torch.nan)

    # --- beside the policy ---

    def create_optimizer(self, model: Any = None) -> Optimizer:
        """Create TRL's optimizer without the critic's parameters."""
        with self.critic.hidden_from_policy():
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create TRL's schedule, and the critic's optimizer and schedule."""
        schedule = super().create_scheduler(num_training_steps, optimizer)
        self.critic.prepare(self, num_training_steps)
        return schedule

    def _trained(self) -> Named:
        """Return name and parameter for everything in a checkpoint, including the critic's."""
        yield from super()._trained()
        yield from self._named_of_critic()

    def _named_of_critic(self) -> Named:
        # Those of a shared backbone are in the policy, and checked there.
        own = () if self.critic.shares_backward else self.critic.model.named_parameters()
        return ((f"critic.{name}", parameter) for name, parameter in own)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        with self.critic.hidden_from_policy():
            super()._save(output_dir, state_dict)

    def save_state(self, folder: Path) -> None:
        """Write the critic and the KL coefficient."""
        super().save_state(folder)
        if self.args.should_save:
            self.critic.save_state(folder / "critic")
            (folder / _STATE_FILE).write_text(json.dumps({"coef": self.kl.coef}), encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Restore the critic and the KL coefficient."""
        super().load_state(folder)
        self.critic.load_state(folder / "critic")
        coef = json.loads((folder / _STATE_FILE).read_text(encoding="utf-8"))["coef"]
        self.kl = replace(self.kl, coef=coef)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        assert self.state.best_model_checkpoint is not None
        self.critic.load_state(Path(self.state.best_model_checkpoint, "critic"))

    def _sum_over_ranks(self, sums: Tensor) -> Tensor:
        return cast(Tensor, self.accelerator.reduce(sums, reduction="sum"))

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"


def shuffled_prompts(rows: TrlBatch, *, first: int, num_generations: int) -> TrlBatch:
    """Return a rank's rows of a round with the prompts in random order, and a prompt's answers one after another.

    `first` is the number of rows on the ranks before: the answers of a prompt may begin there. Takes the place of TRL's
    `shuffle_sequence_dict`, which moves every row by itself.
    """
    num_rows = len(next(values for values in rows.values() if values is not None))
    prompts = torch.arange(first, first + num_rows) // num_generations - first // num_generations
    order = torch.randperm(int(prompts.max()) + 1)[prompts].argsort(stable=True)

    def in_order(values: Any) -> Any:
        if isinstance(values, Tensor):
            return values[order.to(values.device)] if values.ndim else values
        return values if values is None else [values[row] for row in order.tolist()]

    return {name: in_order(values) for name, values in rows.items()}


def rollout_metrics(
    rollout: Rollout, advantages: Advantages, settings: Ppo, kl: KlPenalty, sum_over_ranks: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """Return the rollout's metrics over the actions of all ranks (docs/reference/metrics.md)."""
    mask = rollout.is_action
    _, return_mean, return_std = whiten(advantages.returns, mask, sum_over_ranks)
    _, value_mean, _ = whiten(rollout.values, mask, sum_over_ranks)
    _, advantage_mean, advantage_std = whiten(advantages.raw, mask, sum_over_ranks)
    explained = explained_variance(rollout.values, advantages.returns, mask, sum_over_ranks)
    names = ("returns_mean", "returns_std", "values_mean", "advantages_mean", "advantages_std", "explained_variance")
    means = (return_mean, return_std, value_mean, advantage_mean, advantage_std, explained)
    values = torch.stack([mean.double() for mean in means]).tolist()
    metrics: dict[str, float] = {f"ppo/{name}": value for name, value in zip(names, values, strict=True)}
    rows = mask.any(dim=1)
    added = (settings.gamma * rollout.last_values)[rollout.is_bootstrapped & rows].double()
    divergence, low_variance = rollout.kl_tokens(k1), rollout.kl_tokens(k3)
    is_added = torch.ones_like(added)
    found = (mask, rows, added, is_added, advantages.kl_reward, rollout.scores, divergence, low_variance)
    zero = mask.new_zeros((), dtype=torch.float64)
    sums = torch.stack([zero if values is None else values.double().sum() for values in found])
    num_tokens, num_rows, bootstrap, num_bootstrapped, kl_reward, score, k1_sum, k3_sum = sum_over_ranks(sums).tolist()
    metrics["rewards/truncation/bootstrap_value"] = _ratio(bootstrap, num_bootstrapped)
    if kl.is_used:
        metrics["kl/k1_policy_ref"] = _ratio(k1_sum, num_tokens)
        metrics["kl/k3_policy_ref"] = _ratio(k3_sum, num_tokens)
        metrics["kl/k1_policy_ref_per_row"] = _ratio(k1_sum, num_rows)
        metrics["kl/coef"] = kl.coef
    if kl.where == "reward":
        metrics["rewards/kl/weighted_mean"] = _ratio(kl_reward, num_rows)
        metrics["ppo/rlhf_reward"] = _ratio(score + kl_reward, num_rows)
    return metrics


def _ratio(total: float, count: float) -> float:
    return total / count if count else torch.nan
