"""Generate rollouts without dead rows and keep their log-probabilities.

TRL calls the policy's `generate`. If a rollout is used for several updates, in RLOO, and under PPO's KL penalty, TRL
computes each token's log-probability again, although generation has just computed it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from rlhf_cli.models.live_generation import Generating, GenerationMode, drops_out, expected_mode
from rlhf_cli.models.scalar_heads import CRITIC_HEAD
from rlhf_cli.models.stop_strings import StopStrings
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.trainers.extensions import ExtendedTrainer

Rows = list[tuple[list[int], list[int]]]
"""The token ids of every row's prompt and completion."""
Adapters = frozenset[tuple[tuple[str, ...], bool]]
"""The adapters that layers use, and whether they are disabled."""


@dataclass(frozen=True)
class KeptLogps:
    """(B, C) float32 `logps`, 0 after a row's end; they are only valid for these adapters and rows."""

    logps: Tensor
    adapters: Adapters
    rows: Rows

    @classmethod
    def of(cls, model: nn.Module, logps: Tensor, rows: Rows) -> KeptLogps:
        """Return the log-probabilities of `rows` under `model` in its current state."""
        return cls(logps, _adapters_in_use(model), rows)

    def is_of(self, model: nn.Module, ids: Tensor, mask: Tensor, num_completion: int) -> bool:
        """Return whether these belong to the rows of (B, P + C) `ids`, and to `model` in its current state."""
        if _adapters_in_use(model) != self.adapters:
            return False
        ids, mask = torch.stack([ids, mask.to(ids.dtype)]).cpu()  # a GPU is waited for once
        parts = slice(None, -num_completion), slice(-num_completion, None)
        found = [
            [row[is_token].tolist() for row, is_token in zip(ids[:, part], mask[:, part].bool(), strict=True)]
            for part in parts
        ]
        return self.rows == list(zip(*found, strict=True))

    def padded(self, num_tokens: int) -> Tensor:
        """Return (B, num_tokens), padded or cut: a round is as long as its longest row, and may be padded further."""
        missing = num_tokens - self.logps.shape[1]
        return nn.functional.pad(self.logps, (0, missing)) if missing > 0 else self.logps[:, :num_tokens]


def computes_as_it_samples(model: nn.Module, mixed_precision: str) -> bool:
    """Return whether a pass over a whole row equals sampling it, up to float32 rounding.

    In half precision, the two differ by some per cent of a token's probability, and the update is compared with TRL's
    pass. With dropout, the pass uses a different, thinned model.
    """
    is_float32 = all(weight.dtype is torch.float32 for weight in model.parameters() if weight.is_floating_point())
    return mixed_precision == "no" and is_float32 and not drops_out(model)


def _adapters_in_use(model: nn.Module) -> Adapters:
    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    return frozenset((tuple(layer.active_adapters), layer.disable_adapters) for layer in layers)


