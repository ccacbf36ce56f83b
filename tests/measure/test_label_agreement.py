"""How well scores agree with labels: pairs counted one by one, thresholds tried one by one, scipy's Mann-Whitney."""

from __future__ import annotations

from random import Random

import pytest
from scipy import stats

from rlhf_cli.errors import DataError
from rlhf_cli.measure.score_bench import LabelAgreement, agreement, labels_of
from rlhf_cli.numerics.intervals import Estimate


def drawn(seed: int) -> tuple[list[float | None], list[bool | None]]:
    random = Random(seed)
    labels: list[bool | None] = [random.choice([True, False, False, None]) for _ in range(60)]
    scores: list[float | None] = [
        None if random.random() < 0.1 else round(random.gauss(0.8 if label else 0.0, 1.0), 1) for label in labels
    ]
    return scores, labels


def test_by_hand() -> None:
    """Good 2 and 1, bad 1 and 0: of four pairs three are in order and one ties, 3.5 / 4. From 1 on 3 of 4."""
    found = agreement("x", [2.0, 1.0, 1.0, 0.0], [True, True, False, False])
    assert found.roc_auc == 3.5 / 4
    assert (found.threshold, found.agreement.mean) == (1.0, 3 / 4)
    assert (found.num_good, found.num_bad) == (2, 2)


@pytest.mark.parametrize("seed", range(8))
def test_against_every_pair_every_threshold_and_scipy(seed: int) -> None:
    scores, labels = drawn(seed)
    found = agreement("x", scores, labels)
    known = [(s, label) for s, label in zip(scores, labels, strict=True) if s is not None and label is not None]
    good, bad = [s for s, label in known if label], [s for s, label in known if not label]
    pairs = sum((g > b) + (g == b) / 2 for g in good for b in bad)
    assert found.roc_auc == pytest.approx(pairs / (len(good) * len(bad)), abs=1e-12)
    assert found.roc_auc == pytest.approx(stats.mannwhitneyu(good, bad).statistic / (len(good) * len(bad)), abs=1e-12)

    def right(threshold: float) -> int:
        return sum((s >= threshold) == label for s, label in known)

    most = max(right(threshold) for threshold in {s for s, _ in known} | {1e9})
    assert found.agreement.mean == most / len(known)
    if found.threshold is not None:
        assert found.threshold == min(s for s, _ in known if right(s) == most)


def test_where_calling_all_bad_is_best_there_is_no_threshold() -> None:
    """From 1 on one is right and two are wrong; calling all bad one is wrong."""
    assert agreement("x", [1.0, 1.0, 1.0], [True, False, False]).threshold is None
    assert agreement("x", [1.0, 1.0], [True, False]).threshold is None  # as good as a threshold of 1
    assert agreement("x", [1.0, 2.0], [True, True]).roc_auc is None
    assert agreement("x", [None, 1.0], [True, None]) == LabelAgreement(
        "x", 0, 0, None, None, Estimate(None, None, None, 0)
    )
    with pytest.raises(ValueError, match="shorter"):
        agreement("x", [1.0, 2.0], [True])


def test_labels_as_people_write_them() -> None:
    rows: list[dict[str, object]] = [{"ok": value} for value in (True, 0, "yes", "False", None, "", 1.0, "wrong")]
    assert labels_of(rows, "ok") == [True, False, True, False, None, None, True, False]


def test_a_row_may_lack_the_column_the_first_one_too() -> None:
    """JSON lines have the keys that were written: who labels later leaves the key out, which is an empty cell."""
    assert labels_of([{"prompt": "q"}, {"prompt": "q", "ok": True}, {"prompt": "q"}], "ok") == [None, True, None]


def test_what_is_no_label_is_refused() -> None:
    with pytest.raises(DataError, match="true or false") as caught:
        labels_of([{"grade": 1}, {"grade": 3}], "grade")
    assert (caught.value.where, caught.value.got) == ("--label grade, row 2 (the first row is 1)", "3")
    assert caught.value.expected == "true, yes, 1, or false, no, 0"
    assert "a column of grades correlates" in str(caught.value.hint)
    with pytest.raises(DataError, match="no column 'is_corect'") as caught:
        labels_of([{"is_correct": 1}, {"other": 1}], "is_corect")
    assert (caught.value.where, caught.value.got) == ("--label", "columns is_correct, other")
    assert caught.value.expected == "a column that says of each answer whether it is good"
    assert caught.value.hint == "is_correct"
