"""Generate rollouts without dead rows, and draw a round again until its groups differ in a named raw reward.

The second is DAPO's dynamic sampling (arXiv 2503.14476): a group whose rewards are equal has advantages of 0. The round
keeps the groups that differ, and others take the places of the rest. Which prompts are drawn next follows from the
seed, the round and the draw, so a checkpoint needs no state. Every draw is as large as the round: all ranks draw
equally often, and each fills its own places.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from trl.trainer.utils import pad

from rlhf_cli.models.live_generation import Generating, GenerationMode, StopStrings, expected_mode
from rlhf_cli.models.scalar_heads import CRITIC_HEAD
from rlhf_cli.rewards.stack.reward_metrics import differing_groups, share_of_dead_groups
from rlhf_cli.tables.metrics import DRAWS, UNUSED_TOKENS
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.tables.trl_values import KEPT
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.left_out_mixin import tokens_in_loss
from rlhf_cli.trainers.reward_mixin import RewardMixin, overwrite_last
from rlhf_cli.trainers.trl_protocol import TrlBatch

TOTAL = "total"
_OF_A_DRAW = ("_settled", "_given", "_endings", "_counts")


def _sent(parameters: Callable[[], Iterator[tuple[str, Tensor]]], *, copies: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield what vLLM is sent of a model: not the head of a critic that shares its body, which vLLM does not know.

    TRL merges an adapter into the weights, yields them and takes it out of them again. The sender of vLLM's server
    reads the last of them, up to a gigabyte, after that: without `copies` it sends the base model.
    """
    for name, parameter in parameters():
        if not name.startswith(f"{CRITIC_HEAD}."):
            yield name, parameter.clone() if copies else parameter


@contextlib.contextmanager
def _kept_precision(model: Module) -> Iterator[None]:
    """Restore a model's mode, weights and buffers on exit: for continuous batching, TRL casts them and calls `train()`.

    Trained in bfloat16, weights would lose small updates, and positions would be rounded.
    """
    is_training = model.training
    weights = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for parameter, data in weights:
            parameter.data = data
        for module, held in buffers:
            module._buffers.update(held)
        if not is_training:
            model.eval()


class RolloutMixin(ExtendedTrainer):
    """For a TRL trainer that generates: generate as set by `extensions.rewards.generation`."""

    _generating: Generating

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
        if set(IMAGES) & set(self.train_dataset.column_names):
            found["the check of prompt lengths"] = "only the processor knows how many tokens an image has"
        return found if mode.name == "live" or has_engine else found | {"live generation": mode.why}

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        is_cast = self.use_transformers_continuous_batching
        with self._generating.of(self.model), _kept_precision(self.model) if is_cast else contextlib.nullcontext():
            generated = super()._generate_single_turn(*args, **named)
        completions = generated[0] if isinstance(generated, tuple) else generated  # RLOO returns no more
        if self._generating.stops is not None:
            completions[:] = map(self._generating.stops.cut, completions)
        return generated


@dataclass(frozen=True)
class Draw:
    """A scored rollout of this rank: TRL's batch, which groups differ (groups,), and the tokens of its rows (B,)."""

    output: TrlBatch
    differs: Tensor
    lengths: Tensor


