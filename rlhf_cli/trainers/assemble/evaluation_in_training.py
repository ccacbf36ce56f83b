"""Evaluate a policy while it trains, as `rlhf eval` does: write a file per evaluation, a plot of all, and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from rlhf_cli.data.rows import describe_shared, prompt_key
from rlhf_cli.measure.evaluation_files import Evaluation, Heading, evaluation_json
from rlhf_cli.measure.pictures import can_draw, draw_history
from rlhf_cli.measure.policy_results import (
    PartAnswers,
    PolicyEvaluation,
    completions_of,
    sum_up_answers,
    write_completions,
)
from rlhf_cli.numerics.reward_columns import RunningDeviation
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.scored_rows import settled_rows
from rlhf_cli.runs.run_folder import PICTURE, RunFolder, in_training, write_json
from rlhf_cli.trainers.extensions import PolicyAnswers


class TrainingEvaluation:
    """Summarise a policy's answers in a trainer's evaluation; every rank has one, and only the first `writes`.

    `aggregate` computes totals as in training; `trained_on` is an argument of `sum_up_answers`.
    """

    def __init__(
        self,
        folder: RunFolder,
        components: Sequence[Component],
        data: str,
        *,
        writes: bool,
        aggregate: Aggregate = "sum",
        trained_on: frozenset[bytes] = frozenset(),
    ) -> None:
        self._trained_on = trained_on
        self._folder, self._data, self._writes = folder, data, writes
        self._components, self._aggregate = list(components), aggregate
        self._has_warned = False

    def __call__(
        self,
        by_mode: dict[str, PolicyAnswers],
        weights: list[float],
        step: int,
        running: Mapping[str, RunningDeviation] | None = None,
    ) -> dict[str, float | None]:
        """Return metric -> value: totals with their intervals, raw rewards, truncation, tokens, pass@k, maj@k.

        running: the training's divisors by reward, if it has scored rows already. Write `eval/training/step-N.json` and
        its completions, and redraw `eval/training/history.png`.
        """
        everything = [one for answers in by_mode.values() for one in answers.answers]
        settled = settled_rows(
            self._components,
            [one.raw for one in everything],
            [one.fixed for one in everything],
            weights,
            aggregate=self._aggregate,
            running=running or {},
        )
        rows = iter(settled.rows)
        parts = {
            name: PartAnswers(answers.each, list(answers.answers), [next(rows) for _ in answers.answers])
            for name, answers in by_mode.items()
        }
        if settled.no_total is not None and self._writes and not self._has_warned:
            logging.getLogger("rlhf").warning("evaluations have no total: %s", settled.no_total)
            self._has_warned = True
        evaluation = sum_up_answers(
            parts, [one.name for one in self._components], no_total=settled.no_total, trained_on=self._trained_on
        )
        if self._writes:
            self._write(evaluation, parts, step)
        return metrics_of(evaluation)

    def _write(self, measured: PolicyEvaluation, parts: dict[str, PartAnswers], step: int) -> None:
        folder = in_training(self._folder)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{step}"
        answers = next(iter(parts.values()))
        shared = sum(prompt_key(one.row) in self._trained_on for one in answers.answers[:: answers.each])
        heading = Heading(
            name=name,
            step=step,
            model=self._folder.label,
            data=self._data,
            trained_on=shared,
            time=time.time(),
            warnings=[describe_shared(shared, measured.rows)] if shared else [],
        )
        write_json(folder / f"{name}.json", evaluation_json(Evaluation(heading, measured)))
        write_completions(folder / f"{name}.completions.jsonl", completions_of(parts))
        if can_draw():
            try:
                draw_history(folder, folder / PICTURE)
            except Exception as error:  # a failed plot must not end a training
                logging.getLogger("rlhf").warning("no picture of the evaluations: %s: %s", type(error).__name__, error)


def metrics_of(evaluation: PolicyEvaluation) -> dict[str, float | None]:
    """Return the means of an evaluation under the names of docs/reference/metrics.md, with the bounds of the totals.

    A mean is None if no row was scored.
    """
    metrics: dict[str, float | None] = {}
    for name, part in evaluation.parts.items():
        metrics[f"{name}/total"] = part.total.mean
        metrics[f"{name}/total/low"] = part.total.low
        metrics[f"{name}/total/high"] = part.total.high
        metrics |= {f"{name}/rewards/{reward}": one.raw.mean for reward, one in part.rewards.items()}
        metrics[f"{name}/truncated"] = part.truncated.mean
        metrics[f"{name}/tokens"] = part.tokens.mean
        for which, some in (evaluation.by_prompts or {}).items():
            metrics[f"{name}/total/{which}"] = some.parts[name].total.mean
    for reward, attempts in evaluation.attempts.items():
        for kind, by_count in attempts.by_name().items():
            metrics |= {f"{kind}@{count}/{reward}": one.mean for count, one in by_count.items()}
    return metrics
