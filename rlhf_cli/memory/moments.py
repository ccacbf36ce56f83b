"""Defines the memory of one device as data classes: the moments of a run, and the bytes of every part in each.

Moments must not be added up, because they reuse the same memory. Generation and training each have their own peak.
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
    """The memory of a device at one moment of a `phase`: bytes by part, without empty parts.

    `what` describes the activity in words.
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
        """Return the largest part. What malloc retains depends on the other parts and shrinks with them, so it comes
        last.
        """
        return max(self.parts, key=lambda part: (part != "kept by malloc", self.parts[part]))

    def as_json(self) -> dict[str, object]:
        """Return the moment as JSON values, with sizes in bytes."""
        parts = {part.replace(" ", "_"): size for part, size in self.parts.items()}
        return {"phase": self.phase, "what": self.what, "total_bytes": self.total, "parts_bytes": parts}


@dataclass(frozen=True)
class Lowering:
    """The words to type to lower a part, and why that is cheap."""

    part: Part
    words: tuple[str, ...]
    why: str

    def as_json(self) -> dict[str, object]:
        """Return a dict of the fields."""
        return asdict(self) | {"words": list(self.words)}


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs of the memory of one device, as far as that is known before it starts.

    `moments` is empty if that is unknown, and `unknown` says why. `leaves_out` lists in words what is not counted.
    `device_bytes` is the memory of the device, None if unknown. `cheapest` lowers the largest part of the peak for
    which there is a suggestion.
    """

    moments: Sequence[Moment] = ()
    unknown: str = ""
    leaves_out: tuple[str, ...] = ()
    device: Literal["GPU", "CPU"] = "CPU"
    device_bytes: int | None = None
    cheapest: Lowering | None = None

    def fullest(self, phase: Phase) -> Moment | None:
        """Return the peak moment of a phase, or None if the run has no such phase."""
        of_phase = [moment for moment in self.moments if moment.phase == phase]
        return max(of_phase, key=lambda moment: moment.total) if of_phase else None

    @property
    def peak(self) -> Moment | None:
        """Return the peak moment of the run."""
        return max(self.moments, key=lambda moment: moment.total) if self.moments else None

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON values, with sizes in bytes; do not add up generation and training."""
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
