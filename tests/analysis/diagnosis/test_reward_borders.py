"""Rewards without noise on both sides of every border of docs/how-to/diagnosis.md, and findings told word by word."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.analysis.diagnosis.finding import RunSetup
from tests.support.planted_logs import GRPO, Values, reward, told, verdict

Curves = dict[str, Values]


def judge(errors: float, timeouts: float = 0.0, n: int = 10) -> Curves:
    """Of a hundred rows a round so many fail, in so many of these the time ran out."""
    return reward("judge", mean=[0.5] * n, calls=[100.0] * n, errors=[errors] * n, timeouts=[timeouts] * n)


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        (judge(1.99), "fine"),
        (judge(2.0), "warning"),
        (judge(9.9), "warning"),
        (judge(10.0), "serious"),
        (judge(1.0, 0.99), "fine"),
        (judge(1.0, 1.0), "warning"),
        ({**judge(1.0), "rewards/judge/errors": [0.0] * 9 + [20.0]}, "warning"),  # 20 of 1,000
        ({"loss": [0.1]}, "unseen"),
        (reward("asked", mean=[0.5]), "fine"),
    ],
)
def test_reward_errors(curves: Curves, expected: str) -> None:
    assert verdict(curves, kind="reward_errors") == expected


def test_reward_errors_are_told_by_the_round() -> None:
    others = {**reward("rule", mean=[0.5] * 10), **reward("good", mean=[0.5], calls=[8.0], errors=[0.0])}
    assert told({**others, **judge(4.0, 1.0)}, kind="reward_errors") == "\n".join(
        [
            "warning judge: reward judge fails: 4.0% of the rows it was asked for failed, 1.0% in time @ 1-10",
            "  rewards/judge/errors: 4 of 100 rows a round; reward_errors.jsonl in the run folder keeps them",
            "  try rewards.judge.timeout_s=off",
            "  try rewards.judge.on_error=raise",
        ]
    )
    assert "timeout_s" not in told(judge(4.0, 0.5), kind="reward_errors")
    assert told({**reward("rule", mean=[0.5]), **judge(1.0)}, kind="reward_errors") == (
        "fine: fewer than 2% of the rows failed: rule, judge"
    )


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        (reward("a", mean=[0.5] * 9, std=0.0), "unseen"),
        (reward("a", mean=[0.5] * 10, std=0.0), "serious"),
        (reward("a", mean=[0.0] * 10, std=0.0), "serious"),
        (reward("a", mean=[0.5] * 10, std=0.0, weight=[0.0] * 10), "warning"),
        # To a millionth of its size, by its mean and by its rows.
        (reward("a", mean=[400.0] * 9 + [400.0003], std=0.0), "serious"),
        (reward("a", mean=[400.0] * 9 + [400.0005], std=0.0), "fine"),
        (reward("a", mean=[-400.0] * 10, std=[0.0] * 9 + [0.0003]), "serious"),
        (reward("a", mean=[400.0] * 10, std=[0.0] * 9 + [0.0005]), "fine"),
        (reward("a", mean=[0.0, 1e-13] * 5, std=0.0), "fine"),
        # Its gate is to blame from fewer rows than one in a hundred.
        (reward("a", mean=[0.5] * 10, std=0.0, open_fraction=[0.0078125] * 10), ""),
        (reward("a", mean=[0.5] * 10, std=0.0, open_fraction=[0.01]), "fine"),
        # Behind a gate that not all rows pass the same score tells rows apart.
        (reward("a", mean=[1.0] * 10, std=0.0, open_fraction=[1.0] * 9 + [0.98]), "fine"),
        (reward("a", mean=[1.0] * 10, std=0.0, open_fraction=[1.0] * 10), "serious"),
        ({"rewards/a/mean": [None] * 9, "loss": [0.1] * 9}, "unseen"),
        ({"rewards/a/mean": [None] * 10, "loss": [0.1] * 10}, "serious"),
    ],
)
def test_dead_reward(curves: Curves, expected: str) -> None:
    assert verdict(curves, kind="dead_reward") == expected


def test_dead_rewards_are_told_each() -> None:
    curves = {
        **reward("shut", mean=[0.5] * 10, std=0.0, open_fraction=[0.0] * 10),
        **reward("never", mean=[None] * 10, std=[None] * 10),
        **reward("same", mean=[0.25] * 10, std=0.0),
        **reward("short", mean=[0.25] * 4),
        **reward("one", mean=[0.25] * 10),
        **reward("two", mean=[0.25] * 10),
    }
    score = ["  try rlhf score RUN"]
    assert told(curves, kind="dead_reward").splitlines() == [
        "serious same: reward same is 0.25 on every row: it teaches nothing @ 1-10",
        "  rewards/same/mean: 0.25 on average over steps 1 to 10",
        "  try rewards.same.weight=0",
        *score,
        "unseen: short: too few log events, 4 of 10",
        "serious never: reward never never applied to any row @ 0-10",
        "  rewards/never/mean: null in all 10 log events up to step 10",
        "  try rewards.never.weight=0",
        *score,
        "fine: one, two told rows apart",
    ]


GATED = RunSetup(trainer="grpo", gated={"style": ("runs", "tests")})


@pytest.mark.parametrize(
    ("opened", "max_steps", "expected"),
    [
        ([0.0] * 9, None, "unseen"),
        ([0.0] * 10, None, "serious"),
        ([0.0] * 11 + [0.12], None, "fine"),  # one row in a hundred
        ([0.0] * 11 + [0.11], None, "serious"),
        ([1.0] * 11, None, "fine"),
        ([1.0] * 12, None, "note"),
        ([1.0] * 11 + [0.991], None, "note"),
        ([1.0] * 11 + [0.99], None, "fine"),
        ([1.0] * 12, 24, "note"),
        ([1.0] * 12, 25, "unseen"),
    ],
)
def test_gate(opened: list[float], max_steps: int | None, expected: str) -> None:
    curves = {"rewards/style/open_fraction": opened}
    assert verdict(curves, GATED, max_steps=max_steps, kind="gate") == expected


def test_gates_are_told_with_what_they_read() -> None:
    two = RunSetup(gated={"few": ("x",), "style": ("runs", "tests"), "last": ("x",)})
    curves = {
        "rewards/style/open_fraction": [0.0] * 10,
        "rewards/runs/mean": [0.25] * 10,
        "rewards/last/open_fraction": [1.0] * 12,
    }
    assert told(curves, two, kind="gate").splitlines() == [
        "unseen: few: too few log events, 0 of 10",
        "serious style: the gate of style on runs and tests is open for 0.0% of the rows: style hardly ever counts "
        "@ 1-10",
        "  rewards/style/open_fraction: 0 on average over steps 1 to 10",
        "  rewards/runs/mean: 0.25 on average over steps 1 to 10",
        "  try rewards.style.gate=null",
        "note last: the gate of last on x has never closed: it changes nothing @ 1-12",
        "  rewards/last/open_fraction: 1 on average over steps 1 to 12",
        "  try rewards.last.gate=null",
    ]
    early = told({"rewards/style/open_fraction": [1.0] * 12}, GATED, max_steps=99, kind="gate")
    assert early == "unseen: it is step 12 of 99: too early to say what does not change"
    assert told(curves, GRPO, kind="gate") == "fine: no reward has a gate"


def alike(r: Values, *, std: Values = (0.5,) * 20, name: str = "a/b", **weights: float) -> Curves:
    """Rewards a and b whose rows are correlated by `r`, an event each."""
    both = {"a": 1.0, "b": 1.0, **weights}
    curves = {name: values for one, weight in both.items()
              for name, values in reward(one, mean=[0.5] * 20, std=std, weight=[weight] * 20).items()}  # fmt: skip
    return {**curves, f"rewards/correlation/{name}": r}


@pytest.mark.parametrize(
    ("curves", "max_steps", "expected"),
    [
        (alike([1.0] * 17), None, "unseen"),
        (alike([1.0] * 18), None, "unseen"),
        (alike([1.0] * 19), None, "warning"),  # half of them are ten, rounded
        (alike([1.0] * 20, name="b/a"), None, "warning"),
        (alike([0.0] * 10 + [0.95] * 10), None, "warning"),
        (alike([0.0] * 10 + [0.9375] * 10), None, "fine"),
        (alike([1.0] * 10 + [0.0] * 2 + [1.0] * 8), None, "warning"),  # four of five
        (alike([1.0] * 10 + [0.0] * 3 + [1.0] * 7), None, "fine"),
        # By deviations of 1/2 in the first fifth, four of twenty events, the last half may have a quarter.
        (alike([1.0] * 20, std=[0.5] * 4 + [0.0] * 6 + [0.25] * 10), None, "warning"),
        (alike([1.0] * 20, std=[0.5] * 4 + [0.0] * 6 + [0.24] * 10), None, "fine"),
        (alike([1.0] * 20, std=[0.4] * 5 + [0.0] * 5 + [0.21] * 10), None, "warning"),
        (alike([1.0] * 20, std=[0.0] * 20), None, "fine"),
        (alike([1.0] * 20, std=[0.5] * 9), None, "fine"),
        (alike([1.0] * 20, std=[0.5] * 10), None, "warning"),
        (alike([1.0] * 20), 60, "warning"),
        (alike([1.0] * 20), 61, "unseen"),
    ],
)
def test_redundant(curves: Curves, max_steps: int | None, expected: str) -> None:
    assert verdict(curves, max_steps=max_steps, kind="redundant") == expected


def test_redundant_is_told_of_each_pair() -> None:
    curves = alike([0.0] * 10 + [-1.0] * 10, a=2.0, c=1.0)
    curves |= {"rewards/correlation/a/c": [0.0] * 10 + [0.97] * 10, "rewards/correlation/b/c": [0.5] * 20}
    assert told(curves, kind="redundant").splitlines() == [
        "warning a/b: a and b undo each other: correlated by -1.00, by 0.95 or more in 100% of the last log events "
        "@ 11-20",
        "  rewards/correlation/a/b: median -1.000 over steps 11 to 20",
        "  try rewards.b.weight=0",
        "warning a/c: a and c say the same: correlated by 0.97, by 0.95 or more in 100% of the last log events @ 11-20",
        "  rewards/correlation/a/c: median 0.970 over steps 11 to 20",
        "  try rewards.c.weight=0",
    ]
    apart = {**alike([0.25] * 20, c=1.0), "rewards/correlation/b/c": [-0.5] * 20}
    assert told(apart, kind="redundant") == "fine: the most alike are b and c: median -0.50 from step 11 on"
    learned = alike([0.97] * 20, std=[0.5] * 4 + [0.125] * 16)
    said = told(learned, kind="redundant")
    assert said == "fine: the most alike are a and b: median 0.97 from step 11 on; they vary little any more"
    moving = {**alike([1.0] * 20, b=1.5), "rewards/a/weight": [1.0, 3.0] * 10}
    assert "try rewards.a.weight=0" in told(moving, kind="redundant")  # 1, where it moves
    assert told(alike([1.0] * 20, b=0.0), kind="redundant") == "fine: there is one weighted reward at most"


def shares(big: Values, small: Values, **named: Any) -> Curves:
    n = len(big)
    one = reward("big", mean=[0.5] * n, std=[0.5] * n, advantage_share=big, weight=[1.0] * n)
    other = reward("small", mean=[0.5] * n, std=named.pop("std", [0.5] * n), advantage_share=small, weight=[0.25] * n)
    return {**one, **other, **named}


@pytest.mark.parametrize(
    ("curves", "max_steps", "expected"),
    [
        (shares([1.0] * 18, [0.0] * 18), None, "unseen"),
        (shares([1.0] * 20, [0.0] * 20), None, "warning"),
        (shares([0.0] * 10 + [1.0] * 10, [0.9] * 10 + [0.0] * 10), None, "warning"),
        (shares([0.9] * 20, [0.0] * 20), None, "warning"),
        (shares([0.89] * 20, [0.0] * 20), None, "fine"),
        # 0.9 on average, in four of five events or in seven of ten.
        (shares([1.0] * 18 + [0.5] * 2, [0.0] * 20), None, "warning"),
        (shares([1.0] * 17 + [0.7] * 3, [0.0] * 20), None, "fine"),
        (shares([1.0] * 20, [0.05] * 20), None, "fine"),
        (shares([1.0] * 20, [0.046875] * 20), None, "warning"),
        (shares([1.0] * 20, [-0.046875] * 20), None, "warning"),
        (shares([1.0] * 20, [-0.0625] * 20), None, "fine"),
        (shares([1.0] * 20, [0.0] * 20, std=[0.5] * 4 + [0.25] * 16), None, "warning"),
        (shares([1.0] * 20, [0.0] * 20, std=[0.5] * 4 + [0.24] * 16), None, "fine"),
        (shares([1.0] * 20, [0.0] * 20, std=[0.0] * 20), None, "fine"),
        (shares([1.0] * 20, [0.0] * 20), 60, "warning"),
        (shares([1.0] * 20, [0.0] * 20), 61, "unseen"),
        (shares([1.0] * 20, [0.0] * 9), None, "fine"),  # nothing is known of the other's share
        (reward("big", mean=[0.5] * 20, advantage_share=[1.0] * 20), None, "fine"),
    ],
)
def test_one_reward(curves: Curves, max_steps: int | None, expected: str) -> None:
    assert verdict(curves, max_steps=max_steps, kind="one_reward") == expected


def test_one_reward_is_told_with_all_that_drown() -> None:
    third = reward("minus", mean=[0.5] * 20, std=[0.125] * 20, advantage_share=[0.0] * 20, weight=[-2.0] * 20)
    watched = reward("watched", mean=[0.5] * 20, advantage_share=[0.0] * 20, weight=[0.0] * 20)
    curves = {**shares([0.5] * 10 + [0.9375] * 10, [0.03125] * 20), **third, **watched}
    assert told(curves, kind="one_reward").splitlines() == [
        "warning big: big has 0.94 of the advantages, and small and minus, which still varies, next to none @ 11-20",
        "  rewards/big/advantage_share: 0.938 on average over steps 11 to 20",
        "  rewards/small/advantage_share: 0.0312 on average over steps 11 to 20",
        "  rewards/small/std: 0.5 on average over steps 1 to 20",
        "  rewards/minus/advantage_share: 0 on average over steps 11 to 20",
        "  rewards/minus/std: 0.125 on average over steps 1 to 20",
        "  try rewards.small.weight=0.33",
        "  try rewards.minus.weight=-1.3",
    ]
    heavier = {**curves, "rewards/big/weight": [-3.0] * 20, "rewards/big/std": [None] * 20}
    # Three, by a deviation of 1 where none is logged: a third of it is 1, twice what small deviates by.
    assert "  try rewards.small.weight=2\n  try rewards.minus.weight=-8" in told(heavier, kind="one_reward")
    learned = told(shares([1.0] * 20, [0.0] * 20, std=[0.5] * 4 + [0.0] * 16), kind="one_reward")
    assert learned == "fine: big has 1.00 of the advantages: the others vary little any more"
