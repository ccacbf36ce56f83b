"""Holds what a run will do in all as values: rounds, prompts, completions, tokens, evaluations, checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rlhf_cli.plan.checkpoint_space import CheckpointSpace


@dataclass(frozen=True)
class Workload:
    """The counts of a run over all its processes; None where the data decides when it is read.
    `rounds` of generation are a fraction where the run ends within one, which is generated whole all the same.
    `steps_a_round`: optimizer steps that learn from one round. `rows` are those learned from as they are, with `epochs`
    of the data either way. `max_tokens` are those generated, or learned from. `longest_prompt` and `longest_row` are in
    tokens.
    """

    steps: int | None = None
    rounds: float | None = None
    steps_a_round: float | None = None
    prompts: int | None = None
    completions: int | None = None
    rows: int | None = None
    epochs: float | None = None
    max_tokens: int | None = None
    longest_prompt: int | None = None
    longest_row: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the counts by name."""
        return asdict(self)


@dataclass(frozen=True)
class Evaluations:
    """How often a run is evaluated on how many `rows`, each of them with so many `completions` in all.

    `times` and `rows` are None where the data decides; `every` says when, in words.
    """

    every: str
    times: int | None
    rows: int | None
    completions: int | None

    def as_json(self) -> dict[str, object]:
        """Return the counts by name."""
        return asdict(self)


@dataclass(frozen=True)
class Checkpoints:
    """How often a run is saved: `times` is None where the data decides. `space` says in how many bytes, where known."""

    every: str
    times: int | None
    space: CheckpointSpace | None

    def as_json(self) -> dict[str, object]:
        """Return the counts by name, sizes in bytes."""
        space = self.space
        return {
            "every": self.every,
            "times": self.times,
            "checkpoint_bytes": space.checkpoint if space is not None else None,
            "at_once": space.copies if space is not None else None,
            "model_bytes": space.model if space is not None else None,
            "total_bytes": space.total if space is not None else None,
        }
