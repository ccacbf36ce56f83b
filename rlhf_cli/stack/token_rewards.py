"""Lay each row's weighted rewards out on its tokens."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rlhf_cli.stack.settling import Settled


class TokenStack(Protocol):
    """Name what is needed of a reward stack to lay rewards out on tokens."""

    def token_values(self, name: str, row: int, divisor: float) -> list[float | None] | None:
        """Return the values of a dense row, one a token, after offset and clip and divided by `divisor`; None for a row
        whose score was no dense one.
        """
        ...


def token_rewards(
    stack: TokenStack, settled: Settled, is_in_completion: Tensor, own_rows: slice
) -> tuple[Tensor, Tensor]:
    """Return (values, is_rewarded): (K, rows of this rank, tokens) and (rows, tokens), True = some reward was given
    there.

    A dense score lies where its tokens do; a plain one, a closed gate's number and a failure's lie on the completion's
    last token. So does all of a row whose rewards give way to a penalty: there they cancel, and no token before it is
    charged for what the tokens before that had earned. An excluded component gives no position.
    is_in_completion: (rows, tokens), True = not padding.
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
    """Return (K, rows of this rank, tokens): every component's part of the row's total on the completion's last
    token.

    0 elsewhere, and throughout in a row without tokens or without a score. is_in_completion as above.
    """
    parts = (settled.for_trl * settled.trl_weights)[own_rows].nan_to_num(0.0).T.to(torch.float32)
    length = is_in_completion.sum(dim=1)
    positions = torch.arange(is_in_completion.shape[1], device=is_in_completion.device)
    is_last = positions == (length - 1).unsqueeze(1)
    return parts.unsqueeze(2) * is_last
