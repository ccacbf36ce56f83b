"""Preference pairs: margins, pairs that teach nothing, token ids under their former names."""

from __future__ import annotations

import math
from collections.abc import Callable

import datasets
import pytest

from rlhf_cli.data.preferences import MarginRule, PreferenceRules, bad_pairs, judge_pairs, leave_out
from rlhf_cli.data.rows import hold_out

Refusal = Callable[..., str]


SCORES = MarginRule(chosen="sc", rejected="sr")


def prepare(
    rows: list[dict[str, object]], margin: MarginRule | None = None, *, drops: bool = False
) -> tuple[datasets.Dataset, dict[str, int]]:
    return leave_out(judge_pairs(datasets.Dataset.from_list(rows), PreferenceRules(margin, drops_bad_pairs=drops)))


def pairs(*more: dict[str, object]) -> list[dict[str, object]]:
    return [{"chosen": f"good {row}", "rejected": f"bad {row}", **fields} for row, fields in enumerate(more, 1)]


# Margins


def test_without_a_rule_a_margin_column_goes() -> None:
    rows = pairs({"margin": 3.0, "other": 1})
    kept, counts = prepare(rows)
    assert kept.column_names == ["chosen", "rejected", "other"]
    assert counts == {}
    assert prepare(rows, MarginRule(column="other"))[0]["margin"] == [1.0]
    assert prepare(rows, MarginRule(column="margin"))[0]["margin"] == [3.0]


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
def test_margins_of_two_scores_by_hand(transform, scale: float, expected: list[float]) -> None:
    scores = [(3, 1.0), (1, 1.0), (0, -0.5), (2, 0.0)]
    rule = MarginRule(chosen="sc", rejected="sr", scale=scale, transform=transform)
    kept, _ = prepare(pairs(*({"sc": high, "sr": low} for high, low in scores)), rule)
    assert kept["margin"] == pytest.approx(expected, abs=1e-12)


def test_ranks_are_in_0_to_1_and_in_the_order_of_the_distances() -> None:
    rows = pairs(*({"sc": float(row * row % 101), "sr": 0.0} for row in range(50)))
    found = prepare(rows, MarginRule(chosen="sc", rejected="sr", transform="rank"))[0]["margin"]
    distances = [row["sc"] for row in rows]
    assert 0 < min(found) <= max(found) <= 1
    assert sorted(range(50), key=lambda row: (found[row], row)) == sorted(range(50), key=lambda r: (distances[r], r))


@pytest.mark.parametrize(
    ("values", "row", "shown"),
    [
        (["1", "2"], 1, "'1', text"),
        ([True, False], 1, "True, a bool"),
        ([1.0, math.nan], 2, "nan, no finite number"),
        ([1.0, math.inf], 2, "inf, no finite number"),
        ([1.0, -0.5], 2, "-0.5, below 0"),
        ([1.0, None], 2, "nothing (null)"),
    ],
)
def test_a_margin_that_is_none_is_refused_with_row_value_and_what_to_type(
    refusal: Refusal, values: list[object], row: int, shown: str
) -> None:
    told = refusal(prepare, pairs(*({"m": value} for value in values)), MarginRule(column="m"))
    assert "no margin can be had from the column m" in told
    assert f"row {row}: {shown}" in told
    assert "reward_model.margin.on_bad=drop" in told
    assert ("without quotes" in told) == ("text" in shown)


def test_bad_margins_are_dropped_and_counted() -> None:
    rows = pairs({"m": 1.0}, {"m": math.nan}, {"m": -1.0}, {"m": 0.0}, {"m": None})
    kept, counts = prepare(rows, MarginRule(column="m", drops=True))
    assert kept["chosen"] == ["good 1", "good 4"]
    assert kept["margin"] == [1.0, 0.0]
    assert counts == {"no_sound_margin": 3}
    assert "_left_out" not in kept.column_names


def test_scores_the_wrong_way_round(refusal: Refusal) -> None:
    rows = pairs({"sc": 1.0, "sr": 0.0}, {"sc": 0.25, "sr": 1.0})
    told = refusal(prepare, rows, SCORES)
    assert "row 2: -0.75, below 0, 0.25 less 1.0" in told
    kept, counts = prepare(rows, MarginRule(chosen="sc", rejected="sr", transform="rank", drops=True))
    assert (kept["margin"], counts) == ([1.0], {"no_sound_margin": 1})  # ranked among those that stay


def test_a_column_of_strings_leaves_nothing_to_drop_from(refusal: Refusal) -> None:
    told = refusal(prepare, pairs({"m": "1"}, {"m": "2"}), MarginRule(column="m", drops=True))
    assert "no pair is left" in told
    assert "2 with no sound margin" in told


