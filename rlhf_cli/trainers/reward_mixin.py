"""Reward a TRL trainer by the reward stack, through `_calculate_rewards`.

TRL evaluates the stack's columns and gathers them into a matrix. This file settles it (offset, clip, normalise, gate,
exclude, aggregate) and returns it; TRL weighs, sums, baselines and scales as usual. Afterwards the metrics that TRL
took from the settled matrix are set to the raw scores, so that runs with other weights and gates are comparable.

The algorithm (algorithms/) may give TRL other scores to sum, says which part of the advantages each reward has, and
checks that the parts add up to the advantages that are trained on.
"""

from __future__ import annotations

import functools
import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow.parquet
import torch
from accelerate.utils import gather_object
from torch import Tensor

from rlhf_cli.algorithms.base import Algorithm, Given, Round, advantage_metrics
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.rewards.stack import reward_matrix, reward_metrics
from rlhf_cli.rewards.stack.component import RewardOutcome
from rlhf_cli.rewards.stack.reward_matrix import FLAG, Settled, SettleRules
from rlhf_cli.rewards.stack.reward_metrics import DeadRound
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.metrics_file import table_file
from rlhf_cli.runs.reward_records import read_running, write_running
from rlhf_cli.tables.trl_values import TABLE_COLUMNS
from rlhf_cli.text.json_values import finite_or_none, without_images
from rlhf_cli.tools_and_environments import KINDS, ending_of
from rlhf_cli.trainers.left_out_mixin import LeftOutMixin, tokens_in_loss
from rlhf_cli.trainers.trl_protocol import TrlBatch
from rlhf_cli.truncation import COMPONENT, ENDINGS, Ending, Endings

_COLUMNS = "logged_columns.json"
"""The columns that each reward has logged, and the rewards with parts, in a checkpoint."""
_PARTS = "{}.parts"


