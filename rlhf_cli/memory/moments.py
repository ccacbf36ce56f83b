"""Holds the memory of one device as values: the moments of a run, and in each the bytes of every part.

Moments are never added up: the same bytes serve one after the other. Generation and learning each have their fullest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Phase = Literal["generation", "training"]
Part = Literal[
    "weights",
    "gradients",
    "optimizer",
    "reference",
    "critic",
    "reward models",
    "activations",
    "logits",
    "KV cache",
    "vLLM",
    "kept by malloc",
]


@dataclass(frozen=True)
class Moment:
    """What lies in the memory of a device at one moment of a `phase`: bytes by part, without what has none.

    `what` says in words what is being done.
    """

    phase: Phase
    what: str
    parts: Mapping[Part, int]

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts.values())

    @property
    def largest(self) -> Part:
        """Return the part that takes most. What malloc keeps comes of the others, and is lowered with them."""
        return max(self.parts, key=lambda part: (part != "kept by malloc", self.parts[part]))

    def as_json(self) -> dict[str, object]:
        """Return the moment as JSON has it, sizes in bytes."""
        parts = {part.replace(" ", "_"): size for part, size in self.parts.items()}
        return {"phase": self.phase, "what": self.what, "total_bytes": self.total, "parts_bytes": parts}


@dataclass(frozen=True)
class Lowering:
    """What to type, word by word, to lower a part, and why that is cheap."""

    part: Part
    words: tuple[str, ...]
    why: str

    def as_json(self) -> dict[str, object]:
        """Return the fields by name."""
        return asdict(self) | {"words": list(self.words)}


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs of the memory of one device, as far as that is known before it starts.

    `moments` is empty where it is not known, and `unknown` says why. `leaves_out` says what is not counted, in words.
    `device_bytes` is how much memory the device has, None where nobody can say; `cheapest` lowers the largest part of
    the fullest moment for which there is anything to type.
    """

    moments: Sequence[Moment] = ()
    unknown: str = ""
    leaves_out: tuple[str, ...] = ()
    device: Literal["GPU", "CPU"] = "CPU"
    device_bytes: int | None = None
    cheapest: Lowering | None = None

    def fullest(self, phase: Phase) -> Moment | None:
        """Return the moment of a phase in which most is held; None where there is no such phase."""
        of_phase = [moment for moment in self.moments if moment.phase == phase]
        return max(of_phase, key=lambda moment: moment.total) if of_phase else None

    @property
    def peak(self) -> Moment | None:
        """Return the fullest moment of all."""
        return max(self.moments, key=lambda moment: moment.total) if self.moments else None

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON has it, sizes in bytes; generation and training are not to be added up."""
        peak, phases = self.peak, ("generation", "training")
        fullest = {phase: moment.as_json() for phase in phases if (moment := self.fullest(phase)) is not None}  # type: ignore[arg-type]
        return {
            "device": self.device,
            "device_bytes": self.device_bytes,
            "peak_bytes": peak.total if peak is not None else None,
            "fullest": fullest,
            "moments": [moment.as_json() for moment in self.moments],
            "unknown": self.unknown or None,
            "leaves_out": list(self.leaves_out),
            "cheapest": self.cheapest.as_json() if self.cheapest is not None else None,
        }
