"""What `rlhf eval` says of a policy, said while it trains: a file an evaluation, a picture of all of them, metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from rlhf_cli.measure.policy_answers import Part, completions_of, policy_content, write_completions
from rlhf_cli.report.evaluation_history import draw_history
from rlhf_cli.report.evaluation_picture import can_draw
from rlhf_cli.runs.evaluations import PICTURE, in_training
from rlhf_cli.runs.run_folder import RunFolder, write_json
from rlhf_cli.stack.component import Component
from rlhf_cli.stack.settled_rows import scored_rows
from rlhf_cli.trainers.answers import Answers

Content = dict[str, Any]


class DuringTraining:
    """Sums up what a trainer's evaluation answered; given to every rank, `writes` on the first."""

    def __init__(self, folder: RunFolder, components: Sequence[Component], data: str, *, writes: bool) -> None:
        self._folder, self._data, self._writes = folder, data, writes
        self._components = list(components)

    def __call__(self, asked: dict[str, Answers], weights: list[float], step: int) -> dict[str, float | None]:
        """Metric -> value: totals with their intervals, raw rewards, truncation, tokens, pass@k, maj@k.

        Writes `eval/training/step-N.json` and its completions, and draws `eval/training/history.png` anew.
        """
        everything = [one for answers in asked.values() for one in answers.answers]
        scored = iter(
            scored_rows(self._components, [one.raw for one in everything], [one.fixed for one in everything], weights)
        )
        parts = {
            name: Part(
                answers.each,
                [
                    {
                        **one.row,
                        "completion": one.completion,
                        "completion_ids": one.completion_ids,
                        "is_truncated": one.is_truncated,
                    }
                    for one in answers.answers
                ],
                [next(scored) for _ in answers.answers],
            )
            for name, answers in asked.items()
        }
        content = policy_content(parts, [component.name for component in self._components])
        if self._writes:
            self._write(content, parts, step)
        return metrics_of(content)

    def _write(self, content: Content, parts: dict[str, Part], step: int) -> None:
        folder = in_training(self._folder)
        folder.mkdir(parents=True, exist_ok=True)
        head = {"name": f"step-{step}", "step": step, "model": self._folder.label, "data": self._data}
        write_json(folder / f"step-{step}.json", {**head, "time": time.time(), "warnings": [], **content})
        write_completions(folder / f"step-{step}.completions.jsonl", completions_of(parts))
        if can_draw():
            try:
                draw_history(folder, folder / PICTURE)
            except Exception as error:  # a picture is no reason to end a training
                logging.getLogger("rlhf").warning("no picture of the evaluations: %s: %s", type(error).__name__, error)


def metrics_of(content: Content) -> dict[str, float | None]:
    """The means in an evaluation's content by the names of docs/metrics.md, with the bounds of the totals.

    None where nothing was scored.
    """
    found: dict[str, float | None] = {}
    for name, part in content["parts"].items():
        total = part["total"]
        found[f"{name}/total"] = total["mean"]
        found |= {f"{name}/total/{bound}": total[bound] for bound in ("low", "high")}
        found |= {f"{name}/rewards/{reward}": one["raw"]["mean"] for reward, one in part["rewards"].items()}
        found |= {f"{name}/{what}": part[what]["mean"] for what in ("truncated", "tokens")}
    for reward, attempts in content["attempts"].items():
        for kind, by_count in attempts.items():
            found |= {f"{kind}@{count}/{reward}": one["mean"] for count, one in by_count.items()}
    return found
