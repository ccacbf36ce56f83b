"""Preference pairs: margins, pairs with equal or empty answers, token ids."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import datasets
import pytest

from rlhf_cli.data.preferences import PairRules, judge_pairs, leave_out
from rlhf_cli.data.rows import hold_out
from rlhf_cli.errors import DataError

Refusal = Callable[..., DataError]
SCORES = PairRules(chosen="sc", rejected="sr")


def prepare(
    rows: list[dict[str, object]], rules: PairRules | None = None, *, drops: bool = False
) -> tuple[datasets.Dataset, dict[str, int]]:
    rules = replace(rules or PairRules(), drops_bad_pairs=drops)
    return leave_out(judge_pairs(datasets.Dataset.from_list(rows), rules, name="data"), name="data")


def pairs(*more: dict[str, object]) -> list[dict[str, object]]:
    return [{"chosen": f"good {row}", "rejected": f"bad {row}", **fields} for row, fields in enumerate(more, 1)]


def test_without_a_rule_a_margin_column_is_removed_as_are_texts_beside_token_ids() -> None:
    rows = pairs({"margin": 3.0, "other": 1})
    kept, counts = prepare(rows)
    assert (kept.column_names, counts) == (["chosen", "rejected", "other"], {})
    assert prepare(rows, PairRules(column="other", scale=3.0))[0]["margin"] == [1.0]
    assert prepare(rows, PairRules(column="margin"))[0]["margin"] == [3.0]
    ids = {"chosen_ids": [1, 0], "rejected_ids": [2]}
    assert prepare([{"chosen": "same", "rejected": "same", "prompt": "p", **ids}])[0].column_names == ["prompt", *ids]
    assert prepare([ids])[0].column_names == [*ids]


@pytest.mark.parametrize(
    ("transform", "scale", "expected"),
    [
        ("identity", 1.0, [2.0, 0.0, 0.5, 2.0]),
        ("identity", 0.5, [1.0, 0.0, 0.25, 1.0]),
        ("log1p", 2.0, [2 * math.log(3), 0.0, 2 * math.log(1.5), 2 * math.log(3)]),
        ("rank", 1.0, [3.5 / 4, 1 / 4, 2 / 4, 3.5 / 4]),
        ("rank", 4.0, [3.5, 1.0, 2.0, 3.5]),
    ],
)
def test_margins_of_two_scores_equal_those_computed_by_hand(transform, scale: float, expected: list[float]) -> None:
    scores = [(3, 1.0), (1, 1.0), (0, -0.5), (2, 0.0)]
    rule = PairRules(chosen="sc", rejected="sr", scale=scale, transform=transform)
    kept, _ = prepare(pairs(*({"sc": high, "sr": low} for high, low in scores)), rule)
    assert kept["margin"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("1", "'1'"), (True, "True"), (math.nan, "nan"), (math.inf, "inf"), (-0.5, "-0.5"), (None, "nothing (null)")],
)
def test_a_value_that_is_not_a_margin_is_refused_with_its_row(refusal: Refusal, value: object, shown: str) -> None:
    good = [] if isinstance(value, bool | str) else [{"m": 1.0}]  # a column has one type
    error = refusal(prepare, pairs(*good, *[{"m": value}] * 4), PairRules(column="m"))
    rows = range(len(good) + 1, len(good) + 5)
    assert error.where == f"data, rows {', '.join(map(str, rows))} (the first row is 1)"
    assert error.got.splitlines()[0].startswith(f"row {rows[0]}: {shown}")
    assert [line.split(":")[0] for line in error.got.splitlines()] == [f"row {row}" for row in rows[:3]]
    assert ("reward_model.margin.on_bad=drop" in error.advice, "finite" in error.expected) == (True, True)


def test_bad_margins_are_dropped_and_counted(refusal: Refusal) -> None:
    rows = pairs({"m": 1.0}, {"m": math.nan}, {"m": -1.0}, {"m": 0.0}, {"m": None})
    kept, counts = prepare(rows, PairRules(column="m", drops_bad_margins=True))
    assert (kept["chosen"][:], kept["margin"][:]) == (["good 1", "good 4"], [1.0, 0.0])
    assert (counts, "_left_out" in kept.column_names) == ({"no_sound_margin": 3}, False)
    # A chosen score below the rejected one, and ranks among those that stay.
    rows = pairs({"sc": 1.0, "sr": 0.0}, {"sc": 0.25, "sr": 1.0})
    assert refusal(prepare, rows, SCORES).got.startswith("row 2: -0.75")
    kept, counts = prepare(rows, replace(SCORES, transform="rank", drops_bad_margins=True))
    assert (kept["margin"], counts) == ([1.0], {"no_sound_margin": 1})


def test_equal_and_empty_pairs_are_dropped_and_counted(refusal: Refusal) -> None:
    bad = [("same", "same"), ("", "x"), ("x", ""), (None, "x"), ("", ""), (" ", "x")]
    rows = [*({"chosen": chosen, "rejected": rejected} for chosen, rejected in bad), *pairs({})]
    kept, counts = prepare(rows, drops=True)
    assert kept["chosen"] == ["good 1"]
    assert counts == {"identical_answers": 1, "empty_answers": 5}
    error = refusal(prepare, rows[:-1], drops=True)
    assert (error.got, bool(error.advice)) == ("5 with empty answers, 1 with identical answers", True)


def test_conversations_are_judged_by_their_last_message(refusal: Refusal) -> None:
    def talk(*contents: str) -> list[dict[str, str]]:
        return [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(contents)]

    good = {"chosen": talk("hi", "hello"), "rejected": talk("hi", "no"), "other": "x"}
    assert prepare([good])[0].to_list() == [good]
    for chosen, why in ((talk("hi", ""), "empty"), (talk(""), "empty"), (talk("hi", "no"), "identical")):
        error = refusal(prepare, [good, {**good, "chosen": chosen}])
        shown = f"chosen {chosen!r:.60}, rejected {good['rejected']!r:.60}"
        assert (error.where, error.got) == ("data, row 2 (the first row is 1)", f"row 2, {why} answers: {shown}")
        assert (error.hint, "different" in error.expected) == ("reward_model.on_bad_pair=drop", True)


def test_dropping_bad_pairs_does_not_change_which_rows_are_held_out() -> None:
    raw = datasets.Dataset.from_list(
        [{"prompt": str(n), "chosen": "a", "rejected": "a" if n % 5 == 0 else "b"} for n in range(40)]
    )
    judged = judge_pairs(raw, PairRules(drops_bad_pairs=True), name="data")
    for part, plain in zip(hold_out(judged, 0.3, 7), hold_out(raw, 0.3, 7), strict=True):
        kept, counts = leave_out(part, name="data")
        assert kept["prompt"] == [row["prompt"] for row in plain if row["chosen"] != row["rejected"]]
        assert len(kept) + counts.get("identical_answers", 0) == len(plain)
