"""Lists TRL's GRPO losses that PPO and dense rewards can use, one row each, with their normaliser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Normaliser = Literal["row", "rows", "max_length", "window", "micro-batch"]
"""What a loss divides the sum over tokens by: the tokens of each row, the number of rows, that number times the maximal
completion length, the tokens of the accumulation window, or the tokens of the micro-batch.
"""


@dataclass(frozen=True)
class LossRow:
    """A value of `loss_type`. `is_clipped_ppo`: it is PPO's clipped loss with per-token advantages.

    `takes_token_advantages`: it does not use one number per sequence.
    """

    name: str
    normaliser: Normaliser
    is_clipped_ppo: bool = False
    takes_token_advantages: bool = True


_ROWS = (
    LossRow("grpo", "row", is_clipped_ppo=True),
    LossRow("dr_grpo", "max_length", is_clipped_ppo=True),
    LossRow("dapo", "window", is_clipped_ppo=True),
    LossRow("bnpo", "micro-batch", is_clipped_ppo=True),
    LossRow("cispo", "window"),
    LossRow("sapo", "row"),
    LossRow("luspo", "rows", takes_token_advantages=False),
    LossRow("vespo", "window"),
)

POLICY_LOSSES: dict[str, LossRow] = {row.name: row for row in _ROWS}
"""`loss_type` -> row. A contract test compares the names with TRL's."""
