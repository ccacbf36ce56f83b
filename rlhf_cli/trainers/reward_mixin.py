"""Reward a TRL trainer by the reward stack, through `_calculate_rewards`.

TRL evaluates the stack's columns and gathers them into a matrix. This file settles it (offset, clip, normalise, gate,
exclude, aggregate) and returns it; TRL weighs, sums, baselines and scales as usual. Afterwards the metrics that TRL
took from the settled matrix are set to the raw scores, so that runs with other weights and gates are comparable.

RLOO's baseline of a row is the mean over the other rows, which is wrong for a reward that does not apply to all rows
(numerics/group_advantages.py). Then TRL gets scores from which its leave-one-out computes the correct advantages, so
that TRL still handles the KL in the reward and the normalisation.

Left-out rows (truncation=exclude, no score) are removed from the divisor of the loss, too: a row with a zeroed mask
adds 0 to TRL's sum, but shrinks every step. Each loss is linear in advantage and KL coefficient together, so
multiplying both by N/n gives the mean over the n of N rows (or micro-batches, by the loss) that count in a round of all
ranks; docs/how-to/ppo.md derives it. The share is that of the round, not of the optimizer step, so every row has the
same weight, however the rows are split into steps, micro-batches and processes.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import RLOOTrainer

from rlhf_cli.numerics.reward_columns import Fill
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.rewards.stack.component import RewardOutcome
from rlhf_cli.rewards.stack.reward_matrix import Settled, SettleRules, add_truncation, settle, token_rewards
from rlhf_cli.rewards.stack.reward_metrics import (
    advantage_shares,
    component_metrics,
    outcome_counts,
    rollout_columns,
    share_of_dead_groups,
    table_columns,
)
from rlhf_cli.rewards.stack.truncated_rows import FLAG, find_truncated, leave_out_scores, truncation_metrics
from rlhf_cli.runs.metrics_file import table_file
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES, Normaliser
from rlhf_cli.temporary_attributes import temporary_attributes
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.kept_rows import (
    IN_WINDOW,
    KEPT_BATCHES,
    KEPT_ROWS,
    count_metrics_over_kept,
    counts_and_shares,
    entropy_over_kept,
)
from rlhf_cli.truncation import COMPONENT, Endings

_SAME_ADVANTAGE = 1e-6
"""Advantages are TRL's if they differ by less than this share of the largest."""

if TYPE_CHECKING:
    from rlhf_cli.rewards.stack.dead_signal import DeadRound
    from rlhf_cli.trainers.completions_table import PartColumns
    from rlhf_cli.trainers.trl_protocol import TrlBatch