def _sent(parameters: Callable[[], Iterator[tuple[str, Tensor]]], *, copies: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield what vLLM is sent of a model: not the head of a critic that shares its body, which vLLM does not know.

    TRL merges an adapter into the weights, yields them and takes it out of them again. The sender of vLLM's server
    reads the last of them, up to a gigabyte, after that: without `copies` it sends the base model.
    """
    for name, parameter in parameters():
        if not name.startswith(f"{CRITIC_HEAD}."):
            yield name, parameter.clone() if copies else parameter


_CHECK_EVERY = 100
"""Number of rounds between comparisons of kept and recomputed log-probabilities; the first round is compared."""
_MOST_APART = 0.01
"""Largest difference of a token in nats. float32 rounding is below 1e-3; this much moves a ratio by 1 %, a twentieth of
PPO's clip range."""


class RolloutMixin(ExtendedTrainer):
    """For a TRL trainer that generates: generate as set by `extensions.rewards.generation`."""

    _generating: Generating
    _kept_logps: KeptLogps | None = None
    """Log-probabilities of the current rollout, until they are used."""
    _is_compared: bool = False
    """Whether this process has compared a round's kept log-probabilities with recomputed ones."""
    _why_not_kept: str | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        assert self.extensions.rewards is not None
        self._generating = Generating(is_plain=self.extensions.rewards.generation == "plain")
        super().__init__(*args, **named)
        self.stops = StopStrings.of(self._tokenizer, self.args.generation_kwargs)
        if self.stops is not None and not self.use_vllm:
            self._generating.stops = self.stops
            # `generate` gets them as a criterion: of a setting, it would ask for a tokenizer that TRL does not give it
            self.generation_config.stop_strings = self.generation_kwargs["stop_strings"] = None
        if self.use_vllm:
            vllm = self.vllm_generation
            vllm._iter_named_params = partial(_sent, vllm._iter_named_params, copies=vllm.mode == "server")

    @property
    def generation_mode(self) -> GenerationMode:
        """Return how completions are generated and why: for the last ones, or the expected mode before the first."""
        if self._generating.mode is not None:
            return self._generating.mode
        if self.use_vllm:
            return GenerationMode("plain", "vLLM generates")
        if self.use_transformers_continuous_batching:
            return GenerationMode("plain", "transformers' continuous batching generates")
        model = self.accelerator.unwrap_model(self.model)
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        return expected_mode(inner, self.generation_config, is_plain=self._generating.is_plain)

    def slow_paths(self) -> dict[str, str]:
        found, mode = super().slow_paths(), self.generation_mode
        has_engine = self.use_vllm or self.use_transformers_continuous_batching
        if self._why_not_kept is not None:
            found["keeping of log-probabilities"] = self._why_not_kept
        if set(IMAGES) & set(self.train_dataset.column_names):
            found["the check of prompt lengths"] = "only the processor knows how many tokens an image has"
        return found if mode.name == "live" or has_engine else found | {"live generation": mode.why}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self._kept_logps = None

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        generating, model = self._generating, self.model
        generating.logps_temperature = self.temperature if self._keeps_logps else None
        self._kept_logps = None
        with generating.of(model):
            generated = super()._generate_single_turn(*args, **named)
        completions = generated[0] if isinstance(generated, tuple) else generated  # RLOO returns no more
        if generating.stops is not None:
            completions[:] = map(generating.stops.cut, completions)
        logps = generating.take_logps()
        if logps is not None:
            prompts = args[0] if args else named["prompt_ids"]
            self._kept_logps = KeptLogps.of(model, logps, list(zip(prompts, completions, strict=True)))
        return generated

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        compute = super()._get_per_token_logps_and_entropies
        kept = None if torch.is_grad_enabled() or compute_entropy or model is not self.model else self._kept_logps
        if kept is None or not kept.is_of(model, input_ids, attention_mask, logits_to_keep):
            return compute(model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others)
        self._kept_logps = None
        logps = kept.padded(logits_to_keep)
        round_number = self._step // (self.args.steps_per_generation * self.num_iterations)
        is_due = round_number % _CHECK_EVERY == 0
        if self.model.training and (is_due or not self._is_compared):
            self._is_compared = True
            computed, _, _ = compute(model, input_ids, attention_mask, logits_to_keep, batch_size, **others)
            apart = (computed - logps).abs()[attention_mask[:, -logits_to_keep:].bool()]
            if self._is_too_far(apart, is_logged=is_due):
                return computed, None, None
        return logps, None, None

    @property
    def _keeps_logps(self) -> bool:
        """Return whether the log-probabilities of rollout tokens are needed again, and sampling gives them."""
        has_penalty = self.extensions.ppo is not None and self.extensions.ppo.kl.is_used
        steps = self.args.steps_per_generation * self.num_iterations
        rewards = self.extensions.rewards
        uses_old_logps = rewards is not None and rewards.algorithm.uses_old_logps
        is_off_policy = self.args.gradient_accumulation_steps % steps != 0
        is_needed = uses_old_logps or has_penalty or is_off_policy
        # Between turns lies the output of a tool, or what a rollout function puts there; RLOO has neither.
        has_turns = bool(getattr(self, "tools", None)) or getattr(self, "rollout_func", None) is not None
        is_right = not has_turns and self._why_not_kept is None
        return is_needed and is_right and computes_as_it_samples(self.model, self.accelerator.mixed_precision)

    def _is_too_far(self, differences: Tensor, *, is_logged: bool) -> bool:
        """Return whether (tokens,) kept log-probabilities of any rank are wrong; then no more are kept."""
        largest = differences.max() if differences.numel() else differences.new_zeros(())
        own = torch.stack([differences.sum(), differences.new_tensor(differences.numel()), largest])
        totals, counts, mosts = zip(*self.accelerator.gather(own.unsqueeze(0)).tolist(), strict=True)
        total, count, most, metrics = sum(totals), sum(counts), max(mosts), self._metrics["train"]
        if is_logged:  # a resumed run compares once more, and logs what the whole run logs
            metrics["sampling/kept_logp_difference/mean"].append(total / max(count, 1))
            metrics["sampling/kept_logp_difference/max"].append(most)
        if most <= _MOST_APART:
            return False
        self._why_not_kept = f"those that sampling gave are up to {most:.2g} nats off those of a pass over the rows"
        if self.accelerator.is_main_process:
            logging.getLogger("rlhf").warning("log-probabilities are computed again: %s", self._why_not_kept)
        return True
