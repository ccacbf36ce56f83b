"""Read whole rounds of training from a run's tables, and report the tables that are skipped."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest

from rlhf_cli.analysis import whatif_request
from rlhf_cli.analysis.whatif_request import ROW, StoredFailure, StoredRound, StoredScores, read_rounds
from rlhf_cli.errors import DataError
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.stored_tables import write_table

PLAIN = {"correct": [1.0, 0.0]}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_rounds_in_order_each_once(run: RunFolder) -> None:
    """A round that two optimizer steps learn from is in the tables of both."""
    write_table(run, 3, number=1, **PLAIN, **{"rollout.step": [2, 2]})
    write_table(run, 2, number=0, **PLAIN, **{"rollout.step": [0, 0]})
    write_table(run, 1, number=0, **PLAIN, **{"rollout.step": [0, 0]})
    (run.path / "completions" / "mine.parquet").write_text("not one of ours")
    found = read_rounds(run)
    assert [(one.number, one.updates, one.step) for one in found.rounds] == [(0, 0, 1), (1, 2, 3)]
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("number", "said"),
    [([None, None], "answers of an evaluation"), ([1, None], "more than one round"), ([0, 1], "more than one round")],
)
def test_what_an_evaluation_wrote_into_is_left_out(run: RunFolder, number: list[object], said: str) -> None:
    write_table(run, 1, **PLAIN)
    write_table(run, 2, **PLAIN, **{"rollout.round": number})
    found = read_rounds(run)
    assert ([one.step for one in found.rounds], len(found.left_out)) == ([1], 1)
    assert found.left_out[0].startswith("completions_00002.parquet: it holds")
    assert said in found.left_out[0]


def test_a_table_that_was_cut_or_is_too_large_costs_no_other(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(run, 1, **PLAIN)
    file = write_table(run, 2, **PLAIN)
    file.write_bytes(file.read_bytes()[:-9])
    write_table(run, 3, **PLAIN).write_bytes(b"")
    large = write_table(run, 4, **{**PLAIN, "more": ["a longer text", "another"]})
    monkeypatch.setattr(whatif_request, "LARGEST_TABLE", large.stat().st_size - 1)
    found = read_rounds(run)
    assert [one.step for one in found.rounds] == [1]
    assert [text.partition(":")[0] for text in found.left_out] == [
        f"completions_0000{step}.parquet" for step in (2, 3, 4)
    ]
    assert "cannot be read" in found.left_out[0]


def test_tables_without_our_columns_are_named(run: RunFolder) -> None:
    file = write_table(run, 1, **PLAIN)
    table = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(table.drop_columns(["rollout.round"]), file)
    with pytest.raises(DataError) as raised:
        read_rounds(run)
    assert "completions_00001.parquet: it has no column rollout.round" in str(raised.value)
    for step, last in ((5, "completions_00005"), (6, "and 1 more"), (7, "and 2 more")):
        for number in range(2, step + 1):
            write_table(run, number, **PLAIN).write_bytes(b"")
        with pytest.raises(DataError) as raised:
            read_rounds(run)
        assert raised.value.got.splitlines()[-1].startswith(last)
        assert len(raised.value.got.splitlines()) == min(step, 6)


TEXTS = ["a", "bb", "ccc", "dddd"]


def asked(rows: tuple[int, ...] = (0, 1, 2, 3), **columns: list[object]) -> tuple[StoredScores, list[object]]:
    """What stands in for the reward `r`, and what it answers of these rows of a round with these columns."""
    scores = StoredScores("r")
    scores.begin(StoredRound(0, 0, {"completion": list(TEXTS), **columns}))
    return scores, scores(**{ROW: list(rows), "completions": [TEXTS[row] for row in rows]})


def test_what_was_stored_is_answered_in_the_order_that_is_asked_for() -> None:
    columns = {"r": [0.5, None, -2.0, 4.0], "r.error": [None, None, None, "it broke"]}
    scores, found = asked((3, 0, 1), **columns)
    assert isinstance(found[0], StoredFailure)
    assert (str(found[0]), found[1:], scores.unknown) == ("it broke", [0.5, None], set())


@pytest.mark.parametrize(
    "columns", [{}, {"r": [1.0, None, 3.0, None], "r.closed_by": [None, "gate", None, "gate"]}], ids=["none", "gated"]
)
def test_what_is_not_stored_is_unknown(columns: dict[str, list[object]]) -> None:
    scores, found = asked((2, 1, 3), **columns)
    assert (found, scores.unknown) == ([3.0 if columns else None, None, None], {1, 3} if columns else {1, 2, 3})
    scores.begin(StoredRound(1, 1, {"completion": ["x"], "r": [7.0]}))
    assert (scores.unknown, scores(**{ROW: [0]})) == (set(), [7.0])
