"""Where data comes from: a world, a path or a Hub id, and what each may not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.data.data_files import find_files, is_hub
from rlhf_cli.data.peeking import peek
from rlhf_cli.data.source import DataSource


@pytest.mark.parametrize("path", ["openai/gsm8k", "imdb", "HuggingFaceH4/ultra_feedback-v1.2", "data/prompts"])
def test_hub_id(path: str) -> None:
    assert is_hub(DataSource(path=path))
    assert peek(DataSource(path=path)).columns == ()
    assert "read when the run starts" in peek(DataSource(path=path)).origin


@pytest.mark.parametrize(
    "path",
    [
        "./gsm8k",
        "~/gsm8k",
        "/openai/gsm8k",
        "data/rows.jsonl",
        "rows.csv.gz",
        "data/rows.txt",
        "a/b/c",
        "data/*",
        "x.y",
    ],
)
def test_not_a_hub_id(path: str) -> None:
    assert not is_hub(DataSource(path=path))


def test_what_is_on_disk_is_no_hub_id(workplace: Path) -> None:
    assert is_hub(DataSource(path="owner/name"))
    (workplace / "owner" / "name").mkdir(parents=True)
    assert not is_hub(DataSource(path="owner/name"))


def test_exactly_one_of_world_and_path(refusal) -> None:
    assert "neither" in refusal(DataSource)
    assert "world='toy_sums' and path='a.csv'" in refusal(DataSource, world="toy_sums", path="a.csv")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"path": "a.csv", "args": {"n": 1}}, "data.args"),
        ({"world": "toy_sums", "subset": "main"}, "data.subset"),
        ({"world": "toy_sums", "revision": "main"}, "data.revision"),
        ({"world": "toy_sums", "weight": -1}, "data.weight"),
        ({"world": "toy_sums", "select": 0}, "data.select"),
        ({"world": "toy_sums", "select": (5, 5)}, "data.select"),
        ({"world": "toy_sums", "select": (1, 2, 3)}, "data.select"),
        ({"path": []}, "data.path"),
    ],
)
def test_contradictions_name_their_key(arguments, key: str, refusal) -> None:
    assert f"where:    {key}\n" in refusal(DataSource, **arguments) + "\n"


def test_missing_file_says_where_it_looked_and_what_is_near(workplace: Path, jsonl, refusal) -> None:
    jsonl([{"prompt": "x"}], "prompts.jsonl")
    message = refusal(peek, DataSource(path="promts.jsonl", name="data.mix.mine"))
    assert "promts.jsonl: no such file" in message
    assert "data.mix.mine.path" in message
    assert str(workplace / "promts.jsonl") in message
    assert f"working directory {workplace}" in message
    assert "try:      prompts.jsonl" in message


def test_missing_folder_names_the_nearest_that_exists(workplace: Path, refusal) -> None:
    assert f"the nearest one that does is {workplace}" in refusal(peek, DataSource(path="no/such/rows.jsonl"))


def test_unknown_suffix_lists_the_known(workplace: Path, refusal) -> None:
    (workplace / "rows.tsv").write_text("a\tb\n")
    message = refusal(peek, DataSource(path="rows.tsv"))
    assert "rows.tsv: no reader" in message
    assert ".jsonl, .jsonl.gz, .json, .json.gz, .csv, .csv.gz, .parquet" in message


def test_folder_and_glob_expand_sorted(workplace: Path, jsonl) -> None:
    (workplace / "part").mkdir()
    for name in ("part/b.jsonl", "part/a.jsonl"):
        jsonl([{"prompt": name}], name)
    (workplace / "part" / "README.md").write_text("not data")
    for path in ("part", "part/*.jsonl", "**/*.jsonl"):
        files, format_name = find_files(DataSource(path=path))
        assert ([file.name for file in files], format_name) == (["a.jsonl", "b.jsonl"], "jsonl")
    assert [file.name for file in find_files(DataSource(path=["part/b.jsonl", "part/a.jsonl"]))[0]] == [
        "b.jsonl",
        "a.jsonl",
    ]


def test_a_folder_of_two_formats_is_refused(workplace: Path, jsonl, refusal) -> None:
    jsonl([{"prompt": "x"}], "a.jsonl")
    (workplace / "b.csv").write_text("prompt\nx\n")
    message = refusal(peek, DataSource(path="."))
    assert "csv: b.csv" in message
    assert "jsonl: a.jsonl" in message


def test_a_folder_or_glob_without_data(workplace: Path, refusal) -> None:
    (workplace / "empty").mkdir()
    (workplace / "empty" / "notes.md").write_text("x")
    assert "which holds notes.md" in refusal(peek, DataSource(path="empty"))
    assert "no file matches" in refusal(peek, DataSource(path="empty/*.jsonl"))


def test_hub_keys_on_a_local_file(jsonl, refusal) -> None:
    assert "data.subset" in refusal(peek, DataSource(path=jsonl([{"prompt": "x"}]), subset="main"))
