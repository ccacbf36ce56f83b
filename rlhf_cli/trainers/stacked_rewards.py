"""Reward a TRL trainer by the reward stack, through `_calculate_rewards`.

TRL reads a table's columns before it computes advantages, so a column is added empty and filled later.

TRL evaluates the stack's columns and gathers them into a matrix. This file settles it (offset, clip, normalise, gate,
exclude, aggregate) and returns it; TRL weighs, sums, baselines and scales as usual. Afterwards the metrics that TRL
took from the settled matrix are set to the raw scores, so that runs with other weights and gates are comparable.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet
import torch
from accelerate.utils import gather_object
from torch import Tensor

from rlhf_cli.numerics.group_advantages import process_advantages
from rlhf_cli.numerics.reward_columns import Fill, RunningDeviation
from rlhf_cli.rewards.stack.component import RewardOutcome
from rlhf_cli.rewards.stack.dead_signal import share_of_dead_groups
from rlhf_cli.rewards.stack.reward_matrix import Settled, token_rewards
from rlhf_cli.rewards.stack.reward_metrics import (
    TOTAL_COLUMN,
    Counts,
    advantage_shares,
    component_metrics,
    rollout_columns,
    table_columns,
)
from rlhf_cli.rewards.stack.scored_rows import read_running, write_running
from rlhf_cli.rewards.stack.settled_round import settle_round
from rlhf_cli.rewards.stack.truncation import COMPONENT, FLAG, Endings, find_truncated, truncation_metrics
from rlhf_cli.runs.checkpoint_folders import checkpoint_folder
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.trainers.additions import Stack
from rlhf_cli.trainers.in_run_folder import InRunFolder
from rlhf_cli.trainers.left_out_rows import WithoutLeftOut
from rlhf_cli.trainers.trl_protocol import TrlBatch

_COLUMN = "{}.parts"


class PartColumns:
    """The rewards that have returned parts so far, on any rank: their columns stay in all later tables.

    Columns are gathered one by one, so every rank needs the same ones in the same order, whatever its rows got.
    """

    def __init__(self) -> None:
        self._names: list[str] = []

    def empty(self, stack: Stack, num_rows: int) -> dict[str, list[object]]:
        """Return column -> one None per row of this rank, for the rewards that have returned parts so far.

        Every rank must call this.
        """
        own = [name for name in stack.names if any(row is not None for row in stack.outcomes[name].tokens)]
        named = {*self._names, *gather_object(own)}
        self._names = [name for name in stack.names if name in named]
        return {_COLUMN.format(name): [None] * num_rows for name in self._names}

    def filled(self, stack: Stack, advantages: Tensor) -> dict[str, list[str | None]]:
        """Return column -> one JSON text per row of this rank: start, end, text, reward and advantage of each part.

        advantages: (rows of this rank, tokens), or (rows,) if all tokens of a row share one. A part's advantage is the
        mean over its tokens, null if it has no tokens.
        """
        return {
            _COLUMN.format(name): [_as_json(stack, name, row, advantages[row]) for row in range(len(advantages))]
            for name in self._names
        }


def _as_json(stack: Stack, name: str, row: int, advantages: Tensor) -> str | None:
    parts = stack.parts(name, row)
    if parts is None:
        return None
    of_parts = []
    for part in parts:
        of_tokens = advantages[list(part.tokens)] if advantages.ndim and part.tokens else advantages
        advantage = of_tokens.mean().item() if part.tokens else None
        shown = {"start": part.start, "end": part.end, "text": part.text, "reward": part.reward}
        of_parts.append({**shown, "advantage": advantage})
    return json.dumps(of_parts, ensure_ascii=False)


_TABLE_COLUMNS = {"step", "prompt", "completion", "advantage", TOTAL_COLUMN}
"""Columns that the completions table always has."""

_Logged = TypeVar("_Logged")


class WithRewardStack(WithoutLeftOut, InRunFolder):
    """For a TRL trainer with reward functions: score by a stack, as set by `additions.rewards`."""

    reward_stack: Stack
    _fill: Fill = "group"
    _settled: Settled
    _endings: Endings
    _running: dict[str, RunningDeviation]
    _counts: Counts

    def __init__(self, *args: Any, **named: Any) -> None:
        rewards = self.additions.rewards
        assert rewards is not None
        self.reward_stack, self.aggregate = rewards.stack, rewards.aggregate
        self.is_dense, self.truncation = rewards.is_dense, rewards.truncation
        self.loss_divisor = rewards.loss_divisor
        super().__init__(*args, **named)
        self.reward_stack.decode = self._decode
        self._parts = PartColumns()

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.processing_class.decode(list(ids), skip_special_tokens=True))

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        """Return TRL's matrix, (rows of all ranks, rewards), to weigh and sum; all-NaN rows are unscorable."""
        with self.reward_stack.batch():
            raw = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        stack = self.reward_stack
        outcomes = [stack.outcomes[name] for name in stack.names]
        fixed = self.accelerator.gather(_matrix([outcome.fixed for outcome in outcomes], raw))
        names = list(self.reward_func_names)
        if COMPONENT in names:  # a placeholder column: the component is added after all others are settled
            place = names.index(COMPONENT)
            raw = torch.cat([raw[:, :place], raw[:, place + 1 :]], dim=1)
            names.remove(COMPONENT)
        own = stack.weights(self.state.global_step, self.state.max_steps)
        environments = torch.ones(len(names) - len(own))
        weights = torch.cat([torch.tensor(own, dtype=torch.float32), environments]).to(raw.device)
        self._endings = self._find_endings(inputs, completion_ids_list)
        settled, self._running = settle_round(
            raw,
            fixed,
            weights,
            stack.components,
            getattr(self, "_running", {}),
            names=names,
            aggregate=self.aggregate,
            num_generations=self._num_generations,
            is_training=self.model.training,
            truncation=self.truncation,
            endings=self._endings,
            fill=self._fill,
        )
        self._settled = settled
        self.reward_weights = settled.trl_weights
        self._counts = Counts.of(outcomes, self.accelerator)
        self._log_table(inputs, outcomes)
        return settled.for_trl

    def _find_endings(self, inputs: list[dict[str, object]], completion_ids: list[list[int]]) -> Endings:
        """Return how the rows of all ranks ended; a dataset, rollout or environment may mark one as truncated."""
        environments = getattr(self, "environments", None) or [None] * len(inputs)  # RLOO has no environments
        flags = [
            row.get(FLAG) or getattr(environment, FLAG, False)
            for row, environment in zip(inputs, environments, strict=True)
        ]
        ending_ids = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        limit = self.max_completion_length
        endings = torch.tensor(
            [find_truncated(completion_ids, ending_ids, limit, flags), [len(ids) for ids in completion_ids]],
            device=self.accelerator.device,
        )
        cut, lengths = self.accelerator.gather(endings.T.contiguous()).T
        return Endings(cut.bool(), lengths, limit)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        settled = self._settled
        self._drop_unscorable(output)
        shares = self._set_advantages(output)
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in component_metrics(settled, self._counts).items():
            if (name in metrics and name.endswith(("/mean", "/std"))) or name in ("reward", "reward_std"):
                metrics[name][-1] = value  # TRL has just taken it from the settled matrix
            else:
                metrics[name].append(value)
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
        is_unscorable = self._settled.for_trl.isnan().all(dim=1)[self._own_rows]
        if not self.accelerator.gather(is_unscorable.any().reshape(1)).any():
            return
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
        everyones = self.accelerator.gather(output["advantages"]).double().cpu()
        contributions = self._summed_by_trl().double().cpu()
        names = self._settled.names
        return advantage_shares(self, names, contributions, self.aggregate, self._num_generations, everyones)

    def _summed_by_trl(self) -> Tensor:
        """Return (rows of all ranks, rewards): the parts of the totals from which TRL computed advantages."""
        return self._settled.for_trl * self._settled.trl_weights

    def _compared_totals(self) -> Tensor:
        """Return (rows of all ranks,), the totals that TRL compared within a group, NaN for a row without one."""
        parts = self._summed_by_trl()
        return torch.where(parts.isnan().all(dim=1), torch.nan, parts.nansum(dim=1))

    def _token_advantages(self, output: TrlBatch) -> Tensor:
        """Return (rows of this rank, tokens): process supervision over the tokens that the stack rewarded."""
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
        for outcome in outcomes:
            for column, values in outcome.extra.items():
                self._log_completion_extra(column, values)
        taken = _TABLE_COLUMNS | set(self.reward_stack.names) | set(self._pending_extra_logs)
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
        file = Path(self.args.output_dir, "completions", f"completions_{self.state.global_step:05d}.parquet")
        written = file.read_bytes() if not self.model.training and file.is_file() else None
        super().log(logs, start_time)
        if self.args.log_completions and self.accelerator.is_main_process:
            self._write_completions(file)
            if written is not None:  # TRL's GRPOTrainer wrote a mixture of both
                file.write_bytes(written)

    def _write_completions(self, file: Path) -> None:
        """Write the completions table for all trainers.

        TRL's GRPOTrainer saves it to disk, its RLOOTrainer only to wandb.
        """
        logs = self._logs
        if file.exists() or not logs["prompt"]:
            return
        columns = {
            "step": [self.state.global_step] * len(logs["prompt"]),
            "prompt": logs["prompt"],
            "completion": logs["completion"],
            **logs["rewards"],
            **logs["extra"],
            "advantage": logs["advantages"],
        }
        file.parent.mkdir(exist_ok=True)
        # TRL's own table has null for missing scores instead of NaN.
        rows = {name: list(map(finite_or_none, values)) for name, values in columns.items()}
        pyarrow.parquet.write_table(pyarrow.table(rows), file)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = checkpoint_folder(Path(self._get_output_dir(trial)), self.state.global_step)
            write_running(folder, getattr(self, "_running", {}))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        running = read_running(Path(checkpoint)) if checkpoint else None
        if running is not None:
            self._running = running

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


def overwrite_last(logged: deque[_Logged], values: Sequence[_Logged]) -> None:
    """Replace the values that TRL logged last; its logs hold one training round, an evaluation may be larger."""
    kept = values[-len(logged) :]
    for row, value in enumerate(kept, start=-len(kept)):
        logged[row] = value


def _matrix(columns: list[list[float | None]], like: Tensor) -> Tensor:
    """Return (rows, columns) with NaN for None, on the device of `like`."""
    matrix = torch.full((len(columns[0]), len(columns)), torch.nan)
    for index, column in enumerate(columns):
        if column.count(None) < len(column):
            matrix[:, index] = torch.tensor([torch.nan if value is None else value for value in column])
    return matrix.to(like.device)