class RewardMixin(ExtendedTrainer):
    """For a TRL trainer with reward functions: score by a stack, as set by `extensions.rewards`.

    `loss_divisor` is the divisor of the trainer's loss, None if it follows from its `loss_type`.
    """

    loss_divisor: Normaliser | None
    _fill: Fill = "group"
    _scores_for_rloo: Tensor | None = None
    """(N, K): the scores that RLOO gets instead of the settled rewards, None if no entry is excluded."""
    _has_own_advantages: bool = False
    _settled: Settled
    _endings: Endings
    _running: dict[str, RunningDeviation]
    _counts: Tensor

    def __init__(self, *args: Any, **named: Any) -> None:
        rewards = self.extensions.rewards
        assert rewards is not None
        if self.extensions.ppo is not None or self._leaves_one_out:
            self._fill = "zero"
        self.reward_stack, self.aggregate = rewards.stack, rewards.aggregate
        self.is_dense, self.truncation = rewards.is_dense, rewards.truncation
        self.loss_divisor = rewards.loss_divisor
        super().__init__(*args, **named)
        self.reward_stack.decode = self._decode
        self._clip_range = getattr(self, "reward_clip_range", None)

    @functools.cached_property
    def _parts(self) -> PartColumns:
        """Return the columns of rewards' parts in the table of completions, which not every run keeps."""
        from rlhf_cli.trainers.completions_table import PartColumns

        return PartColumns()

    @functools.cached_property
    def _settle_rules(self) -> SettleRules:
        components = self.reward_stack.components
        return SettleRules(components, self.aggregate, self._num_generations, self.truncation, self._fill)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.processing_class.decode(list(ids), skip_special_tokens=True))

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Return TRL's matrix, (rows of all ranks, rewards), to weigh and sum; all-NaN rows are unscorable."""
        with self.reward_stack.batch():
            raw = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        stack = self.reward_stack
        outcomes = [stack.outcomes[name] for name in stack.names]
        device, names = raw.device, list(self.reward_func_names)
        fixed = _matrix([outcome.fixed for outcome in outcomes])
        raw, fixed, self._endings = self._on_cpu(raw, fixed, self._find_endings(inputs, completion_ids_list))
        if COMPONENT in names:  # a placeholder column: the component is added after all others are settled
            place = names.index(COMPONENT)
            raw = torch.cat([raw[:, :place], raw[:, place + 1 :]], dim=1)
            names.remove(COMPONENT)
        own = stack.weights(self.state.global_step, self.state.max_steps)
        environments = torch.ones(len(names) - len(own))
        weights = torch.cat([torch.tensor(own, dtype=torch.float32), environments])
        settled, self._running = settle(
            *(raw, fixed, weights, self._settle_rules, getattr(self, "_running", {})),
            endings=self._endings,
            environments=names[len(own) :],
            is_training=self.model.training,
        )
        self._settled = settled = add_truncation(settled, self.truncation, self._endings)
        self.reward_weights = settled.trl_weights
        self._counts = outcome_counts(outcomes, self.accelerator)
        self._log_table(inputs, outcomes)
        return (self._for_rloo() if self._leaves_one_out else settled.for_trl).to(device)

    def _on_cpu(self, raw: Tensor, fixed: Tensor, endings: Endings) -> tuple[Tensor, Tensor, Endings]:
        """Return the three of all ranks, on the CPU, in a single copy from a GPU.

        raw: (N, K) of all ranks; the others are of this rank.
        """
        own = torch.cat([fixed, endings.is_truncated.unsqueeze(1), endings.lengths.unsqueeze(1)], dim=1)
        everyones = self.accelerator.gather(own.to(raw.device))
        together = torch.cat([raw, everyones], dim=1).cpu()
        parts = together.split([raw.shape[1], fixed.shape[1], 1, 1], dim=1)
        raw, fixed, cut, lengths = (part.contiguous() for part in parts)
        return raw, fixed, Endings(cut[:, 0].bool(), lengths[:, 0].long(), endings.limit)

    @property
    def _leaves_one_out(self) -> bool:
        return issubclass(type(self), RLOOTrainer)

    def _for_rloo(self) -> Tensor:
        """Return the matrix that RLOO weighs and sums; corrected scores have clipped totals."""
        self._scores_for_rloo = None
        given = leave_out_scores(self._settled, self.aggregate, self._num_generations, self._clip_range)
        if given is None:
            return self._settled.for_trl
        matrix, self.reward_weights, self._scores_for_rloo = given
        self.reward_clip_range = None  # until TRL has computed advantages
        return matrix

    def _find_endings(self, inputs: list[dict[str, object]], completion_ids: list[list[int]]) -> Endings:
        """Return how this rank's rows ended; a dataset, rollout or environment may mark one as truncated."""
        environments = getattr(self, "environments", None) or [None] * len(inputs)  # RLOO has no environments
        flags = [
            row.get(FLAG) or getattr(environment, FLAG, False)
            for row, environment in zip(inputs, environments, strict=True)
        ]
        ending_ids = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        limit = self.max_completion_length
        stops = self.stops
        has_stopped = (lambda ids: False) if stops is None else (lambda ids: stops.length(ids) is not None)
        cut = find_truncated(completion_ids, ending_ids, limit, flags, has_stopped)
        return Endings(torch.tensor(cut), torch.tensor([len(ids) for ids in completion_ids]), limit)

    def _log_endings(self, metrics: dict[str, list[float]]) -> None:
        """Correct TRL's figures for stop strings: it takes a row without an end-of-sequence token for truncated."""
        cut, lengths = self._endings.is_truncated, self._endings.lengths.float()
        ended = lengths[~cut] if not cut.all() else lengths.new_zeros(1)
        metrics["completions/clipped_ratio"][-1] = cut.float().mean().item()
        for name, value in (("mean", ended.mean()), ("min", ended.min()), ("max", ended.max())):
            metrics[f"completions/{name}_terminated_length"][-1] = value.item()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self._leaves_one_out:
            self.reward_clip_range = self._clip_range
        settled = self._settled
        self._drop_unscorable(output)
        shares = self._set_advantages(output)
        metrics = self._metrics["train" if self.model.training else "eval"]
        if self.stops is not None:
            self._log_endings(metrics)
        for name, value in component_metrics(settled, self._counts).items():
            if (name in metrics and name.endswith(("/mean", "/std"))) or name in ("reward", "reward_std"):
                metrics[name][-1] = value  # TRL has just taken it from the settled matrix
            else:
                metrics[name].append(value)
        if self._scores_for_rloo is not None:  # TRL logged the mean of the corrected scores
            totals = settled.row_totals
            totals = totals[~totals.isnan()]
            metrics["reward"][-1] = totals.mean().item() if totals.numel() else torch.nan
            metrics["reward_std"][-1] = totals.std().item() if totals.numel() > 1 else torch.nan
        if alike := metrics.get("frac_reward_zero_std"):
            alike[-1] = share_of_dead_groups(self._compared_totals(), self._num_generations)
        for name, value in truncation_metrics(settled, self._endings).items():
            metrics[name].append(value)
        for name, value in shares.items():
            metrics[name].append(value)
        for index, name in enumerate(settled.names):
            overwrite_last(self._logs["rewards"][name], settled.raw[:, index].tolist())
        if self.args.log_completions:
            # The values that the functions returned: gates compare these, and TRL's matrix has rounded them to float32.
            scores = [self.reward_stack.outcomes[name].raw for name in self.reward_stack.names]
            everyones = zip(*gather_object(list(zip(*scores, strict=True))), strict=True)
            for name, scored in zip(self.reward_stack.names, everyones, strict=True):
                overwrite_last(self._logs["rewards"][name], scored)
            for column, values in self._parts.filled(self.reward_stack, output["advantages"]).items():
                overwrite_last(self._logs["extra"][column], gather_object(values))
        return output

    def _drop_unscorable(self, output: TrlBatch) -> None:
        """Remove unscorable rows from the loss: TRL only zeroes their advantage, while KL and entropy remain."""
        # These include rows that a custom aggregate gave no total.
        of_all = self._settled.for_trl.isnan().all(dim=1)
        if not of_all.any():
            return
        is_unscorable = of_all[self._own_rows].to(output["completion_mask"].device)
        keep = (~is_unscorable).to(output["completion_mask"].dtype).unsqueeze(1)
        output["completion_mask"] = output["completion_mask"] * keep
        if "tool_mask" in output:
            output["tool_mask"] = output["tool_mask"] * keep
        if "old_logps" in output:  # RLOO's, summed over the row before: exp(0 - old) of a long row is infinite
            output["old_logps"] = output["old_logps"].masked_fill(is_unscorable, 0.0)
        if "num_items_in_batch" in output:
            in_loss = output["completion_mask"] * output.get("tool_mask", 1)
            output["num_items_in_batch"] = self.accelerator.gather(in_loss.sum()).sum()

    def _set_advantages(self, output: TrlBatch) -> dict[str, float]:
        """Replace TRL's advantages if necessary, and return the components' shares of the used ones."""
        if self.is_dense:
            output["advantages"] = self._token_advantages(output)
            return {}
        everyones = self.accelerator.gather(output["advantages"])
        both = torch.cat([everyones.double(), self._beyond_totals(everyones).double().reshape(1)]).cpu()  # one wait
        on_cpu, are_of_totals, is_rloo = both[:-1], bool(both[-1] <= 0), self._leaves_one_out
        shares = advantage_shares(
            self._settled.names,
            self._summed_by_trl().double(),
            on_cpu,
            self.aggregate,
            self._num_generations,
            scale=None if is_rloo else self.scale_rewards,
            is_normalized=is_rloo and self.normalize_advantages,
            is_clipped=bool(self._clip_range),
            kl_coef=self.beta if is_rloo else 0.0,
        )
        if not shares or are_of_totals:
            return shares
        if not self._has_own_advantages and self.accelerator.is_main_process:
            what = "no rewards/NAME/advantage_share is logged: %s has advantages that are no sum of its rewards' parts"
            logging.getLogger("rlhf").warning(what, type(self).__name__)
        self._has_own_advantages = True
        return {}

    def _beyond_totals(self, advantages: Tensor) -> Tensor:
        """Return a scalar, at most 0 if (rows of all ranks,) advantages are those that TRL computes of the totals.

        Then they are the sum of the rewards' parts. Of RLOO's KL, which lies in them, only what each group's sum and
        TRL's log tell is known.
        """
        from rlhf_cli.numerics.group_advantages import grpo_advantages, rloo_advantages

        totals, each = self._compared_totals().to(advantages), self._num_generations
        if not self._leaves_one_out:
            beyond = advantages - grpo_advantages(totals, each, self.scale_rewards)
        else:
            beyond = advantages - rloo_advantages(totals, each, is_normalized=self.normalize_advantages)
            if self.beta:
                logged = torch.tensor(list(self._logs["advantages"])[-len(advantages) :]).to(advantages)
                beyond = torch.cat([beyond.view(-1, each).mean(dim=1), advantages[-len(logged) :] - logged])
        largest = torch.stack([advantages.abs().max(), *([totals.nan_to_num(0.0).abs().max()] if self.beta else [])])
        return beyond.abs().max() - _SAME_ADVANTAGE * largest.max()

    def _summed_by_trl(self) -> Tensor:
        """Return (rows of all ranks, rewards): the parts of the totals from which TRL computed advantages."""
        scores = self._settled.for_trl if self._scores_for_rloo is None else self._scores_for_rloo
        return scores * self._settled.trl_weights

    def _compared_totals(self) -> Tensor:
        """Return (rows of all ranks,), the totals that TRL compared within a group, NaN for a row without one."""
        parts = self._summed_by_trl()
        return torch.where(parts.isnan().all(dim=1), torch.nan, parts.nansum(dim=1))

    def _token_advantages(self, output: TrlBatch) -> Tensor:
        """Return (rows of this rank, tokens): process supervision over the tokens that the stack rewarded."""
        from rlhf_cli.numerics.group_advantages import process_advantages

        is_in_completion = output["completion_mask"].bool()
        values, is_rewarded = token_rewards(
            self.reward_stack.token_values, self._settled, is_in_completion, self._own_rows
        )
        # Groups may extend over ranks; each rank pads its tokens to its own longest completion.
        num_tokens = values.shape[2]
        width = self.accelerator.gather(torch.tensor([num_tokens], device=values.device)).max()
        missing = (0, int(width) - num_tokens)
        everyones = self.accelerator.gather(torch.nn.functional.pad(values.sum(dim=0), missing))
        rewarded = self.accelerator.gather(torch.nn.functional.pad(is_rewarded, missing))
        advantages = process_advantages(everyones, rewarded, self._num_generations, self.scale_rewards)
        overwrite_last(self._logs["advantages"], advantages[:, 0].tolist())
        own: Tensor = advantages[self._own_rows, :num_tokens] * is_in_completion
        return own

    def _log_table(self, inputs: list[dict[str, object]], outcomes: list[RewardOutcome]) -> None:
        """Add the dataset's columns and each row's results from the stack to the completions table."""
        if not self.args.log_completions:
            return
        from rlhf_cli.trainers.completions_table import TABLE_COLUMNS

        for outcome in outcomes:
            for column, values in outcome.extra.items():
                self._log_completion_extra(column, values)
        taken = TABLE_COLUMNS | set(self.reward_stack.names) | set(self._pending_extra_logs)
        for column in inputs[0]:
            if column not in taken:
                self._log_completion_extra(column, [row.get(column) for row in inputs])
        components = self.reward_stack.components
        columns = table_columns(self._settled, components, outcomes, self._own_rows)
        number = self._step // (self.args.steps_per_generation * self.num_iterations) if self.model.training else None
        columns |= rollout_columns(self._endings, self._own_rows, number, self.state.global_step)
        for column, values in (columns | self._parts.empty(self.reward_stack, len(inputs))).items():
            self._log_completion_extra(column, values)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as in TRL, and save the table of completions; an evaluation does not change the table of its step."""
        file = table_file(Path(self.args.output_dir), self.state.global_step)
        written = file.read_bytes() if not self.model.training and file.is_file() else None
        super().log(logs, start_time)
        if self.args.log_completions and self.accelerator.is_main_process:
            from rlhf_cli.trainers.completions_table import write_table

            write_table(self, file)
            if written is not None:  # TRL's GRPOTrainer wrote a mixture of both
                file.write_bytes(written)

    def save_state(self, folder: Path) -> None:
        """Write the running deviations."""
        from rlhf_cli.rewards.stack.scored_rows import write_running

        super().save_state(folder)
        if self.args.should_save:
            write_running(folder, getattr(self, "_running", {}))

    def load_state(self, folder: Path) -> None:
        """Restore the running deviations."""
        from rlhf_cli.rewards.stack.scored_rows import read_running

        super().load_state(folder)
        running = read_running(folder)
        if running is not None:
            self._running = running

    # --- the loss without left-out rows ---

    def _prepare_inputs(self, generation_batch: Any) -> TrlBatch:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return self._counted([inputs])[0]
        batches = self._buffered_inputs
        assert batches is not None
        if batches is not before:
            batches = self._buffered_inputs = self._counted(batches)
        return batches[self._step % self.args.steps_per_generation]

    def _counted(self, batches: list[TrlBatch]) -> list[TrlBatch]:
        """Return the micro-batches of a round with what counts in them."""
        counts, shares = counts_and_shares(batches, self.accelerator)
        window = min(self.args.gradient_accumulation_steps, len(batches))
        means = [part.mean(dim=0).tolist() for part in counts.split(window) for _ in part]
        return [batch | shares | {IN_WINDOW: mean} for batch, mean in zip(batches, means, strict=True)]

    def _compute_loss(self, model: Any, inputs: TrlBatch) -> Tensor:
        is_whole = inputs.get(KEPT_ROWS, 1.0) == 1.0
        if is_whole and any(inputs.get(IN_WINDOW, [1.0])):  # else no row counts
            return super()._compute_loss(model, inputs)
        share = self.kept_share(inputs)
        metrics = self._metrics["train" if self.model.training else "eval"]
        before = {name: len(values) for name, values in metrics.items()}
        with temporary_attributes(self, beta=self.beta / share), entropy_over_kept(self, inputs[KEPT_BATCHES]):
            loss = super()._compute_loss(model, inputs | {"advantages": inputs["advantages"] / share})
        is_sequence_level = self.loss_divisor is None and getattr(self, "importance_sampling_level", "") == "sequence"
        counts_clipped_rows = is_sequence_level or not hasattr(self, "loss_type")  # RLOO
        new = {name: values for name, values in metrics.items() if len(values) > before.get(name, 0)}
        count_metrics_over_kept(new, inputs, self.accelerator, counts_clipped_rows=counts_clipped_rows)
        return loss

    def kept_share(self, inputs: TrlBatch) -> float:
        """Return the share of the loss's divisor that is not left out; 1 if it divides by tokens of the round."""
        divisor = self.loss_divisor or POLICY_LOSSES[self.loss_type]
        if divisor == "window":
            return 1.0
        share: float = inputs.get(KEPT_BATCHES if divisor == "micro-batch" else KEPT_ROWS, 1.0)
        return share

    # --- a round without a signal ---

    def dead_round(self, advantages: Tensor) -> DeadRound | None:
        """Return a description of the round if every advantage of all ranks is 0, up to rounding of equal totals."""
        # What is compared: the rows of a prompt, or with a critic those of the round.
        group_size = self._settled.raw.shape[0] if self.extensions.ppo is not None else self._num_generations
        counted = [name for name, counts in zip(self._settled.names, self._settled.is_counted, strict=True) if counts]
        outcomes = [one for name, one in self.reward_stack.outcomes.items() if name in counted]
        is_by_token = self.is_dense and any(row is not None for outcome in outcomes for row in outcome.tokens)
        own = torch.tensor([[0.0, float(is_by_token)]], device=self.accelerator.device)
        if advantages.numel():
            own[0, 0] = advantages.detach().abs().max()
        largest, by_token = self.accelerator.gather(own).max(dim=0).values.tolist()
        # A row's total does not determine token rewards, and a critic's errors always give advantages.
        if largest != 0.0 and (by_token or share_of_dead_groups(self._compared_totals(), group_size) < 1.0):
            return None
        from rlhf_cli.rewards.stack.dead_signal import DeadRound, component_statistics

        left_out = self.truncation.leaves_out(self._endings)
        valued = self.truncation.goes_on(self._endings) & self.truncation.replaces
        counts = [(row[0], row[2]) for row in self._counts.tolist()]  # rows no gate closed, rows that failed
        return DeadRound(
            step=self.state.global_step + 1,
            components=component_statistics(self._settled, self.reward_stack.components, counts, group_size),
            left_out=0.0 if left_out is None else left_out.float().mean().item(),
            valued=valued.float().mean().item(),
        )

    @property
    def _num_generations(self) -> int:
        """Return the group size that TRL samples in training or in an evaluation."""
        return self.num_generations if self.model.training else self.num_generations_eval

    @property
    def _own_rows(self) -> slice:
        """Return this rank's rows among those of all ranks."""
        accelerator = self.accelerator
        count = self._settled.raw.shape[0] // accelerator.num_processes
        return slice(accelerator.process_index * count, (accelerator.process_index + 1) * count)


def _matrix(columns: list[list[float | None]]) -> Tensor:
    """Return (rows, columns) with NaN for None."""
    matrix = torch.full((len(columns[0]), len(columns)), torch.nan)
    for index, column in enumerate(columns):
        if column.count(None) < len(column):
            matrix[:, index] = torch.tensor([torch.nan if value is None else value for value in column])
    return matrix


def overwrite_last(logged: deque[Any], values: Sequence[Any]) -> None:
    """Replace the values that TRL logged last; its logs hold one training round, an evaluation may be larger."""
    kept = values[-len(logged) :]
    for row, value in enumerate(kept, start=-len(kept)):
        logged[row] = value
