"""Keep an evaluation as a file with what it is of."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from rlhf_cli.errors import RunError
from rlhf_cli.measure.policy_results import PolicyEvaluation, is_none
from rlhf_cli.measure.scored_pairs import SUBSET, RewardModelEvaluation
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.run_folder import HELD_OUT, evaluations_of, run_of
from rlhf_cli.runs.text_endings import trained_with_eos
from rlhf_cli.text.regular_files import read_object

Measured = RewardModelEvaluation | PolicyEvaluation
_CLASSES: dict[str, type[Measured]] = {one.kind: one for one in (RewardModelEvaluation, PolicyEvaluation)}


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The heading of an evaluation: the file's `name`, and the `model` and `data` as shown to people.

    `step` is the training step, None for an evaluation by `rlhf eval`. `path` is the model's folder, None for an
    evaluation during training. `trained_on` counts the rows whose prompt the model was also trained on, None if
    unknown. `time` is in seconds since 1970.
    """

    name: str
    step: Annotated[int | None, Field(exclude_if=is_none)] = None
    model: str
    path: Annotated[str | None, Field(exclude_if=is_none)] = None
    data: str
    trained_on: Annotated[int | None, Field(exclude_if=is_none)] = None
    time: float
    warnings: list[str] = field(default_factory=list)


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
            beside = {"truncated": part.truncated, "tokens": part.tokens}
            yield from ((f"{name}/{figure}", one) for figure, one in ({"total": part.total} | rewards | beside).items())
        for reward, attempts in self.measured.attempts.items():
            for kind, by_k in attempts.by_name().items():
                if by_k:
                    yield f"{kind}@{max(by_k)}/{reward}", by_k[max(by_k)]


def evaluation_json(evaluation: Evaluation) -> dict[str, object]:
    """Return the JSON object of an evaluation's file; `rlhf eval --json` prints the same."""
    kind = {"kind": evaluation.measured.kind}
    heading = _adapter().dump_python(evaluation.heading)
    head = {**kind, **heading} if evaluation.heading.step is None else {**heading, **kind}
    return {**head, **measured_json(evaluation.measured)}


def measured_json(measured: Measured) -> dict[str, object]:
    """Return the results as JSON, without a heading."""
    content: dict[str, Any] = _adapter(measured.kind).dump_python(measured, mode="json", by_alias=True)
    if isinstance(measured, RewardModelEvaluation) and SUBSET not in measured.slices:
        for disagreement in content["worst"]:
            del disagreement[SUBSET]
    return content


def evaluation_of_json(content: Mapping[str, object]) -> Evaluation:
    """Return the evaluation that a JSON object describes, ignoring unknown keys.

    Raise ValueError if the object is not an evaluation or is incomplete.
    """
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise ValueError(f"an evaluation is of a {' or a '.join(_CLASSES)}, not of {kind!r}")
    return Evaluation(_adapter().validate_python(dict(content)), _adapter(kind).validate_python(dict(content)))


def read_evaluation(file: Path) -> Evaluation:
    """Read the evaluation in a JSON file. Raise ValueError if the file holds none, OSError if it cannot be read."""
    return evaluation_of_json(read_object(file))


@cache
def _adapter(kind: str | None = None) -> TypeAdapter[Any]:
    """Return what reads and writes an evaluation of that kind, or a heading."""
    return TypeAdapter(Heading if kind is None else _CLASSES[kind])


def mean_reward(model: str, *, with_eos: bool = False, where: str) -> float:
    """Return the mean reward that `rlhf eval` wrote: on the model's own held-out rows, else in the newest evaluation.

    With `with_eos`, use evaluations of texts that end in the end-of-sequence token; it must match how the reward
    scores. If there is none since the model was written, raise RunError with the command that measures it.
    """
    folder = Path(model).expanduser().resolve()
    ever = [(heading, mean) for heading, mean, ended in _means(evaluations_of(folder)) if ended == with_eos]
    written_at_s = max((file.stat().st_mtime for file in folder.glob("*.safetensors")), default=0.0)
    valid = [(heading, mean) for heading, mean in ever if heading.time >= written_at_s]
    if not valid:
        run = run_of(folder)
        typed = run.shown if run is not None else os.path.relpath(folder) if folder.is_dir() else "FOLDER"
        option = "" if (trained_with_eos(model) is True) == with_eos else " --eos" if with_eos else " --no-eos"
        raise RunError(
            "the mean of this reward model has not been measured",
            where=where,
            got=f"offset: auto, and no evaluation in {evaluations_of(folder)}"
            + (" since the model was written" if ever else ""),
            expected="what `rlhf eval` writes, or a number",
            hint=f"rlhf eval {typed}" + ("" if run is not None else " --data FILE") + option,
        )
    _, mean = max(valid, key=lambda one: (one[0].name == HELD_OUT, one[0].time))
    return mean


def _means(folder: Path) -> Iterator[tuple[Heading, float, bool]]:
    """Yield (heading, mean reward, whether texts ended with the end-of-sequence token) per reward model evaluation."""
    for file in folder.glob("*.json"):
        try:
            evaluation = read_evaluation(file)
        except (OSError, ValueError):
            continue  # a file of another program
        measured = evaluation.measured
        if isinstance(measured, RewardModelEvaluation) and measured.rewards.mean.mean is not None:
            yield evaluation.heading, measured.rewards.mean.mean, measured.with_eos
