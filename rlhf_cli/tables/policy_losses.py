"""List TRL's losses of GRPO that PPO and dense rewards can use, one row each, with what normalises them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Normaliser = Literal["row", "rows", "max_length", "window", "micro-batch"]
"""What a loss divides the sum over tokens by: the tokens of each row, the number of rows, that number times the maximal
length of a completion, the tokens of the accumulation window, or those of the micro-batch."""


@dataclass(frozen=True)
class LossRow:
    """Describe one value of `loss_type`. `is_clipped_ppo`: it is PPO's clipped loss with an advantage a token.

    `takes_token_advantages`: it is not one number a sequence.
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
"""`loss_type` -> row. A contract test holds the names against TRL's own."""