def test_a_margin_column_that_is_not_there(refusal: Refusal) -> None:
    told = refusal(prepare, pairs({"strength": 1.0}), MarginRule(column="strenght"))
    assert "no column 'strenght'" in told
    assert told.endswith("try:      strength")


# Pairs that teach nothing


def test_equal_and_empty_pairs_are_dropped_and_counted() -> None:
    bad = [("same", "same"), ("", "x"), ("x", ""), (None, "x"), ("", "")]
    rows = [*({"chosen": chosen, "rejected": rejected} for chosen, rejected in bad), *pairs({})]
    kept, counts = prepare(rows, drops=True)
    assert kept["chosen"] == ["good 1"]
    assert counts == {"identical_answers": 1, "empty_answers": 4}


def test_a_row_that_is_dropped_anyway_is_not_asked_for_its_margin() -> None:
    rows = [{"chosen": "same", "rejected": "same", "m": math.nan}, *pairs({"m": 2.0})]
    assert prepare(rows, MarginRule(column="m"), drops=True)[0]["margin"] == [2.0]


def test_conversations_are_judged_by_their_last_message(refusal: Refusal) -> None:
    def said(*contents: str) -> list[dict[str, str]]:
        return [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(contents)]

    good = {"chosen": said("hi", "hello"), "rejected": said("hi", "no")}
    kept, _ = prepare([good])
    assert kept.to_list() == [good]
    told = refusal(prepare, [good, {"chosen": said("hi", ""), "rejected": said("hi", "no")}])
    assert "empty answers: row 2" in told
    told = refusal(prepare, [good, {"chosen": said("hi", "no"), "rejected": said("hi", "no")}])
    assert "identical answers: row 2" in told


def test_which_rows_are_held_out_does_not_depend_on_what_is_dropped() -> None:
    rows = [{"prompt": str(n), "chosen": "a", "rejected": "a" if n % 5 == 0 else "b"} for n in range(40)]
    raw = datasets.Dataset.from_list(rows)
    judged = judge_pairs(raw, PreferenceRules(drops_bad_pairs=True))
    for part, plain in zip(hold_out(judged, 0.3, 7), hold_out(raw, 0.3, 7), strict=True):
        kept, counts = leave_out(part)
        assert kept["prompt"] == [row["prompt"] for row in plain if row["chosen"] != row["rejected"]]
        assert len(kept) + counts.get("identical_answers", 0) == len(plain)


def test_columns_that_are_no_pair(refusal: Refusal) -> None:
    assert "no column 'rejected'" in refusal(prepare, [{"chosen": "a", "prompt": "p"}])


# Token ids


FOUR = {"input_ids_chosen": [5, 6, 0, 0], "attention_mask_chosen": [1, 1, 0, 0]} | {
    "input_ids_rejected": [0, 7, 8, 9],
    "attention_mask_rejected": [0, 1, 1, 1],
}


def test_former_columns_become_trls_without_their_padding() -> None:
    kept, _ = prepare([{**FOUR, "sc": 2.0, "sr": 0.5}], SCORES)
    assert kept.to_list() == [
        {"sc": 2.0, "sr": 0.5, "chosen_ids": [5, 6], "rejected_ids": [7, 8, 9], "margin": 1.5},
    ]


def test_ids_without_masks_and_todays_names_are_taken_as_they_are() -> None:
    assert prepare([{"input_ids_chosen": [1, 0], "input_ids_rejected": [2]}])[0].to_list() == [
        {"chosen_ids": [1, 0], "rejected_ids": [2]}
    ]
    today = [{"chosen_ids": [1, 0], "rejected_ids": [2]}]
    assert prepare(today)[0].to_list() == today


def test_texts_beside_ids_are_not_read() -> None:
    row = {"chosen": "same", "rejected": "same", "prompt": "p", "chosen_ids": [1, 0], "rejected_ids": [2]}
    assert prepare([row])[0].column_names == ["prompt", "chosen_ids", "rejected_ids"]


def test_bad_pairs_of_ids(refusal: Refusal) -> None:
    told = refusal(prepare, [{"chosen_ids": [1], "rejected_ids": [1]}, {"chosen_ids": [1], "rejected_ids": []}])
    assert "identical answers: row 1" in told
    assert "empty answers: row 2" in told
    nothing = {**FOUR, "attention_mask_chosen": [0, 0, 0, 0]}
    assert "empty answers: row 1" in refusal(prepare, [nothing])


def test_a_blank_answer_makes_a_pair_as_bad_as_an_empty_one() -> None:
    """`rlhf eval` leaves out by this very function what training left out."""
    rows = {"chosen": ["a", " ", "", "b"], "rejected": ["c", "c", "c", "b"]}
    found = bad_pairs(datasets.Dataset.from_dict(rows))
    assert found == {1: "empty_answers", 2: "empty_answers", 3: "identical_answers"}
