"""Hold the results of an audit: the gold answer's reward, and each kind of degenerate answer compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

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
class Advice:
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
    advice: tuple[Advice, ...] = ()

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

    def advised(self, advice: list[Advice]) -> AuditResult:
        """Return the same audit with advice."""
        return replace(self, advice=tuple(advice))

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf audit --json` prints."""
        return {"is_sound": self.is_sound, "holes": [kind.name for kind in self.holes], **asdict(self)}
