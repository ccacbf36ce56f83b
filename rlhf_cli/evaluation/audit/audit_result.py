"""Hold what an audit found and the advice that follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.numerics.intervals import Estimate


@dataclass(frozen=True)
class Contribution:
    """The mean weighted reward of one component, for the degenerate answers and for the gold ones."""

    attack: float
    gold: float | None


@dataclass(frozen=True)
class KindResult:
    """The result of one kind of degenerate answer, for its best variant.

    Of `rows` with a gold answer, its total is higher than the gold's in `beats` and equal in `ties`; `share` is both
    together. `is_near`: not a hole, but in too many rows it gets the main component's reward of the gold answer, or
    nearly the gold's total. `margin` is the mean of its total less the gold's. `contributions` are means over the rows
    in which it beats or ties, else over the nearest rows or all rows, and `text` is the first of these. `let_in` is the
    component that pays it most compared with the gold answer.
    """

    name: str
    caption: str
    text: str
    mean_total: float | None
    rows: int
    beats: int
    ties: int
    share: Estimate
    margin: float | None
    is_hole: bool
    is_near: bool
    let_in: str | None
    contributions: Mapping[str, Contribution]
    errors: Mapping[str, str]  # component -> the error it raised on such a text
    shown_row: int


@dataclass(frozen=True)
class AuditAdvice:
    """Advice against some kinds of answer: a reason, and words to type, if any."""

    reason: str
    kinds: tuple[str, ...]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditResult:
    """The results of an audit. Totals are means over rows, in reward units.

    `gold_source` is None if the data has no right answers. `main` is the component that best distinguishes gold answers
    from the others. In `num_unrecognised` rows the gold answer gets no more than the worst degenerate one;
    `unrecognised`: in too many. `blind` are components that score gold answers like all the others.
    """

    rows: int
    texts: int
    gold_source: str | None
    gold_way: str | None
    gold_text: str | None
    gold_total: float | None
    gold_contributions: Mapping[str, float | None]
    gold_raw: Mapping[str, float | None]  # component -> the median of its raw scores of the gold answers
    main: str | None
    num_unrecognised: int
    unrecognised: bool
    blind: tuple[str, ...]
    kinds: tuple[KindResult, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...] = ()
    advice: tuple[AuditAdvice, ...] = ()

    @property
    def holes(self) -> list[KindResult]:
        """Return the kinds that get at least the gold answer's total in too many rows."""
        return [kind for kind in self.kinds if kind.is_hole]

    @property
    def near(self) -> list[KindResult]:
        """Return the kinds that come near, by the main component or in total."""
        return [kind for kind in self.kinds if kind.is_near]

    @property
    def is_sound(self) -> bool | None:
        """Return whether the rewards passed, or None without gold answers."""
        return None if self.gold_source is None else not (self.holes or self.unrecognised)

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf audit --json` prints."""
        return {"is_sound": self.is_sound, "holes": [kind.name for kind in self.holes], **asdict(self)}


HINTS = {
    "empty": "return 0.0 for a text without a word, or count it only if the answer is right",
    "prompt_echo": "score against the right answer, not against the prompt",
    "other_gold": "compare with this row's own answer: zip completions with the column",
    "many_answers": "compare only the final answer of the text (numeric_answer, exact_match)",
    "part_of_gold": "compare the whole answer, not its beginning",
    "form_only": "count form only if the answer is right, or give it a much smaller weight",
    "repetition": "limit what one word can earn, or penalise repetition: reward@rewards.repetition=repetition",
    "longest": "penalise length (truncation=soft_overlong), or limit what length can earn: length_ramp",
    "common_answer": "score against the right answer of the row",
    "keywords": "count such words only if the answer is right, or not at all",
    "opener": "let the judge find the right answer first, gate it by a rule, or show it the reference",
    "judge_injection": "enclose the answer in marks that the rubric names, and gate the judge by a rule",
    "early_exit": "score by the dataset's tests, not by the exit code: code_passes_tests",
}
"""Map kind -> how to change a reward if no override helps."""


def with_advice(result: AuditResult, experiment: Experiment) -> AuditResult:
    """Return the audit with advice for every component that lets a hole in."""
    by_component: dict[str, list[str]] = {}
    for kind in [*result.holes, *result.near]:
        if kind.let_in is not None:
            by_component.setdefault(kind.let_in, []).append(kind.name)
    advice = (_advice(name, tuple(kinds), result, experiment) for name, kinds in by_component.items())
    return replace(result, advice=tuple(advice))


def _advice(name: str, kinds: tuple[str, ...], result: AuditResult, experiment: Experiment) -> AuditAdvice:
    """Return a gate by the reward that knows the answer, else a ready-made reward that compares with its column."""
    guard, reward = result.main, experiment.rewards.get(name)
    source, _, column = (result.gold_source or "").partition(" ")
    is_number = re.search(r"\d(\W|</\w+>)*$", result.gold_text or "")
    module, ready = ("numeric", "numeric_answer") if is_number else ("match", "exact_match")
    fn = f"rlhf_cli.rewards.{module}:{ready}"
    # The ready-made rewards compare with the column `answer`.
    words = () if column == "answer" else (f"data.rename.answer={column}",)
    least = None if guard is None else result.gold_raw.get(guard)
    if reward is None:
        pass
    elif guard not in (None, name) and least is not None and guard not in {gate.by for gate in reward.gates}:
        gate = f"rewards.{name}.gate={{by: {guard}, at_least: {least:g}}}"
        return AuditAdvice(f"count {name} only if {guard} is met", kinds, (gate,))
    elif guard == name and source == "column" and reward.fn not in (None, fn):
        words = (*words, f"rewards.{name}.fn={fn}")
        return AuditAdvice(f"{ready} reads only the final answer of a text", kinds, words)
    elif guard in (None, name) and source == "column" and "right" not in experiment.rewards:
        words = (*words, f"reward@rewards.right={ready}", "primary={by: right, at_least: 1.0}")
        reason = f"no reward compares with the right answer: add {ready}, and count the others only if it is met"
        return AuditAdvice(reason, kinds, words)
    return AuditAdvice(HINTS[kinds[0]], kinds)
