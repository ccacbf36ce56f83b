"""List what plan and rules know of each algorithm, without torch; rlhf_cli/algorithms computes the advantages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AlgorithmRow:
    """An algorithm of a trainer that generates.

    `reads`: TRL's arguments that shape its advantages. `needs_critic`: it compares a row with a critic's values instead
    of the other rows of its prompt.
    """

    name: str
    reads: tuple[str, ...] = ()
    needs_critic: bool = False

    @property
    def least_generations(self) -> int:
        """Return how many completions a prompt needs at least."""
        return 1 if self.needs_critic else 2


_ROWS = (
    AlgorithmRow("grpo", reads=("scale_rewards",)),
    AlgorithmRow("rloo", reads=("normalize_advantages", "reward_clip_range")),
    AlgorithmRow("ppo", needs_critic=True),
    AlgorithmRow("own"),
)
ALGORITHMS: dict[str, AlgorithmRow] = {row.name: row for row in _ROWS}
"""Name -> row."""
READ_BY_ALGORITHMS = tuple(name for row in _ROWS for name in row.reads)
"""Every argument of TRL's that shapes the advantages of an algorithm."""
