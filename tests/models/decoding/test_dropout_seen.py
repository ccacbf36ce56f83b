"""Which models leave something out by chance, so that no row may be read for another."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from rlhf_cli.models.decoding import eligibility


class _Dropping(nn.Module):
    """What drops out by a number of its own, as attention does."""

    def __init__(self, **numbers: Any) -> None:
        super().__init__()
        vars(self).update(numbers)


@pytest.mark.parametrize(
    ("module", "drops"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout(0.1).eval(), False),
        (nn.AlphaDropout(0.1), True),
        (nn.Linear(2, 2), False),
        (_Dropping(attention_dropout=0.1), True),
        (_Dropping(attention_dropout=0.0), False),
        (_Dropping(dropout="none", momentum=0.1), False),
        (_Dropping(attention_dropout=0.1).eval(), False),
        (nn.Sequential(nn.Dropout(0.1).eval(), nn.Dropout(0.2)), True),
    ],
)
def test_what_is_left_out_by_chance(module: nn.Module, drops: bool) -> None:
    assert eligibility.drops_out(module) is drops
