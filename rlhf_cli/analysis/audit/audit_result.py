"""Hold what an audit found and the advice that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RlhfError
from rlhf_cli.numerics.intervals import Estimate


@dataclass(frozen=True)
class Contribution:
    """The mean weighted reward of one component, for the degenerate answers and for the gold ones."""

    attack: float
    gold: float | None


@dataclass(frozen=True)
class KindResult:
    """The result of one kind of degenerate answer, for its best variant.

    Of `rows` with a gold answer, its total is higher than the gold's in `beats` and equal in `ties` (if the gold answer
    is rewarded at all); `share` is both together with Wilson's interval. `is_near`: not a hole, but in too many rows it
    gets the main component's full reward of the gold answer, or nearly the gold's total. `margin` is the mean of its
    total less the gold's. `contributions` are means over the rows in which it beats or ties; if there are none, over
    the nearest rows or all rows. `let_in` is the component that pays it most compared with the gold answer. `text` is
    one that beat or tied, else the first.
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
    errors: Mapping[str, str] = field(default_factory=dict)
    """Component -> the error it raised on such a text."""
    shown_row: int = 0


@dataclass(frozen=True)
class AuditAdvice:
    """Advice against holes: words to type, if any, and whether they were tried.

    `closes` is how many of the `kinds` were closed when the words were tried; None if nothing was tried.
    """

    reason: str
    kinds: tuple[str, ...]
    words: tuple[str, ...] = ()
    closes: int | None = None


@dataclass(frozen=True)
class AuditResult:
    """The results of an audit. Totals are means over rows, in reward units.

    `gold_source` is None if the data has no right answers: then there are no holes, and kinds are only compared with
    each other. `main` is the component that best distinguishes gold answers from the others. In `num_unrecognised` rows
    the gold answer gets no more than the worst degenerate one; `unrecognised` means that these are too many for
    meaningful results. `blind` are components that score gold answers like all the others.
    """

    rows: int
    texts: int
    gold_source: str | None
    gold_way: str | None
    gold_text: str | None
    gold_total: float | None
    gold_contributions: Mapping[str, float | None]
    gold_raw: Mapping[str, float | None]
    """Component -> the median of its raw scores of the gold answers."""
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


Retry = Callable[[tuple[str, ...], tuple[str, ...]], AuditResult]
"""(words, names of kinds) -> the audit of these kinds with these words added to the typed ones."""

_READY = {
    "numeric_answer": "rlhf_cli.rewards.numeric:numeric_answer",
    "exact_match": "rlhf_cli.rewards.match:exact_match",
}
"""Rewards that compare with the column `answer`."""
HINTS = {
    "empty": "return 0.0 for a text of which `.strip()` leaves nothing, or let it count only where the answer is right",
    "invisible": "strip white space and what is not printable before anything is counted",
    "prompt_echo": "score against the right answer, not against the prompt",
    "other_gold": "compare with this row's own answer (zip completions with the column) and not with all of them",
    "many_answers": "compare the one answer that the text settles on (numeric_answer, exact_match), not any of them",
    "gold_in_junk": "compare the one answer that the text settles on (numeric_answer, exact_match), not any of them",
    "part_of_gold": "compare all of the answer, not how it begins",
    "form_only": "form is no content: let it count only where the answer is right, or weigh it far less",
    "tags_only": "form is no content: let it count only where the answer is right, or weigh it far less",
    "repetition": "clip what one word can earn, or put a price on repeating: reward@rewards.repetition=repetition",
    "longest": "put a price on length (truncation=soft_overlong), or let length count up to a bound: length_ramp",
    "common_answer": "score against the right answer of the row",
    "keywords": "words are no reasoning: let them count only where the answer is right, or not at all",
    "opener": "ask the judge for the right answer first; gate it by a rule; or add a judge that sees the reference",
    "judge_injection": "put the answer between marks that the rubric names, and gate the judge by a rule",
    "early_exit": "count what the dataset's tests say, not how the program ends: code_passes_tests",
}
"""Map kind -> how to change a reward if no override closes the hole."""


def with_advice(result: AuditResult, experiment: Experiment, retry: Retry | None) -> AuditResult:
    """Return the audit with advice against every hole, tried advice that closes the most first.

    retry: None if trying is too expensive.
    """
    by_component: dict[str, list[KindResult]] = {}
    for kind in [*result.holes, *result.near]:
        if kind.let_in is not None:
            by_component.setdefault(kind.let_in, []).append(kind)
    advice = [_for_component(name, kinds, result, experiment, retry) for name, kinds in by_component.items()]
    return replace(result, advice=tuple(sorted(advice, key=lambda one: -(one.closes or 0))))


def _for_component(
    name: str, kinds: Sequence[KindResult], result: AuditResult, experiment: Experiment, retry: Retry | None
) -> AuditAdvice:
    names = tuple(kind.name for kind in kinds)
    best: AuditAdvice | None = None
    for reason, words in _candidates(name, kinds, result, experiment):
        if retry is None:
            return AuditAdvice(reason, names, words)
        try:
            again = retry(words, names)
        except RlhfError:
            continue  # the experiment does not accept these words
        still = {kind.name for kind in [*again.holes, *again.near]}
        closes = 0 if again.unrecognised and not result.unrecognised else len(set(names) - still)
        if closes and (best is None or closes > (best.closes or 0)):
            best = AuditAdvice(reason, names, words, closes)
        if closes == len(names):
            break
    hint = HINTS[names[0]]
    return best or AuditAdvice(f"nothing in the configuration closes it: {hint}", names)


def _candidates(
    name: str, kinds: Sequence[KindResult], result: AuditResult, experiment: Experiment
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (reason, words) that may close the holes of `name`, the smallest change first."""
    guard = result.main
    if name not in experiment.rewards:
        return
    is_gated = guard in {gate.by for gate in experiment.rewards[name].gates}
    least = None if guard is None else result.gold_raw.get(guard)
    if guard not in (None, name) and not is_gated and least is not None:
        yield (
            f"{name} is to count only where {guard} knows the answer",
            (f"rewards.{name}.gate={{by: {guard}, at_least: {least:g}}}",),
        )
    source, _, column = (result.gold_source or "").partition(" ")
    # The ready-made rewards compare with the column `answer`.
    rename = () if column == "answer" else (f"data.rename.answer={column}",)
    for ready, fn in _READY.items() if source == "column" else ():
        if guard == name and experiment.rewards[name].fn is not None:
            yield f"{ready} reads the one answer that a text settles on", (*rename, f"rewards.{name}.fn={fn}")
    for ready in _READY if source == "column" and "right" not in experiment.rewards else ():
        yield (
            f"no reward here knows the answer: {ready} does, and the others count only where it does",
            (*rename, f"reward@rewards.right={ready}", "primary={by: right, at_least: 1.0}"),
        )
    if any(kind.name == "repetition" for kind in kinds):
        yield "repeating has a price", ("reward@rewards.repetition=repetition", "rewards.repetition.weight=1.0")
    if any(kind.name == "longest" for kind in kinds):
        yield "an answer that is cut off has a price", ("truncation=eos_penalty",)
