"""Defines the totals of a run as data classes: workload, evaluations, checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rlhf_cli.plan.checkpoint_space import CheckpointSpace


@dataclass(frozen=True)
class Workload:
    """The totals of a run over all its processes; None if they depend on data that is not read yet.

    `rounds` of generation are a fraction if the run ends within a round, which is still generated in full.
    `steps_a_round` is the number of optimizer steps per round. `rows` counts rows trained on as they are. `epochs` are
    passes over the data in both cases. `max_tokens` are generated, or trained on. `longest_prompt` and `longest_row`
    are in tokens.
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
        """Return a dict of the counts."""
        return asdict(self)


@dataclass(frozen=True)
class Evaluations:
    """How often a run is evaluated, on how many `rows`, with how many `completions` per evaluation.

    `times` and `rows` are None if the data decides; `every` says when, in words.
    """

    every: str
    times: int | None
    rows: int | None
    completions: int | None

    def as_json(self) -> dict[str, object]:
        """Return a dict of the counts."""
        return asdict(self)


@dataclass(frozen=True)
class Checkpoints:
    """How often a checkpoint is saved (`times` is None if the data decides), and the `space` needed, if known."""

    every: str
    times: int | None
    space: CheckpointSpace | None

    def as_json(self) -> dict[str, object]:
        """Return a dict of the counts, with sizes in bytes."""
        space = self.space
        return {
            "every": self.every,
            "times": self.times,
            "checkpoint_bytes": space.checkpoint if space is not None else None,
            "at_once": space.copies if space is not None else None,
            "model_bytes": space.model if space is not None else None,
            "total_bytes": space.total if space is not None else None,
        }
