"""Measure a policy on rows: rewards, truncation, intervals; and keep any evaluation as a file with what it is of.

All intervals are over prompts, because the answers to one prompt are not independent of each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import starmap
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, TypeAdapter

from rlhf_cli.data.rows import prompt_key
from rlhf_cli.data.source import Row
from rlhf_cli.evaluation.scored_pairs import RewardModelEvaluation
from rlhf_cli.numerics.intervals import Estimate, attempt_counts, majority, mean_with_interval, pass_at_k, student
from rlhf_cli.rewards.completion_text import Completion, text_of
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.scored_rows import ScoredRow, settled_rows
from rlhf_cli.runs.reward_records import BY_REWARDS_OF
from rlhf_cli.runs.run_folder import POLICY, SAMPLED
from rlhf_cli.text.json_values import is_none, without_images
from rlhf_cli.text.regular_files import read_object

if TYPE_CHECKING:
    from rlhf_cli.numerics.score_scaling import RunningDeviation

SEEN, UNSEEN = "seen", "unseen"
"""The evaluation's prompts that were also trained on, and the others."""


@dataclass(frozen=True)
class RewardEstimates:
    """Mean of one reward: as scored, after its rules, and times its weight."""

    raw: Estimate
    effective: Estimate
    weighted: Estimate


@dataclass(frozen=True)
class TokenEstimate(Estimate):
    """Mean length of a completion in tokens; `max` is the longest length."""

    max: int


@dataclass(frozen=True)
class PartEvaluation:
    """Results of one decoding mode on all prompts; `truncated` is the share of completions that were cut."""

    rewards: dict[str, RewardEstimates]
    total: Estimate
    truncated: Estimate
    tokens: TokenEstimate


@dataclass(frozen=True)
class Attempts:
    """The pass@k and maj@k of one reward, by k: one of k samples is right, or their most frequent answer is."""

    pass_at: Annotated[dict[int, Estimate], Field(alias="pass")]
    maj_at: Annotated[dict[int, Estimate], Field(alias="maj")]

    def by_name(self) -> dict[str, Mapping[int, Estimate]]:
        """Return both by their logged names, `pass` and `maj`."""
        return {"pass": self.pass_at, "maj": self.maj_at}


@dataclass(frozen=True)
class ShownAnswer:
    """An answer to show: texts or messages, and the total reward."""

    prompt: object
    completion: object
    total: float | None


@dataclass(frozen=True)
class SomePrompts:
    """Results on some of the prompts; `rows` is their number."""

    rows: int
    parts: dict[str, PartEvaluation]
    attempts: dict[str, Attempts]


@dataclass(frozen=True)
class PolicyEvaluation(SomePrompts):
    """All results of evaluating a policy. `rows` counts prompts; `attempts` is keyed by reward.

    `by_prompts` maps SEEN (prompts that were also trained on) and UNSEEN to their results, None unless both occur.
    `settings` are the generation arguments, None during training. `no_total` says why no answer has its own total.
    """

    kind: ClassVar[str] = POLICY

    shown: list[ShownAnswer]
    settings: Annotated[dict[str, object] | None, Field(exclude_if=is_none)] = None
    no_total: Annotated[str | None, Field(exclude_if=is_none)] = None
    by_prompts: Annotated[dict[str, SomePrompts] | None, Field(exclude_if=is_none)] = None


_SHOWN = 5


@dataclass(frozen=True)
class AnsweredPrompt:
    """A data row (column -> value) and one answer to its prompt.

    `completion` is a text or a list of messages. `completion_ids` end with the end-of-sequence token if the policy
    wrote one; `is_truncated` says that it did not. A trainer's evaluation also has an entry per reward in `raw` and
    `fixed`, as in the stack's outcomes.
    """

    row: Mapping[str, object]
    completion: Completion
    completion_ids: list[int]
    is_truncated: bool
    raw: Sequence[float | None] = ()
    fixed: Sequence[float | None] = ()

    def as_row(self) -> dict[str, object]:
        """Return the columns that rewards get: those of the data, `completion` and `completion_ids`."""
        return {**self.row, "completion": self.completion, "completion_ids": self.completion_ids}


Sample = tuple[AnsweredPrompt, ScoredRow]


