"""Which rows of which files, how many, under which names: parts, folders, first rows, previews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from rlhf_cli.data import loading
from rlhf_cli.data.data_files import find_files, format_of, is_hub, near_files
from rlhf_cli.data.loading import load_split, quiet
from rlhf_cli.data.peeking import first_rows, peek, renamed
from rlhf_cli.data.source import DataSource


def test_a_part_of_a_split_may_be_empty_or_several(jsonl) -> None:
    path = jsonl([{"n": number} for number in range(10)])
    for split, expected in (
        ("train[:0]", []), ("train[:1]", [0]), ("train[3:5]", [3, 4]), ("train[-2:]", [8, 9]),
        ("train[:10%]+train[90%:]", [0, 9]),
    ):  # fmt: skip
        assert list(load_split([DataSource(path=path, split=split)], seed=0)["n"]) == expected, split


def test_progress_bars_stay_as_somebody_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet():
        assert datasets.utils.are_progress_bars_disabled()
    assert not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    with quiet():
        pass
    assert datasets.utils.are_progress_bars_disabled()
    datasets.enable_progress_bars()
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "0")
    with quiet():
        assert not datasets.utils.are_progress_bars_disabled()


def test_only_what_is_in_the_cache_is_not_read_again(jsonl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CSV is scanned each time, and its rows are written once."""
    Path("t.csv").write_text("a,b\n1,x\n")
    read = []
    rows_of = loading.rows_of
    monkeypatch.setattr(loading, "rows_of", lambda *given: read.append(1) or rows_of(*given))
    for _ in range(2):
        assert load_split([DataSource(path="t.csv")], seed=0).to_list() == [{"a": 1, "b": "x"}]
    assert len(read) == 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.JSONL", "jsonl"), ("a.jsonl.gz", "jsonl"), ("a.json", "json"), ("a.CSV.GZ", "csv"), ("a.parquet", "parquet"),
     ("a.parquet.gz", None), ("jsonl", None)],
)  # fmt: skip
def test_a_format_by_its_ending(path: str, expected: str | None) -> None:
    assert format_of(Path(path)) == expected


def test_several_paths_are_no_hub_id() -> None:
    assert not is_hub(DataSource(path=["owner/name", "other"]))
    assert is_hub(DataSource(path=["owner/name"]))
    assert not is_hub(DataSource(path="owner/name.txt"))
    assert not is_hub(DataSource(path="owner/NAME.JSONL"))
    assert not is_hub(DataSource(world="toy_sums"))


def test_what_lies_near_a_path_that_is_not_there(workplace: Path, jsonl) -> None:
    assert near_files(Path("rows.jsonl")) == f"data files in {workplace}: none"
    (workplace / "sub").mkdir()
    (workplace / ".hidden").mkdir()
    for name in ("one.csv", "sub/two.jsonl", "sub/config.json", ".hidden/three.jsonl", "notes.md"):
        (workplace / name).write_text("x")
    assert near_files(Path("zzzzzz.parquet")) == f"data files in {workplace}: one.csv, sub/two.jsonl"
    assert near_files(Path("onne.csv")) == "one.csv"
    assert near_files(Path("a/b/c.csv")) == f"the folder a/b does not exist; the nearest one that does is {workplace}"
    for number in range(9):
        (workplace / "sub" / f"{number}.csv").write_text("x")
    assert near_files(Path("zzzzzz.parquet")).count(",") == 7


def test_files_of_a_folder_and_of_two_formats(workplace: Path, jsonl, refusal) -> None:
    (workplace / "d").mkdir()
    for name in ("d/b.jsonl", "d/a.jsonl", "d/c.txt"):
        (workplace / name).write_text('{"a": 1}\n')
    (workplace / "d" / "e.jsonl").mkdir()
    assert [path.name for path in find_files(DataSource(path="d"))[0]] == ["a.jsonl", "b.jsonl"]
    assert [path.name for path in find_files(DataSource(path="d/?.jsonl"))[0]] == ["a.jsonl", "b.jsonl"]
    assert [path.name for path in find_files(DataSource(path="d/[b].jsonl"))[0]] == ["b.jsonl"]
    (workplace / "d" / "z.csv").write_text("a\n1\n")
    message = refusal(find_files, DataSource(path="d"))
    assert "csv: z.csv, jsonl: a.jsonl" in message
    assert "*.csv" in message
    assert "data.revision" in refusal(find_files, DataSource(path="d/a.jsonl", revision="main"))


