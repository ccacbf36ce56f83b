"""Distribute each row's weighted rewards over its tokens."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rlhf_cli.rewards.stack.settling import Settled


class TokenStack(Protocol):
    """The part of a reward stack that token rewards need."""

    def token_values(self, name: str, row: int, divisor: float) -> list[float | None] | None:
        """Return a dense row's values, one per token, after offset and clip and divided by `divisor`.

        Return None if the row's score was not dense.
        """
        ...


def token_rewards(
    stack: TokenStack, settled: Settled, is_in_completion: Tensor, own_rows: slice
) -> tuple[Tensor, Tensor]:
    """Return (values, is_rewarded) of shapes (K, rows of this rank, tokens) and (rows, tokens); True = rewarded.

    A dense score is placed on its tokens. A plain score, or the number of a closed gate or a failure, is placed on the
    completion's last token. A row whose rewards a penalty replaces has everything on the last token: the rewards cancel
    there, and no earlier token is charged for what the tokens before it earned. An excluded component rewards no
    position. is_in_completion: (rows, tokens), True = not padding.
    """
    # Filled as lists: setting single entries of a tensor costs more than everything else here.
    num_rows, num_tokens = is_in_completion.shape
    values = [[[0.0] * num_tokens for _ in range(num_rows)] for _ in settled.names]
    rewarded = [[False] * num_tokens for _ in range(num_rows)]
    last = (is_in_completion.sum(dim=1) - 1).tolist()
    weights = settled.weights.tolist()
    unfilled, divisors = settled.unfilled[own_rows].tolist(), settled.divisors[own_rows].tolist()
    gives_way = [False] * num_rows if settled.is_replaced is None else settled.is_replaced[own_rows].tolist()
    for row, effective in enumerate(unfilled):
        if last[row] < 0:
            continue
        for index, total in enumerate(effective):
            if total != total:  # NaN: the component does not apply
                continue
            tokens = None
            if index < len(divisors[row]) and not gives_way[row]:
                tokens = stack.token_values(settled.names[index], row, divisors[row][index])
            for token, value in [(last[row], total)] if tokens is None else enumerate(tokens):
                if value is not None:
                    values[index][row][token] += weights[index] * value
                    rewarded[row][token] = True
    device = is_in_completion.device
    return torch.tensor(values, device=device), torch.tensor(rewarded, device=device)


def last_token_rewards(settled: Settled, is_in_completion: Tensor, own_rows: slice) -> Tensor:
    """Return (K, rows of this rank, tokens) with each component's part of the total on the last completion token.

    All other entries are 0, as are rows without tokens or score. is_in_completion as in `token_rewards`.
    """
    parts = (settled.for_trl * settled.trl_weights)[own_rows].nan_to_num(0.0).T.to(torch.float32)
    length = is_in_completion.sum(dim=1)
    positions = torch.arange(is_in_completion.shape[1], device=is_in_completion.device)
    is_last = positions == (length - 1).unsqueeze(1)
    return parts.unsqueeze(2) * is_last
