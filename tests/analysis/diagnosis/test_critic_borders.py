"""A critic on both sides of every border of docs/how-to/diagnosis.md, without noise; told word by word."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.planted_logs import GRPO, PPO, Values, told, verdict

Curves = dict[str, Values]


def line(start: float, end: float, n: int = 20) -> list[float]:
    return [float(value) for value in np.linspace(start, end, n)]


VALUE, EXPLAINED = "ppo/value_loss", "ppo/explained_variance"


@pytest.mark.parametrize(
    ("values", "max_steps", "expected"),
    [
        ([-0.5] * 9, None, "unseen"),
        ([-0.5] * 10, None, "warning"),
        ([0.0] * 20, None, "fine"),
        ([0.5] * 10 + [-0.5] * 10, None, "warning"),
        ([-0.5] * 10 + [0.5] * 10, None, "fine"),
        ([-0.5] * 10 + [0.0] * 2 + [-0.5] * 8, None, "warning"),
        ([0.5] * 10 + [0.0] * 3 + [-0.5] * 7, None, "fine"),
        ([-0.5] * 10, 20, "warning"),
        ([-0.5] * 10, 21, "unseen"),
        (line(-1.0, -0.25), None, "fine"),  # it learns
        ([*line(-1.0, -0.25, 15), *[-0.5] * 5], None, "warning"),  # no more
        (line(-0.25, -1.0), None, "warning"),
    ],
)
def test_explained_variance(values: list[float], max_steps: int | None, expected: str) -> None:
    assert verdict({EXPLAINED: values}, PPO, max_steps=max_steps, kind="explained_variance") == expected


def test_explained_variance_is_told() -> None:
    curves: Curves = {EXPLAINED: [-0.5] * 20}
    for rates, words in (({}, "1e-4"), ({"critic/learning_rate": [0.0]}, "1e-4"),
                         ({"critic/learning_rate": [0.5, 2.0, 1.0]}, "6")):  # fmt: skip
        assert told({**curves, **rates}, PPO, kind="explained_variance").splitlines() == [
            "warning : the critic foresees less than a constant would: explained variance -0.5 on average over steps "
            "11 to 20 @ 11-20",
            f"  {EXPLAINED}: -0.5 -> -0.5, steps 1 to 20",
            f"  try critic.learning_rate={words}",
            "  try critic.warmup_steps=32",
        ]
    assert told(curves, GRPO, kind="explained_variance") == "fine: there is no critic"


def quarters(*values: float) -> list[float]:
    return [value for value in values for _ in range(4)]


@pytest.mark.parametrize(
    ("loss", "std", "expected"),
    [
        (line(1, 4, 11), None, "unseen"),
        (line(1, 4, 12), None, "warning"),
        (line(1, 2.1, 12), None, "fine"),  # quarters of 1.1 and 2
        (line(1, 2.7, 12), None, "warning"),  # 1.15 and 2.55
        (line(4, 1, 12), None, "fine"),
        (quarters(1, 8, 1, 8), None, "unseen"),  # four values that count
        # It grew after the second quarter and has not since: from there on it is a rise all the same.
        (
            [1.0] * 10
            + [0.05, 0.15] * 5
            + [one + 0.05 * (-1) ** k for k, one in enumerate(line(0.1, 0.4, 10))]
            + [0.45, 0.35] * 5,
            None,
            "warning",
        ),
        ([0.25] * 8 + [0.375] * 4 + [0.4375] * 3 + [0.5] * 5, None, "warning"),  # twice what it was, and not more
        # The returns' variance from 1 to 4 as well, or to 2, or what nine events say of it.
        (line(1, 4, 16), line(1, 2, 16), "fine"),
        (line(1, 4, 16), line(1, 1.25, 16), "warning"),
        (line(1, 4, 16), line(1, 2, 9), "warning"),
        # The loss three times, the variance two and a half times: 1.2 times as much, and not more.
        (quarters(0.25, 0.375, 0.5, 0.75), [*[1.0] * 12, 1.0, 1.0, 2.0, 2.0], "warning"),
    ],
)
def test_value_loss(loss: list[float], std: list[float] | None, expected: str) -> None:
    assert verdict({VALUE: loss, **({"ppo/returns_std": std} if std else {})}, PPO, kind="value_loss") == expected


def test_value_loss_is_told_from_its_lowest_quarter_on() -> None:
    loss = [*[1.0] * 5, *line(0.25, 1.0, 15)]  # the second quarter is the lowest
    curves: Curves = {VALUE: loss, "ppo/returns_std": [1.0] * 15 + [1.25] * 5, "critic/learning_rate": [0.25, 0.75]}
    second, last = np.mean(loss[5:10]), np.mean(loss[15:])
    assert told(curves, PPO, kind="value_loss").splitlines() == [
        f"warning : the critic's loss grows: {last / second:.1f} times what it was, the returns' variance 1.6 times "
        "@ 1-20",
        f"  {VALUE}: 1 -> 0.973, steps 1 to 20",
        "  ppo/returns_std: 1 -> 1.25, steps 1 to 20",
        "  try critic.learning_rate=0.25",
        "  try critic.max_grad_norm=0.5",
    ]
    assert told({VALUE: loss}, GRPO, kind="value_loss") == "fine: there is no critic"