def test_a_preview_of_many_rows(jsonl) -> None:
    path = jsonl([{"n": number} for number in range(20)])
    found = peek(DataSource(path=path))
    assert (len(found.rows), found.num_rows) == (8, 20)
    jsonl([{"n": 1}], "more.jsonl")
    several = peek(DataSource(path=[path, "more.jsonl"]))
    assert several.origin == f"2 jsonl files, the first is {path}"
    assert several.num_rows == 21
    hub = peek(DataSource(path="owner/name", subset="main"))
    assert (hub.rows, hub.num_rows, hub.origin) == ([], None, "hub dataset owner/name (main), read when the run starts")


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("select", [None, 2, (1, 4), (3, 9)])
def test_so_many_first_rows_and_no_more(limit: int, select: Any, jsonl) -> None:
    path = jsonl([{"n": number} for number in range(9)])
    for source in (DataSource(path=path, select=select), DataSource(path=path, split="train[0:]", select=select)):
        found = first_rows([source], prompt=None, transcripts=False, seed=0, limit=limit)
        assert [row["n"] for row in found] == list(range(9))[slice(*(source.bounds or (0, 9)))][:limit]


def test_first_rows_of_a_mixture_and_of_dialogues(jsonl) -> None:
    start = "\n\nHuman: x\n\nAssistant:"
    path = jsonl([{"chosen": f"{start} a", "rejected": f"{start} b"}] * 3)
    (row, *_) = first_rows([DataSource(path=path)], prompt=None, transcripts=True, seed=0, limit=2)
    assert row["prompt"] == start
    world = DataSource(world="toy_sums", args={"num_rows": 30})
    mixed = first_rows([world, world], prompt=None, transcripts=False, seed=5, limit=4)
    assert mixed == [dict(row) for row in load_split([world, world], seed=5).select(range(4))]


@pytest.mark.parametrize(
    "source",
    [
        DataSource(path="rows.csv", rename={"answer": "a"}, select=(2, 5)),
        DataSource(path="rows.csv", select=3),
        DataSource(path="rows.jsonl"),
        DataSource(world="toy_sums", args={"num_rows": 20}, select=(1, 9)),
        DataSource(path="rows.csv", split="train[50%:]"),
    ],
    ids=["renamed and selected", "the first", "lists", "a world", "a part, by datasets"],
)
def test_first_rows_are_as_a_training_reads_them(workplace: Path, source: DataSource) -> None:
    (workplace / "rows.csv").write_text("q,a,n\n" + "".join(f"what is {n}?,it is {n},{n}\n" for n in range(9)))
    (workplace / "rows.jsonl").write_text("".join(f'{{"q": "{n}", "a": [1.5, {n}.0]}}\n' for n in range(9)))
    template = "Q: {prompt}" if source.world else "Q: {q}"
    read = load_split([source], prompt=template, seed=3)
    ours = first_rows([source], prompt=template, transcripts=False, seed=3, limit=4)
    assert ours == [read[row] for row in range(min(4, len(read)))]
    assert ours[0]["prompt"].startswith("Q: ")


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ({}, ("a", "b", "c")),
        ({"x": "b"}, ("a", "x", "c")),
        ({"a": "b", "b": "a"}, ("b", "a", "c")),
        ({"a": "b", "old": "a"}, ("old", "a", "c")),
        ({"b": "x"}, "the new name first"),
        ({"y": "x"}, "no column 'x'"),
        ({"a": "x", "z": "a"}, "no column 'x'"),
        ({"a": "b"}, "there is a column 'a' already"),
        ({"x": "a", "y": "a"}, "renamed twice"),
    ],
)
def test_renames(rename: dict[str, str], expected: Any, refusal) -> None:
    if isinstance(expected, str):
        assert expected in refusal(renamed, ("a", "b", "c"), rename)
    else:
        assert renamed(("a", "b", "c"), rename) == expected