@dataclass(frozen=True)
class PartAnswers:
    """All answers of one decoding mode, of all ranks, `each` per prompt; entry i belongs to prompt i // each."""

    each: int
    answers: Sequence[AnsweredPrompt]
    scored: Sequence[ScoredRow] = ()
    """As many as `answers`; empty as long as they are not settled."""

    def prompts(self) -> list[list[Sample]]:
        """Return the scored answers to each prompt."""
        samples = list(zip(self.answers, self.scored, strict=True))
        return [samples[start : start + self.each] for start in range(0, len(samples), self.each)]

    def of_prompts(self, kept: Sequence[bool]) -> PartAnswers:
        """Return the answers to some of the prompts; `kept` has one entry per prompt."""
        samples = [sample for some, is_kept in zip(self.prompts(), kept, strict=True) if is_kept for sample in some]
        return PartAnswers(self.each, *map(list, zip(*samples, strict=True)))

    def in_order(self, places: Sequence[int]) -> PartAnswers:
        """Return the answers in the order of the rows; `places` has the row of each prompt."""
        by_row = sorted(zip(places, self.prompts(), strict=True), key=lambda pair: pair[0])
        samples = [sample for _, some in by_row for sample in some]
        return PartAnswers(self.each, *map(list, zip(*samples, strict=True)))

    def by_prompt(self, value: Callable[[AnsweredPrompt, ScoredRow], float | None]) -> list[float]:
        """Return the mean over each prompt's completions, leaving out prompts without a value."""
        by_prompt = ([one for one in starmap(value, samples) if one is not None] for samples in self.prompts())
        return [fmean(values) for values in by_prompt if values]

    def estimate(self, value: Callable[[AnsweredPrompt, ScoredRow], float | None]) -> Estimate:
        """Return the mean over the prompts; Wilson's interval is conservative here."""
        return mean_with_interval(self.by_prompt(value), map(value, self.answers, self.scored))


def settled_answers(
    parts: Mapping[str, PartAnswers],
    components: Sequence[Component],
    weights: Sequence[float],
    *,
    aggregate: Aggregate,
    running: Mapping[str, RunningDeviation],
) -> tuple[dict[str, PartAnswers], str | None]:
    """Return the answers of a trainer's evaluation with their scores, and the reason if they have no total, else None.

    Each mode is settled apart: an aggregate of the user's must not compare greedy with sampled answers.
    """
    scored: dict[str, PartAnswers] = {}
    no_total: str | None = None  # the same for every mode
    for name, part in parts.items():
        raw, fixed = [answer.raw for answer in part.answers], [answer.fixed for answer in part.answers]
        settled = settled_rows(components, raw, fixed, weights, aggregate=aggregate, running=running)
        scored[name] = replace(part, scored=settled.rows)
        no_total = settled.no_total
    return scored, no_total


def sum_up_answers(
    parts: Mapping[str, PartAnswers],
    names: Sequence[str],
    *,
    no_total: str | None = None,
    trained_on: Set[bytes] = frozenset(),
) -> PolicyEvaluation:
    """Return the evaluation of a policy from its answers; `names` are its rewards.

    `trained_on` holds the `prompt_key` of the prompts that were also trained on. If only some are in it, both groups
    get their own results.
    """
    first = next(iter(parts.values()))
    shown = list(zip(first.answers, first.scored, strict=True))[:_SHOWN]
    is_seen = [prompt_key(answer.row) in trained_on for answer in first.answers[:: first.each]]
    groups = {SEEN: is_seen, UNSEEN: [not seen for seen in is_seen]} if len(set(is_seen)) == 2 else {}
    by_prompts = {
        which: _on_prompts({name: part.of_prompts(kept) for name, part in parts.items()}, names)
        for which, kept in groups.items()
    }
    return PolicyEvaluation(
        **vars(_on_prompts(parts, names)),
        shown=[ShownAnswer(answer.row["prompt"], answer.completion, scored.total) for answer, scored in shown],
        no_total=no_total,
        by_prompts=by_prompts or None,
    )


def _on_prompts(parts: Mapping[str, PartAnswers], names: Sequence[str]) -> SomePrompts:
    first = next(iter(parts.values()))
    return SomePrompts(
        rows=len(first.answers) // first.each,
        parts={name: _part(part, names) for name, part in parts.items()},
        attempts=_attempts(parts[SAMPLED], names) if SAMPLED in parts else {},
    )