class RewardMixin(LeftOutMixin):
    """For a TRL trainer with reward functions: score by a stack, as set by `extensions.rewards`."""

    algorithm: Algorithm
    _has_other_advantages: bool = False
    _settled: Settled
    _endings: Endings
    _given: Given
    _running: dict[str, RunningDeviation]
    _with_parts: Sequence[str] = ()
    _counts: Tensor
    _tool_metrics: dict[str, float]

    def __init__(self, *args: Any, **named: Any) -> None:
        rewards = self.extensions.rewards
        assert rewards is not None
        self.algorithm = rewards.algorithm
        self.reward_stack, self.aggregate = rewards.stack, rewards.aggregate
        self.is_dense, self.truncation = rewards.is_dense, rewards.truncation
        self.loss_divisor = rewards.loss_divisor
        self._running = {}
        super().__init__(*args, **named)
        self.reward_stack.decode = self._decode
        self._clip_range = getattr(self, "reward_clip_range", None)
        if (function := getattr(self, "rollout_func", None)) is not None:  # RLOO has none
            from rlhf_cli.rewards.stack.token_offsets import with_turn_texts

            self.rollout_func = functools.partial(with_turn_texts, function, self._decode)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.processing_class.decode(list(ids), skip_special_tokens=True))

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Return TRL's matrix, (rows of all ranks, rewards), to weigh and sum; all-NaN rows are unscorable."""
        self.reward_stack.is_training = self.model.training
        with self.reward_stack.batch():
            raw = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        stack = self.reward_stack
        outcomes = [stack.outcomes[name] for name in stack.names]
        device, names = raw.device, list(self.reward_func_names)
        fixed = torch.from_numpy(numpy.array([outcome.fixed for outcome in outcomes], numpy.float32).T)  # NaN for None
        endings = self._find_endings(inputs, completions, completion_ids_list)
        raw, fixed, self._endings = self._on_cpu(raw, fixed, endings)
        if COMPONENT in names:  # a placeholder column: the component is added after all others are settled
            raw = raw[:, [place for place, name in enumerate(names) if name != COMPONENT]]
            names.remove(COMPONENT)
        own = stack.weights(self.state.global_step, self.state.max_steps)
        weights = torch.tensor([*own, *[1.0] * (len(names) - len(own))])
        each, fill = self._num_generations, self.algorithm.fill
        rules = SettleRules(stack.components, self.aggregate, each, self.truncation, fill)
        settled, self._running = reward_matrix.settle(
            *(raw, fixed, weights, rules, self._running),
            endings=self._endings,
            environments=names[len(own) :],
            is_training=self.model.training,
        )
        self._settled = settled = reward_matrix.add_truncation(settled, self.truncation, self._endings)
        self._given = given = self.algorithm.given(settled, self.aggregate, each)
        self.reward_weights = given.weights
        if given.is_clipped:
            self.reward_clip_range = None  # until TRL has computed advantages
        self._counts = reward_metrics.outcome_counts(outcomes, self.accelerator)
        self._tool_metrics = self._count_tools(completions)
        self._log_table(inputs, outcomes)
        return given.matrix.to(device)

    def _count_tools(self, completions: Any) -> dict[str, float]:
        """Return `tools/NAME/calls`, `errors` and `timeouts` of all ranks in this round; empty without tools."""
        assert self.extensions.rewards is not None
        interactions = self.extensions.rewards.interactions
        if interactions is None or not (counts := interactions.metrics(completions)):
            return {}
        own = torch.tensor(list(counts.values()), device=self.accelerator.device)
        everyones = self.accelerator.reduce(own, "sum").flatten().tolist()
        names = [f"tools/{name}/{kind}" for name in counts for kind in KINDS]
        return dict(zip(names, everyones, strict=True))

    def _on_cpu(self, raw: Tensor, fixed: Tensor, endings: Endings) -> tuple[Tensor, Tensor, Endings]:
        """Return the three of all ranks, on the CPU, in a single copy from a GPU.

        raw: (N, K) of all ranks; the others are of this rank.
        """
        assert endings.kinds is not None
        own = torch.cat([fixed, endings.kinds.unsqueeze(1), endings.lengths.unsqueeze(1)], dim=1)
        everyones = self.accelerator.gather(own.to(raw.device))
        together = torch.cat([raw, everyones], dim=1).cpu()
        parts = together.split([raw.shape[1], fixed.shape[1], 1, 1], dim=1)
        raw, fixed, kinds, lengths = (part.contiguous() for part in parts)
        return raw, fixed, self._endings_of(kinds[:, 0].long(), lengths[:, 0].long(), endings.limit)

    def _endings_of(self, kinds: Tensor, lengths: Tensor, limit: int | None) -> Endings:
        is_cut = torch.tensor([self.truncation.truncates(ending) for ending in ENDINGS])
        return Endings(is_cut[kinds], lengths, limit, kinds)

    def _find_endings(
        self, inputs: list[dict[str, object]], completions: Sequence[object], completion_ids: list[list[int]]
    ) -> Endings:
        """Return how this rank's rows ended; a dataset, rollout or environment may mark one as truncated."""
        environments = getattr(self, "environments", None) or [None] * len(inputs)  # RLOO has no environments
        flags = [row.get(FLAG) or getattr(world, FLAG, False) for row, world in zip(inputs, environments, strict=True)]
        ending_ids = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        limit = self.max_completion_length
        has_stopped = (lambda ids: False) if self.stops is None else self.stops.ends
        cut = reward_matrix.find_truncated(completion_ids, ending_ids, limit, has_stopped)
        max_calls = self.max_tool_calling_iterations if getattr(self, "tools", None) else None
        found = [
            ending_of(completion, is_cut=is_cut, max_calls=max_calls, flag=flag)
            for completion, is_cut, flag in zip(completions, cut, flags, strict=True)
        ]
        kinds = torch.tensor([ENDINGS.index(ending) for ending in found])
        return self._endings_of(kinds, torch.tensor([len(ids) for ids in completion_ids]), limit)

    def _log_endings(self, metrics: dict[str, list[float]]) -> None:
        """Correct TRL's figures for stop strings: it takes a row without an end-of-sequence token for truncated."""
        cut, lengths = self._endings.at(Ending.LENGTH), self._endings.lengths.float()
        ended = lengths[~cut] if not cut.all() else lengths.new_zeros(1)
        metrics["completions/clipped_ratio"][-1] = cut.float().mean().item()
        for name, value in (("mean", ended.mean()), ("min", ended.min()), ("max", ended.max())):
            metrics[f"completions/{name}_terminated_length"][-1] = value.item()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self._clip_range is not None:
            self.reward_clip_range = self._clip_range
        # A checkpoint and the table hold plain values.
        overwrite_last(self._logs["prompt"], [storable(without_images(asked)) for asked in self._logs["prompt"]])
        self._logs["images"].clear()
        settled = self._settled
        has_no_total = settled.for_trl.isnan().all(dim=1)
        if has_no_total.any():
            self.drop_rows(output, has_no_total[self._own_rows])
        if any(component.per is not None for component in self.reward_stack.components):
            self.reward_stack.place_turns(tokens_in_loss(output).bool().tolist())
        shares = self._set_advantages(output)
        metrics = self._metrics["train" if self.model.training else "eval"]
        if self.stops is not None:
            self._log_endings(metrics)
        for name, value in reward_metrics.component_metrics(settled, self._counts).items():
            if (name in metrics and name.endswith(("/mean", "/std"))) or name in ("reward", "reward_std"):
                metrics[name][-1] = value  # TRL has just taken it from the settled matrix
            else:
                metrics[name].append(value)
        if self._given.matrix is not settled.for_trl:  # TRL logged the mean of other scores
            totals = settled.row_totals[~settled.row_totals.isnan()]
            metrics["reward"][-1] = totals.mean().item()  # NaN of none
            metrics["reward_std"][-1] = reward_metrics.deviation(totals)
        if alike := metrics.get("frac_reward_zero_std"):
            alike[-1] = reward_metrics.share_of_dead_groups(self.algorithm.compared(self._given), self._num_generations)
        added = reward_matrix.truncation_metrics(settled, self._endings)
        if getattr(self, "tools", None) or getattr(self, "rollout_func", None):
            ended = {ending: self._endings.at(ending).float().mean().item() for ending in ENDINGS}
            added |= {f"completions/endings/{ending}": share for ending, share in ended.items()}
        for name, value in (added | shares | self._tool_metrics).items():
            metrics[name].append(value)
        unused = [f"rewards/{one.name}/" for one in self.reward_stack.components if one.eval_only]
        for name in [name for name in metrics if self.model.training and name.startswith(tuple(unused))]:
            del metrics[name]
        for index, name in enumerate(settled.names):
            overwrite_last(self._logs["rewards"][name], settled.raw[:, index].tolist())
        if self.args.log_completions:
            overwrite_last(self._logs["completion"], list(map(storable, self._logs["completion"])))
            # The values that the functions returned: gates compare these, and TRL's matrix has rounded them to float32.
            scores = [self.reward_stack.outcomes[name].raw for name in self.reward_stack.names]
            everyones = zip(*gather_object(list(zip(*scores, strict=True))), strict=True)
            for name, scored in zip(self.reward_stack.names, everyones, strict=True):
                overwrite_last(self._logs["rewards"][name], scored)
            for name in self._with_parts:
                texts = parts_as_json(self.reward_stack, name, output["advantages"])
                overwrite_last(self._logs["extra"][_PARTS.format(name)], gather_object(texts))
        return output

    def _set_advantages(self, output: TrlBatch) -> dict[str, float]:
        """Replace TRL's advantages if necessary, and return metrics: the rewards' shares of the used ones."""
        scored = Round(
            settled=self._settled,
            given=self._given,
            aggregate=self.aggregate,
            num_generations=self._num_generations,
            step=self.state.global_step,
            lengths=self._endings.lengths,
            own=self._own_rows,
            is_completion=output["completion_mask"].bool(),
            is_trained=tokens_in_loss(output).bool(),
            advantages=output["advantages"],
            logged=self._logs["advantages"],
            token_values=self.reward_stack.token_values,
            gather=self.accelerator.gather,
        )
        found = self.algorithm.of_round(scored)
        if found.used is not None:
            output["advantages"] = found.used
            overwrite_last(self._logs["advantages"], found.by_row)
        if found.shares is None and not self._has_other_advantages and self.accelerator.is_main_process:
            what = "no rewards/NAME/advantage_share is logged: the rewards' parts do not add up to the advantages"
            logging.getLogger("rlhf").warning("%s of %s", what, type(self).__name__)
        self._has_other_advantages |= found.shares is None
        return advantage_metrics(found.shares or {})

    def _log_table(self, inputs: list[dict[str, object]], outcomes: list[RewardOutcome]) -> None:
        """Add the dataset's columns and each row's results from the stack to the completions table."""
        if not self.args.log_completions:
            return
        for outcome in outcomes:
            for column, values in outcome.extra.items():
                self._log_completion_extra(column, values)
        taken = TABLE_COLUMNS | set(self.reward_stack.names) | set(self._pending_extra_logs)
        for column in inputs[0]:
            if column not in taken:
                self._log_completion_extra(column, [without_images(row.get(column)) for row in inputs])
        components = self.reward_stack.components
        columns = reward_metrics.table_columns(self._settled, components, outcomes, self._own_rows)
        number = self._step // (self.args.steps_per_generation * self.num_iterations) if self.model.training else None
        columns |= reward_metrics.rollout_columns(self._endings, self._own_rows, number, self.state.global_step)
        self._with_parts = rewards_with_parts(self.reward_stack, self._with_parts)
        columns |= {_PARTS.format(name): [None] * len(inputs) for name in self._with_parts}  # filled later
        for column, values in columns.items():
            self._log_completion_extra(column, values)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as in TRL, and save the table of completions; an evaluation does not change the table of its step."""
        file = table_file(Path(self.args.output_dir), self.state.global_step)
        written = file.read_bytes() if not self.model.training and file.is_file() else None
        if not (self.args.log_completions and self.accelerator.is_main_process):
            return super().log(logs, start_time)
        make_columns_storable(self._logs["extra"])
        super().log(logs, start_time)
        table = self._logs
        if table["prompt"] and not file.exists():  # TRL's GRPOTrainer saves it to disk, its RLOOTrainer only to wandb
            columns = {"step": [self.state.global_step] * len(table["prompt"]), "prompt": table["prompt"]}
            columns |= {"completion": table["completion"], **table["rewards"], **table["extra"]}
            columns["advantage"] = table["advantages"]
            file.parent.mkdir(exist_ok=True)
            # TRL's own table has null for missing scores instead of NaN.
            rows = {name: list(map(finite_or_none, values)) for name, values in columns.items()}
            pyarrow.parquet.write_table(pyarrow.table(rows), file)
        if written is not None:  # TRL's GRPOTrainer wrote a mixture of both
            file.write_bytes(written)

    def save_state(self, folder: Path) -> None:
        """Write the running deviations, and the columns that a reward has logged once: they are filled every round."""
        super().save_state(folder)
        if self.args.should_save:
            write_running(folder, self._running)
            columns = {name: sorted(found) for name, found in self.reward_stack.extra_columns.items()}
            (folder / _COLUMNS).write_text(json.dumps([columns, self._with_parts]), encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote."""
        super().load_state(folder)
        if (running := read_running(folder)) is not None:
            self._running = running
        if (file := folder / _COLUMNS).is_file():
            columns, self._with_parts = json.loads(file.read_text(encoding="utf-8"))
            for name, found in columns.items():
                self.reward_stack.extra_columns[name].update(found)

    # --- a round without a signal ---

    def dead_round(self, advantages: Tensor) -> DeadRound | None:
        """Return a description of the round if every advantage of all ranks is 0, up to rounding of equal totals."""
        # What is compared: the rows of a prompt, or with a critic those of the round.
        group_size = self._num_generations if self.algorithm.compares_groups else self._settled.raw.shape[0]
        counted = [name for name, counts in zip(self._settled.names, self._settled.is_counted, strict=True) if counts]
        outcomes = [one for name, one in self.reward_stack.outcomes.items() if name in counted]
        is_by_token = self.is_dense and any(row is not None for outcome in outcomes for row in outcome.tokens)
        largest_of_rank = advantages.abs().max().item() if advantages.numel() else 0.0
        own = torch.tensor([[largest_of_rank, float(is_by_token)]], device=self.accelerator.device)
        largest, by_token = self.accelerator.gather(own).max(dim=0).values.tolist()
        if largest != 0.0:
            # A row's total does not determine token rewards, and a critic's errors always give advantages.
            if by_token or not self.algorithm.is_dead_by_totals:
                return None
            if reward_metrics.share_of_dead_groups(self.algorithm.compared(self._given), group_size) < 1.0:
                return None
        left_out = self.truncation.leaves_out(self._endings)
        valued = self.truncation.goes_on(self._endings) & self.truncation.replaces
        return reward_metrics.explain_dead_round(
            self.state.global_step + 1,
            *(self._settled, self.reward_stack.components, self._counts, group_size),
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
        count, rank = self._settled.raw.shape[0] // self.accelerator.num_processes, self.accelerator.process_index
        return slice(rank * count, (rank + 1) * count)


def overwrite_last(logged: deque[Any], values: Sequence[Any]) -> None:
    """Replace the values that TRL logged last; its logs hold one training round, an evaluation may be larger."""
    kept = values[-len(logged) :]
    for row, value in enumerate(kept, start=-len(kept)):
        logged[row] = value


def rewards_with_parts(stack: RewardStack, earlier: Sequence[str]) -> list[str]:
    """Return the rewards that have returned parts so far on any rank, in one order. Every rank must call this."""
    named = {*earlier, *gather_object([name for name in stack.names if stack.outcomes[name].has_parts])}
    return [name for name in stack.names if name in named]


def parts_as_json(stack: RewardStack, name: str, advantages: Tensor) -> list[str | None]:
    """Return a JSON text per row of this rank: start, end, text, reward and advantage of each of a reward's parts.

    advantages: (rows, tokens), or (rows,) if all tokens of a row share one. A part's advantage is the mean over its
    tokens, null if it has no tokens.
    """
    texts: list[str | None] = []
    for row, of_row in enumerate(advantages):
        parts, shown = stack.parts(name, row), []
        for part in parts or ():
            of_tokens = of_row[list(part.tokens)] if of_row.ndim and part.tokens else of_row
            shown.append(part.as_json() | {"advantage": of_tokens.mean().item() if part.tokens else None})
        texts.append(None if parts is None else json.dumps(shown, ensure_ascii=False))
    return texts


def storable(completion: object) -> object:
    """Return a prompt or completion with its calls' arguments, which differ by row, as JSON: a column has one type."""

    def stored(call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function", {})
        given = function.get("arguments")
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    if not isinstance(completion, list):
        return completion
    return [
        {**one, "tool_calls": list(map(stored, one["tool_calls"]))} if one.get("tool_calls") else one
        for one in completion
    ]


def make_columns_storable(columns: Mapping[str, deque[Any]]) -> None:
    """Replace values by texts in each column that no file can hold, as of objects or types that differ by row."""
    for values in columns.values():
        try:
            is_storable = "struct<>" not in str(pyarrow.array(list(values), from_pandas=True).type)
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
            is_storable = False
        if not is_storable:  # Parquet has no objects without keys
            texts = [None if value is None else str(value).encode(errors="replace").decode() for value in values]
            values.clear()
            values.extend(texts)
