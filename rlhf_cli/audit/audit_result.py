"""Holds what an audit found, as values: the gold answer's reward, and every kind of degenerate answer against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from rlhf_cli.numerics.intervals import Estimate


@dataclass(frozen=True)
class Contribution:
    """Holds the mean weighted reward of one component: of the degenerate answers, and of the gold ones."""

    attack: float
    gold: float | None


@dataclass(frozen=True)
class KindResult:
    """Holds what one kind of degenerate answer got, by the variant that did best.

    Of `rows` with a gold answer it beats the gold's total in `beats` and ties in `ties` (where the gold answer is paid
    at all); `share` is both of them with Wilson's interval. `is_near`: no hole, but in too many rows it gets all that
    the main component gives the gold answer, or nearly the gold's total. `margin` is the mean of its total less the
    gold's. `contributions` are means over the rows in which it beats or ties, over all rows where it does so
    in none. `let_in` is the component that pays it most beyond the gold answer. `text` is one that beat or tied, else
    the first.
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
    """Component -> what it raised on such a text."""
    shown_row: int = 0


@dataclass(frozen=True)
class Advice:
    """Holds what to do against holes: words to type where there are any, and whether they were tried.

    `closes` of the `holes` named kinds were closed when the words were tried; None where there is nothing to try.
    """

    reason: str
    kinds: tuple[str, ...]
    words: tuple[str, ...] = ()
    closes: int | None = None


@dataclass(frozen=True)
class AuditResult:
    """Holds an audit. Totals are means over rows, in reward units.

    `gold_source` is None where the data has no right answers: then nothing is a hole, and kinds are only compared with
    each other. `main` is the component that tells gold answers from the others best. `num_unrecognised` rows pay the
    gold answer no more than the worst degenerate one, `unrecognised` says that these are too many for the rest to mean
    much. `blind` are components that give the gold answers nothing that they do not give to all the others.
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
    advice: tuple[Advice, ...] = ()

    @property
    def holes(self) -> list[KindResult]:
        """Return the kinds that get as much as the gold answer, or more, in too many rows."""
        return [kind for kind in self.kinds if kind.is_hole]

    @property
    def near(self) -> list[KindResult]:
        """Return the kinds that come near, by the main component or in total."""
        return [kind for kind in self.kinds if kind.is_near]

    @property
    def is_sound(self) -> bool | None:
        """Return whether nothing was found; None where there is no gold answer to tell by."""
        return None if self.gold_source is None else not (self.holes or self.unrecognised)

    def advised(self, advice: list[Advice]) -> AuditResult:
        """Return the same audit with what to do about it."""
        return replace(self, advice=tuple(advice))

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf audit --json` prints."""
        return {"is_sound": self.is_sound, "holes": [kind.name for kind in self.holes], **asdict(self)}