def completions_of(parts: Mapping[str, PartAnswers]) -> list[dict[str, object]]:
    """Return one row per completion: the data's columns, the answer, its part, sample, total and raw rewards."""
    return [
        {
            **without_images(answer.as_row()),
            **{"is_truncated": answer.is_truncated, "part": name, "sample": index % part.each, "total": scored.total},
            "rewards": {reward: value.raw for reward, value in scored.rewards.items()},
        }
        for name, part in parts.items()
        for index, (answer, scored) in enumerate(zip(part.answers, part.scored, strict=True))
    ]


def _part(part: PartAnswers, names: Sequence[str]) -> PartEvaluation:
    tokens = student(part.by_prompt(lambda answer, _: float(len(answer.completion_ids))))

    def reward(name: str, kind: str) -> Estimate:
        return part.estimate(lambda _, scored: getattr(scored.rewards[name], kind))

    return PartEvaluation(
        rewards={
            name: RewardEstimates(*(reward(name, kind) for kind in ("raw", "effective", "weighted"))) for name in names
        },
        total=part.estimate(lambda _, scored: scored.total),
        truncated=part.estimate(lambda answer, _: float(answer.is_truncated)),
        tokens=TokenEstimate(**vars(tokens), max=max(len(answer.completion_ids) for answer in part.answers)),
    )


def _attempts(part: PartAnswers, names: Sequence[str]) -> dict[str, Attempts]:
    """Return pass@k and maj@k of every reward whose scores are all 0 or 1.

    A missing score (a gate, a failure) counts as wrong. The answer that maj@k counts is the number that numeric_answer
    reads in a completion, or its whole text if it has none.
    """
    from rlhf_cli.rewards.numeric import answer_in

    attempts = {}
    completions = [text_of(answer.completion) for answer in part.answers]
    texts = [text.strip() if (number := answer_in(text)) is None else str(number) for text in completions]
    for name in names:
        raw = [row.rewards[name].raw for row in part.scored]
        if not any(value is not None for value in raw) or any(value not in (None, 0.0, 1.0) for value in raw):
            continue
        right = [value or 0.0 for value in raw]
        spans = [slice(start, start + part.each) for start in range(0, len(right), part.each)]
        attempts[name] = Attempts(
            pass_at={
                k: mean_with_interval([pass_at_k(part.each, int(sum(right[span])), k) for span in spans], right)
                for k in attempt_counts(part.each)
            },
            maj_at={part.each: mean_with_interval([majority(texts[span], right[span]) for span in spans], right)},
        )
    return attempts


@dataclass(frozen=True)
class BestOfK:
    """The best of `k`: its score, rewards and truncated share, with intervals over prompts. `kl_bound` is in nats."""

    k: int
    score: Estimate
    rewards: dict[str, Estimate]
    truncated: Estimate
    kl_bound: float


@dataclass(frozen=True)
class BestOfN:
    """The curve for k = 1 .. n. `left_out` counts the prompts with an answer that has no score `by`."""

    by: str
    curve: list[BestOfK]
    left_out: int


@dataclass(frozen=True)
class MadeRows:
    """Rows for a trainer, and the prompts that gave none: reason -> number of prompts."""

    rows: list[Row] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


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
            for kind, by_k in attempts.by_name().items():
                if by_k:
                    yield f"{kind}@{max(by_k)}/{reward}", by_k[max(by_k)]


def evaluation_json(evaluation: Evaluation) -> dict[str, object]:
    """Return the JSON object of an evaluation's file; `rlhf eval --json` prints the same."""
    kind = {"kind": evaluation.measured.kind}
    heading = _adapter().dump_python(evaluation.heading)
    head = {**kind, **heading} if evaluation.heading.step is None else {**heading, **kind}
    return {**head, **_adapter(evaluation.measured.kind).dump_python(evaluation.measured, mode="json", by_alias=True)}


def read_evaluation(file: Path) -> Evaluation:
    """Read an evaluation, ignoring unknown keys. Raise ValueError if it is none, OSError if the file cannot be read."""
    content = read_object(file)
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise ValueError(f"kind is {kind!r}, not {' or '.join(_CLASSES)}")
    return Evaluation(_adapter().validate_python(content), _adapter(kind).validate_python(content))


@cache
def _adapter(kind: str | None = None) -> TypeAdapter[Any]:
    """Return what reads and writes an evaluation of that kind, or a heading."""
    return TypeAdapter(Heading if kind is None else _CLASSES[kind])