class SamplingMixin(RewardMixin):
    """For a TRL trainer that compares groups: fill a round with groups that differ, as in `rewards.keep_groups`."""

    _has_warned: bool = False

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        keep = self.extensions.rewards.keep_groups if self.extensions.rewards is not None else None
        assert keep is not None
        assert self.args.generation_batch_size is not None  # TRL has computed it
        self.keep_groups = keep
        rows = self.args.generation_batch_size * keep.tries  # the table shows all draws
        self._logs = {
            name: defaultdict(lambda: deque(maxlen=rows)) if isinstance(column, dict) else deque(maxlen=rows)
            for name, column in self._logs.items()
        }

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return self._drawn(inputs).output
        for column in self._logs.values():
            column.clear()
        draws, num_groups = list[Draw](), len(inputs) // self._num_generations
        liveliest: tuple[float, dict[str, object]] = (torch.inf, {})
        while len(draws) < self.keep_groups.tries:
            draws.append(self._drawn(inputs if not draws else self._further_rows(len(draws), num_groups)))
            dead = share_of_dead_groups(self.algorithm.compared(self._given), self._num_generations)
            if dead < liveliest[0]:
                liveliest = dead, {name: getattr(self, name) for name in _OF_A_DRAW}
            found = sum(draw.differs.sum() for draw in draws)
            everyones = self.accelerator.gather(torch.as_tensor([found], device=self.accelerator.device))
            if everyones.min() >= num_groups:
                break
        vars(self).update(liveliest[1])  # the guard of rounds without a signal reads them
        chosen = chosen_groups([draw.differs for draw in draws])
        self._log_draws(draws, chosen)
        if len(draws) == 1:  # the same on all ranks, which gather below
            return draws[0].output
        output = joined([draw.output for draw in draws], chosen, self._num_generations, self._tokenizer.pad_token_id)
        if "num_items_in_batch" in output:
            output["num_items_in_batch"] = self.accelerator.gather(tokens_in_loss(output).sum()).sum()
        return output

    def _drawn(self, inputs: list[dict[str, Any]]) -> Draw:
        if self.args.log_completions:
            self._log_completion_extra(KEPT, [True] * len(inputs))
        output = super()._generate_and_score_completions(inputs)
        settled, by = self._settled, self.keep_groups.by
        values = self.algorithm.compared(self._given) if by == TOTAL else settled.raw[:, settled.names.index(by)]
        values = values.masked_fill(settled.totals.isnan(), torch.nan)[self._own_rows]  # a left-out row tells nothing
        return Draw(output, differing_groups(values, self._num_generations), self._endings.lengths[self._own_rows])

    def _further_rows(self, draw: int, num_groups: int) -> list[dict[str, Any]]:
        """Return this rank's rows of a further draw: others at random, or the next ones if rows stay in order."""
        number = self._step // (self.args.steps_per_generation * self.num_iterations)
        num_rows, rank = len(self.train_dataset), self.accelerator.process_index
        a_round = num_groups * self.accelerator.num_processes
        if self.shuffle_dataset:
            order = np.random.default_rng([self.args.seed, number, draw]).permutation(num_rows)
        else:
            order = np.arange(num_rows) + (number + draw) * a_round
        places = order[np.arange(rank * num_groups, (rank + 1) * num_groups) % num_rows] % num_rows
        return [dict(self.train_dataset[int(place)]) for place in places for _ in range(self._num_generations)]

    def _log_draws(self, draws: list[Draw], chosen: list[tuple[int, int]]) -> None:
        """Log what the draws cost, mark the rows of the table that are trained on, and warn if no group differs."""
        each, accelerator = self._num_generations, self.accelerator
        is_chosen = torch.zeros(len(draws), len(chosen), dtype=torch.bool)
        for draw, group in chosen:
            is_chosen[draw, group] = True
        differs = torch.stack([draw.differs for draw in draws])
        lengths = torch.stack([draw.lengths.view(-1, each).sum(dim=1) for draw in draws])
        own = [differs.sum(), (is_chosen & differs).sum(), (lengths * is_chosen).sum(), lengths.sum()]
        sums = torch.stack(own).double().to(accelerator.device)
        num_differing, num_filled, used, tokens = accelerator.reduce(sums, reduction="sum").tolist()
        num_groups = len(chosen) * accelerator.num_processes
        for name, value in {
            DRAWS: float(len(draws)),
            "sampling/differing_share": num_differing / (num_groups * len(draws)),
            "sampling/filled_share": num_filled / num_groups,
            "sampling/tokens": tokens,
            UNUSED_TOKENS: 1 - used / max(tokens, 1),
        }.items():
            self._metrics["train"][name].append(value)
        if self.args.log_completions:
            rows = is_chosen.repeat_interleave(each, dim=1).unsqueeze(0).contiguous().to(accelerator.device)
            overwrite_last(self._logs["extra"][KEPT], accelerator.gather(rows).transpose(0, 1).flatten().tolist())
        if num_differing == 0 and not self._has_warned and accelerator.is_main_process:
            self._has_warned = True
            logging.getLogger("rlhf").warning(
                "step %d: no group differs in %s after %d draws; such a round trains on its first draw",
                *(self.state.global_step + 1, self.keep_groups.by, len(draws)),
            )


def chosen_groups(differs: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return (draw, group) for each place of a round, from (groups,) bool by draw.

    Groups of the first draw keep their places if they differ, or if no other draw has a differing group left.
    """
    further = ((draw, int(group)) for draw in range(1, len(differs)) for group in differs[draw].nonzero())
    return [(0, place) if keeps else next(further, (0, place)) for place, keeps in enumerate(differs[0].tolist())]


def joined(outputs: Sequence[TrlBatch], chosen: Sequence[tuple[int, int]], each: int, pad_id: int) -> TrlBatch:
    """Return the batch of the chosen (draw, group) from batches of equally many rows, `each` to a group.

    (B, T) tensors are padded as TRL pads them: prompts on the left, token ids with `pad_id`, a tool mask with 1.
    """
    paddings = {"prompt_ids": pad_id, "completion_ids": pad_id, "tool_mask": 1}
    together: TrlBatch = {}
    for name, first in outputs[0].items():
        if first.ndim == 0:
            together[name] = first  # num_items_in_batch
            continue
        rows = [row for draw, group in chosen for row in outputs[draw][name].unflatten(0, (-1, each))[group]]
        side = "left" if name.startswith("prompt_") else "right"
        together[name] = pad(rows, paddings.get(name, 0), side) if first.ndim > 1 else torch.stack(rows)
    return together
