"""Keep an evaluation as a file with what it is of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from rlhf_cli.evaluation.policy_results import PolicyEvaluation, is_none
from rlhf_cli.evaluation.scored_pairs import RewardModelEvaluation
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.reward_records import BY_REWARDS_OF
from rlhf_cli.text.regular_files import read_object

Measured = RewardModelEvaluation | PolicyEvaluation
_CLASSES: dict[str, type[Measured]] = {kind.kind: kind for kind in (RewardModelEvaluation, PolicyEvaluation)}


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The heading of an evaluation: the file's `name`, and the `model` and `data` as shown to people.

    `step` is None for `rlhf eval`, `path` (the model's folder) for an evaluation during training. `trained_on` counts
    the rows whose prompt the model was also trained on, None if unknown. `time` is in seconds since 1970.
    """

    name: str
    step: Annotated[int | None, Field(exclude_if=is_none)] = None
    model: str
    path: Annotated[str | None, Field(exclude_if=is_none)] = None
    data: str
    trained_on: Annotated[int | None, Field(exclude_if=is_none)] = None
    time: float
    warnings: list[str] = field(default_factory=list)

    @property
    def is_of_the_run(self) -> bool:
        """Return whether the run's own model was evaluated, wherever its folder was then."""
        return BY_REWARDS_OF not in self.model


@dataclass(frozen=True)
class Evaluation:
    """The results of evaluating a reward model or a policy, with their heading."""

    heading: Heading
    measured: Measured

    @property
    def rows_in_words(self) -> str:
        """Return the name of the rows and how many of their prompts were also trained on."""
        trained_on, rows = self.heading.trained_on, self.measured.rows
        return self.heading.name + (f" ({trained_on} of {rows} prompts trained on)" if trained_on else "")

    def figures(self) -> Iterator[tuple[str, Estimate]]:
        """Yield what runs are compared by: `accuracy`, or `greedy/total`, `greedy/correct`, `pass@4/correct`."""
        if isinstance(self.measured, RewardModelEvaluation):
            yield "accuracy", self.measured.accuracy
            return
        for name, part in self.measured.parts.items():
            rewards = {reward: estimates.raw for reward, estimates in part.rewards.items()}
            figures = {"total": part.total, **rewards}
            for beside in ("truncated", "tokens"):
                figures.setdefault(beside, getattr(part, beside))  # a reward may have that name
            yield from ((f"{name}/{figure}", estimate) for figure, estimate in figures.items())
        for reward, attempts in self.measured.attempts.items():
            for kind, by_k in attempts.items():
                if by_k:
                    yield f"{kind}@{max(by_k)}/{reward}", by_k[max(by_k)]


def evaluation_json(evaluation: Evaluation) -> dict[str, object]:
    """Return the JSON object of an evaluation's file; `rlhf eval --json` prints the same."""
    kind = {"kind": evaluation.measured.kind}
    heading = _adapter().dump_python(evaluation.heading)
    head = {**kind, **heading} if evaluation.heading.step is None else {**heading, **kind}
    return {**head, **_adapter(evaluation.measured.kind).dump_python(evaluation.measured, mode="json", by_alias=True)}


def read_evaluation(file: Path) -> Evaluation:
    """Read the evaluation in a JSON file, ignoring unknown keys.

    Raise ValueError if the file holds none, OSError if it cannot be read.
    """
    content = read_object(file)
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise ValueError(f"kind is {kind!r}, not {' or '.join(_CLASSES)}")
    return Evaluation(_adapter().validate_python(content), _adapter(kind).validate_python(content))


@cache
def _adapter(kind: str | None = None) -> TypeAdapter[Any]:
    """Return what reads and writes an evaluation of that kind, or a heading."""
    return TypeAdapter(Heading if kind is None else _CLASSES[kind])
