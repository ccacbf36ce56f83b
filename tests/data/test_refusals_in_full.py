"""What is said of data that cannot be learned from: every field of it, under the name of its own source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_cli.data import worlds
from rlhf_cli.data.loading import _do_not_mix, load_split
from rlhf_cli.data.overlong_prompts import without_overlong
from rlhf_cli.data.peeking import Preview, column_names_after, first_rows, peek
from rlhf_cli.data.preferences import (
    MarginRule,
    PreferenceRules,
    check_pair_columns,
    distances,
    judge_pairs,
    leave_out,
    margins,
    no_pair_left,
    refuse_margins,
    with_ids,
)
from rlhf_cli.data.rows import RowTable, check_prompts, hold_out
from rlhf_cli.data.source import DataSource
from rlhf_cli.data.template import missing_column
from rlhf_cli.data.transcripts import split_transcripts
from rlhf_cli.errors import DataError

MINE = "data.mix.mine"
Fields = tuple[Any, Any, Any, Any, Any]


def fields(error: DataError) -> Fields:
    return error.what, error.where, error.got, error.expected, error.hint


def refused(call: Callable[[], object]) -> Fields:
    with pytest.raises(DataError) as caught:
        call()
    return fields(caught.value)


@pytest.fixture
def file(workplace: Path) -> Callable[..., DataSource]:
    """`file(name, text, **of_the_source)`: a file with that text, as a source that is called `data.mix.mine`."""

    def write(name: str, text: str, **named: Any) -> DataSource:
        (workplace / name).write_text(text)
        return DataSource(path=name, name=MINE, **named)

    return write


JSONL = '{"q": "x", "n": 1}\n'


@pytest.mark.parametrize(
    ("named", "prompt", "where"),
    [
        ({"rename": {"a": "zz"}}, None, f"{MINE}.rename.a"),
        ({"rename": {"q": "n"}}, None, f"{MINE}.rename.q"),
        ({"select": (0, 9)}, None, f"{MINE}.select"),
        ({"split": "dev"}, None, f"{MINE}.split"),
        ({}, "{zz}", "data.prompt"),
        ({}, "{nothing}", f"data.prompt, row 1 of {MINE}"),
        ({"subset": "x"}, None, f"{MINE}.subset"),
    ],
)
def test_a_source_is_called_by_its_name_whoever_reads_it(
    named: dict[str, Any], prompt: str | None, where: str, file: Callable[..., DataSource]
) -> None:
    source = file("rows.jsonl", '{"q": "x", "n": 1, "nothing": null}\n', **named)
    assert refused(lambda: load_split([source], prompt=prompt, seed=0))[1] == where
    if "select" not in named and "split" not in named:
        assert refused(lambda: first_rows([source], prompt=prompt, transcripts=False, seed=0, limit=3))[1] == where


@pytest.mark.parametrize(
    "call",
    [
        lambda: split_transcripts(datasets.Dataset.from_list([{"chosen": "a", "rejected": "b"}]), name=MINE),
        lambda: split_transcripts(datasets.Dataset.from_list([{"chosen": "a"}]), name=MINE),
        lambda: column_names_after(Preview(("chosen",), [], 1, ""), {}, None, name=MINE, transcripts=True),
        lambda: column_names_after(Preview(("chosen",), [], 1, ""), {"a": "b"}, None, name=MINE),
        lambda: hold_out(datasets.Dataset.from_list([{"prompt": "a"}]), 0.5, 0, name=MINE),
        lambda: hold_out(datasets.Dataset.from_list([{"prompt": "a"}]), 2, 0, name=MINE),
        lambda: check_prompts(RowTable([], ["prompt"]), MINE),
        lambda: check_prompts(RowTable([{"prompt": ""}], ["prompt"]), MINE),
        lambda: check_prompts(RowTable([{"prompt": 1}], ["prompt"]), MINE),
        lambda: check_pair_columns(["chosen"], PreferenceRules(), name=MINE),
        lambda: check_pair_columns(["chosen", "rejected"], PreferenceRules(MarginRule(column="m")), name=MINE),
        lambda: judge_pairs(datasets.Dataset.from_list([{"chosen": "a"}]), PreferenceRules(), name=MINE),
        lambda: judge_pairs(datasets.Dataset.from_list([{"chosen": "", "rejected": "a"}]), PreferenceRules(),
                            name=MINE),
        lambda: judge_pairs(datasets.Dataset.from_list([{"chosen": "a", "rejected": "b", "m": -1}]),
                            PreferenceRules(MarginRule(column="m")), name=MINE),
        lambda: leave_out(judge_pairs(datasets.Dataset.from_list([{"chosen": "a", "rejected": "a"}]),
                                      PreferenceRules(drops_bad_pairs=True)), name=MINE),
        lambda: with_ids(datasets.Dataset.from_list([{
            "input_ids_chosen": [1, 2, 3], "input_ids_rejected": [1], "attention_mask_chosen": [1, 0, 1],
        }]), name=MINE),
        lambda: distances(RowTable([{}], ["a"]), MarginRule(column="m"), name=MINE),
        lambda: without_overlong(RowTable([{"prompt": "a"}], ["prompt"]), {0: 9}, 2, policy="error",  # type: ignore
                                 last=lambda text, limit: text, why="", name=MINE),
        lambda: without_overlong(datasets.Dataset.from_list([{"prompt": []}]), {0: 9}, 2, policy="truncate",
                                 last=lambda text, limit: text, why="", name=MINE),
        lambda: worlds.generate("toy", {}, seed=0, name=MINE),
        lambda: worlds.generate("toy_sums", {"max_value": 0}, seed=0, name=MINE),
        lambda: worlds.generate("toy_sums", {"num_rows": 0}, seed=0, name=MINE),
        lambda: worlds.num_rows("toy_sums", {"x": 0}, name=MINE),
        lambda: peek(DataSource(world="toy_sums", args={"num_rows": 0}, name=MINE)),
        lambda: peek(DataSource(world="toy_sums", args={"max_value": 0}, name=MINE)),
        lambda: load_split([DataSource(world="toy_sums", args={"max_value": 0}, name=MINE)], seed=0),
        lambda: first_rows([DataSource(world="toy_sums", args={"max_value": 0}, name=MINE)],
                           prompt=None, transcripts=False, seed=0, limit=1),
        lambda: load_split([DataSource(world="toy_sums", weight=0, name=MINE)], seed=0),
    ],
)  # fmt: skip
def test_whoever_refuses_says_whose_rows_they_are(call: Callable[[], object]) -> None:
    assert MINE in refused(call)[1]


def test_two_sources_that_disagree(file: Callable[..., DataSource], workplace: Path) -> None:
    first = file("a.jsonl", '{"q": "x", "n": 1}\n')
    (workplace / "b.jsonl").write_text('{"q": "x", "n": "1"}\n')
    same, other = DataSource(path="a.jsonl", name="data.mix.same"), DataSource(path="b.jsonl", name="data.mix.other")
    assert refused(lambda: load_split([first, same, other], seed=0)) == (
        "two sources of the mixture disagree about the column 'n'",
        "data.mix.other",
        datasets.Value("string"),
        f"{datasets.Value('int64')}, as in {MINE}",
        "give one of them another name: data.mix.other.rename.other_n=n",
    )


def test_sources_that_cannot_be_mixed_for_another_reason() -> None:
    part, error = datasets.Dataset.from_dict({"a": [1]}), ValueError("no reason")
    sources = [DataSource(world="toy_sums", name=MINE), DataSource(world="toy_sums", name="data.mix.other")]
    found = fields(_do_not_mix(sources, [part, part], error))
    assert found == ("the sources cannot be mixed", MINE, error, None, None)


def test_a_column_of_two_kinds(file: Callable[..., DataSource]) -> None:
    source = file("rows.jsonl", '{"a": null}\n{"a": 12}\n{"a": "' + "x" * 60 + '"}\n')
    assert refused(lambda: peek(source)) == (
        "the column 'a' holds integer in one row and text in another",
        "rows.jsonl:3",
        "x" * 40 + "… (text)",
        "integer, as 12 in rows.jsonl:2",
        "write every row of a column as one type; numbers that are labels or answers are best written as text",
    )
    assert refused(lambda: peek(file("none.jsonl", "\n\n"))) == (
        "no rows", "none.jsonl", "2 bytes", None, "was the file written to its end?",
    )  # fmt: skip


def test_files_of_parquet_that_differ(workplace: Path) -> None:
    pq.write_table(pa.table({"n": [1], "m": [1]}), workplace / "a.parquet")
    pq.write_table(pa.table({"n": [1], "m": ["x"]}), workplace / "b.parquet")
    pq.write_table(pa.table({"n": [1]}), workplace / "c.parquet")
    pq.write_table(pa.table({"m": [1], "n": [1]}), workplace / "d.parquet")
    assert "order of the columns" in refused(lambda: peek(DataSource(path=["a.parquet", "d.parquet"])))[0]
    for name, got in (("b", "string"), ("c", "no such column")):
        source = DataSource(path=["a.parquet", f"{name}.parquet"])
        assert refused(lambda: peek(source))[:4] == (  # noqa: B023
            "two Parquet files disagree about the column 'm'", f"{name}.parquet", got, "int64, as in a.parquet",
        )  # fmt: skip


def test_files_of_two_formats(file: Callable[..., DataSource], workplace: Path) -> None:
    file("b.jsonl", JSONL)
    file("a.csv", "q\nx\n")
    assert refused(lambda: peek(DataSource(path=str(workplace), name=MINE))) == (
        "files of 2 formats in one source",
        f"{MINE}.path",
        "csv: a.csv, jsonl: b.jsonl",
        "one format",
        f"a pattern for one of them, such as {MINE}.path='{workplace}/*.csv', or two sources under mix",
    )


@pytest.mark.parametrize(
    ("rule", "wrong", "expected"),
    [
        (
            MarginRule(column="m"),
            {4: "'1', text", 0: "nan, no finite number", 1: "x", 2: "y"},
            (
                "no margin can be had from the column m for 4 of 9 pairs",
                f"{MINE}, rows 1, 2, 3, 5 (the first row is 1)",
                "row 1: nan, no finite number\nrow 2: x\nrow 3: y",
                "a finite number of 0 or more",
                "reward_model.margin.on_bad=drop leaves such pairs out and counts them",
            ),
        ),
        (
            MarginRule(chosen="c", rejected="r"),
            {3: "'1', text"},
            (
                "no margin can be had from the columns c and r for 1 of 9 pairs",
                f"{MINE}, row 4 (the first row is 1)",
                "row 4: '1', text",
                "two finite numbers, the chosen answer's not the smaller",
                "numbers are written without quotes; reward_model.margin.on_bad=drop leaves such pairs out and counts "
                "them",
            ),
        ),
    ],
)
def test_margins_that_are_none(rule: MarginRule, wrong: dict[int, str], expected: Fields) -> None:
    assert fields(refuse_margins(wrong, rule, 9, name=MINE)) == expected


def test_a_distance_or_what_is_wrong_with_it() -> None:
    rows = [{"c": 2.5, "r": 1}, {"c": 1, "r": 2}, {"c": None, "r": "x"}, {"c": True, "r": 1}, {"c": 0.5, "r": [1]},
            {"c": 1, "r": float("inf")}, {"c": 1.0, "r": 1}]  # fmt: skip
    table = RowTable(rows, ["c", "r"])
    found, wrong = distances(table, MarginRule(chosen="c", rejected="r"))
    assert [found[0], found[6]] == [1.5, 0.0]
    assert all(number != number for number in found[1:6])
    assert wrong == {
        1: "-1, below 0, 1 less 2", 2: "nothing (null)", 3: "True, a bool", 4: "[1], a list",
        5: "inf, no finite number",
    }  # fmt: skip
    assert distances(RowTable([{"m": -2}, {"m": 3}], ["m"]), MarginRule(column="m"))[1] == {0: "-2, below 0"}
    taken = margins((1.0, 2.0), MarginRule(column="m", scale=5.0))
    assert (taken, type(taken)) == ([1.0, 2.0], list)  # a column of margins is taken as it is


def test_pairs_that_teach_nothing() -> None:
    rows = [{"chosen": "a", "rejected": "b"}, {"chosen": "same", "rejected": "same"}, {"chosen": "", "rejected": "b"}]
    found = refused(lambda: judge_pairs(datasets.Dataset.from_list(rows), PreferenceRules(), name=MINE))
    assert found == (
        "2 of 3 pairs teach nothing",
        f"{MINE}, rows 2, 3 (the first row is 1)",
        "identical answers: row 2\nempty answers: row 3\nrow 2: chosen 'same', rejected 'same'",
        "two answers that differ, both with something in them",
        "reward_model.on_bad_pair=drop",
    )
    assert fields(no_pair_left(["identical_answers", "", "empty_answers", "empty_answers"], name=MINE))[:3] == (
        "no pair is left to learn from", MINE, "2 with empty answers, 1 with identical answers",
    )  # fmt: skip
    nothing = no_pair_left([], name=MINE)
    assert nothing.got == "0 rows"
    assert nothing.hint is not None
    assert "reward_model.on_bad_pair" in nothing.hint


def test_a_missing_column() -> None:
    assert fields(missing_column("promt", ["prompt", "n"], MINE)) == (
        "no column 'promt' in the data", MINE, None, "one of prompt, n", "prompt",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1', ("the last line is cut off", "t.jsonl:1", '{"a": 1', "one complete JSON object a line",
                     "the program that wrote the file was stopped; delete this line or write the file again")),
        ('{"a": 1}\n{"a" 1}\n', ("malformed JSON: Expecting ':' delimiter at character 6", "t.jsonl:2", '{"a" 1}',
                                "one complete JSON object a line", None)),
    ],
)  # fmt: skip
def test_a_line_that_is_no_json(text: str, expected: Fields, file: Callable[..., DataSource]) -> None:
    assert refused(lambda: peek(file("t.jsonl", text))) == expected


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (RuntimeError("is GATED, log in"), "is gated", "hf auth login"),
        (datasets.exceptions.DatasetNotFoundError("'o/n' doesn't exist"), "is not on the hub", "hf auth login"),
        (datasets.exceptions.DatasetNotFoundError("'o/n' is a gated dataset"), "is gated", "accept its terms"),
        (ConnectionError("no route"), "cannot be reached", f"{MINE}.path=FILE"),
        (RuntimeError("we are OFFLINE"), "cannot be reached", f"{MINE}.path=FILE"),
        (RuntimeError("could not connect"), "cannot be reached", f"{MINE}.path=FILE"),
        (RuntimeError("Unknown Split"), "has no split 'train'", f"{MINE}.split=NAME"),
        (RuntimeError("no Config"), "has no subset 'sub'", f"{MINE}.subset=NAME"),
        (RuntimeError("x" * 900), "could not be loaded", "datasets.load_dataset('o/n')"),
    ],
)
def test_a_dataset_of_the_hub(error: Exception, what: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: object, **named: object) -> None:
        asked.append((args, named))
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = DataSource(path="o/n", subset="sub", revision="main", name=MINE)
    told, where, got, _, hinted = refused(lambda: load_split([source], seed=0))
    assert told.startswith(f"the hub dataset o/n {what}")
    assert (where, got) == (f"{MINE}.path", f"{type(error).__name__}: {str(error)[:400]}")
    assert hint in hinted
    assert asked == [(("o/n",), {"name": "sub", "split": "train", "revision": "main"})]
