"""Load rows from files and worlds: typed as they are written, mixed by weight; errors name their source."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import datasets
import pytest

from rlhf_cli.data import loading, worlds
from rlhf_cli.data.dialogues import SPEAKERS, split_transcripts
from rlhf_cli.data.loading import load_split, quiet
from rlhf_cli.data.model_limits import check_overlong
from rlhf_cli.data.peeking import Preview, first_rows, peek, prepare_preview
from rlhf_cli.data.preferences import PairRules, check_pair_columns, judge_pairs, leave_out
from rlhf_cli.data.preparing import prepare
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource
from rlhf_cli.tables.trl_trainers import TRAINERS


def load(*sources: DataSource, prompt=None, seed: int = 0) -> datasets.Dataset:
    return load_split(sources, prompt=prompt, seed=seed)


def numbered(count: int) -> list[dict[str, object]]:
    return [{"prompt": f"p{number}", "n": number} for number in range(count)]


@pytest.mark.parametrize("text", ["hi", "5", "true", "null", '{"a": 1}', '"quoted"'])
def test_text_stays_text(text: str, jsonl) -> None:
    """Also JSON in messages of uneven keys; `datasets` itself makes timestamps of the first two columns."""
    rows = [{"answer": "2020-01-01", "created_at": "12", "late": None}] * 1500
    rows += [{"answer": "2021-05-05", "created_at": "13", "late": 0.5}]
    assert load(DataSource(path=jsonl(rows))).to_list() == rows
    messages = [{"role": "user", "content": text}, {"role": "tool", "content": [{"type": "text"}], "name": "t"}]
    (row,) = load(DataSource(path=jsonl([{"prompt": messages}]))).to_list()
    assert [message["content"] for message in row["prompt"]] == [text, [{"type": "text"}]]
    assert [message.get("name") for message in row["prompt"]] == [None, "t"]


def test_integers_beyond_64_bits(jsonl, refusal) -> None:
    path = jsonl([{"a": 10**30, "b": 1}])
    for read in (load, peek):
        assert refusal(read, DataSource(path=path)).where == "rows.jsonl:1"
    assert load(DataSource(path=path, is_read="b".__eq__))["b"] == [1]


@pytest.mark.parametrize("meta", [["x", 3], [[1], {"a": 1}], [None, True, "x"]])
def test_a_column_of_several_kinds_matters_only_if_it_is_read(meta: list[object], jsonl, refusal) -> None:
    path = jsonl([{"prompt": "p", "meta": value} for value in meta])
    unread = DataSource(path=path, is_read="prompt".__eq__)
    assert "meta" not in peek(unread).columns
    assert load(unread).column_names == ["prompt"]
    for read in (load, peek):  # after the rows were stored for a reader that does not look at them
        assert refusal(read, DataSource(path=path, is_read="prompt".__eq__, rename={"more": "meta"})).where.startswith(
            path
        )


AS_JSON = ['{"price": 2.50, "n": 1, "flag": true, "id": "007"}', '{"price": 1e3, "n": 2.5, "flag": false, "id": "08"}']
TABLES = {
    "csv": "price,n,flag,id\n2.50,1,True,007\n1e3,2.5,false,08\n",
    "jsonl": "\n".join(AS_JSON),
    "json": f"[{','.join(AS_JSON)}]",
}


@pytest.mark.parametrize("suffix", TABLES)
def test_a_template_writes_numbers(suffix: str, workplace: Path) -> None:
    """In the rows that are checked and in those that are trained on, while a reward still gets numbers."""
    (workplace / f"t.{suffix}").write_text(TABLES[suffix])
    source, prompt = DataSource(path=f"t.{suffix}", rename={"cost": "price"}), "{cost} {n} {flag} {id}"
    dataset, checked = load(source, prompt=prompt), prepare_preview(source, peek(source), prompt)[1]
    assert dataset["prompt"][:] == ["2.5 1 True 007", "1000 2.5 False 08"]
    assert [checked[row] for row in range(2)] == dataset.to_list()
    assert [type(dataset[0][name]) for name in ("cost", "n", "flag", "id")] == [float, float, bool, str]


def test_a_csv_file_that_was_read_is_read_again_for_another_column_of_texts(workplace: Path) -> None:
    (workplace / "t.csv").write_text("n,m\n1,2\n")
    for column, answer in (("n", "1"), ("m", "2")):
        assert load(DataSource(path="t.csv", rename={"completion": column}))["completion"][:] == [answer]


def test_a_path_into_a_column_is_read_like_a_column(jsonl, refusal) -> None:
    source = DataSource(path=jsonl([{"info": {"level": level}} for level in (1, 2.5)]), rename={"level": "info.level"})
    assert load(source, prompt="{level}")["prompt"][:] == ["1", "2.5"]
    source = DataSource(path=jsonl([{"info": {"level": level}} for level in (1, "2")]), rename={"level": "info.level"})
    error = refusal(load, source)
    assert error.where == refusal(prepare_preview, source, peek(source), None).where == "data.rename.level"
    assert "number" in error.expected


def test_split_then_rename_then_select_then_template(jsonl) -> None:
    source = DataSource(path=jsonl(numbered(20)), split="train[50%:]", rename={"question": "prompt"}, select=(1, 3))
    dataset = load(source, prompt="Q: {question}?")
    assert dataset.to_list() == [
        {"question": "p11", "n": 11, "prompt": "Q: p11?"},
        {"question": "p12", "n": 12, "prompt": "Q: p12?"},
    ]
    assert load(DataSource(path="rows.jsonl", select=4))["n"] == [0, 1, 2, 3]
    assert load(DataSource(path="rows.jsonl", split="train[:2]+train[18:]"))["n"] == [0, 1, 18, 19]
    assert len(load(DataSource(path="rows.jsonl", split="train[:0]"))) == 0


def test_splits_that_do_not_exist(jsonl, refusal) -> None:
    path = jsonl(numbered(5))
    for split, reads in product(("test", "training", "train[", "train[:x]", "train+test"), (load, peek)):
        error = refusal(reads, DataSource(path=path, split=split))
        assert (error.where, error.got) == ("data.split", split)
    assert refusal(load, DataSource(path=path, split="train[:200%]")).where == "data.split"
    assert peek(DataSource(path=path, split="train[:20%](pct1_dropremainder) + train[-1:]")).num_rows == 5
    assert refusal(load, DataSource(path=path, select=(2, 6))).where == "data.select"


def test_a_table_that_could_not_be_written_leaves_no_file(jsonl, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    source, kept = DataSource(path=jsonl(numbered(3))), Path(datasets.config.HF_DATASETS_CACHE) / "rlhf"
    with monkeypatch.context() as patched:
        patched.setattr(loading.ArrowWriter, "finalize", full)
        with pytest.raises(OSError, match="full"):
            load(source)
    assert list(kept.iterdir()) == []
    load(source)
    assert len(list(kept.iterdir())) == 1


def test_rows_that_other_code_has_made_are_not_taken_from_the_cache(jsonl, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` knows a function by its name: a later version of it would get the rows of the one before."""
    source = DataSource(path=jsonl([{"prompt": [{"role": "human", "content": "q"}]}] * 3))
    seen = [load(source)[0]["prompt"][0]["role"]]
    monkeypatch.setitem(SPEAKERS, "human", "later")
    for code in (loading._code(), "of a later version"):
        monkeypatch.setattr(loading, "_code", lambda found=code: found)
        seen.append(load(source)[0]["prompt"][0]["role"])
    assert seen == ["user", "user", "later"]


def test_a_mixture_follows_its_weights_and_its_seed(jsonl) -> None:
    heavy = DataSource(path=jsonl([{"kind": "heavy"}] * 900, "heavy.jsonl"), weight=6, name="data.mix.heavy")
    light = DataSource(path=jsonl([{"kind": "light"}] * 900, "light.jsonl"), weight=2, name="data.mix.light")
    mixed = load(heavy, light)["kind"][:]
    assert mixed.count("heavy") == 900  # the first to be used up
    assert mixed.count("heavy") / len(mixed) == pytest.approx(0.75, abs=0.04)
    assert load(heavy, light)["kind"][:] == mixed
    assert load(heavy, light, seed=1)["kind"][:] != mixed


def test_sources_that_disagree_about_a_column_are_named(jsonl, refusal) -> None:
    """The column `n` is a number in the first two sources and text in the third; `prompt` is text in all of them."""

    def source(name: str, **row: object) -> DataSource:
        return DataSource(path=jsonl([{"prompt": "a", **row}], f"{name}.jsonl"), name=f"data.mix.{name}")

    sources = [source("0", n=1), source("1", n=2), source("2", n="three")]
    for some in (sources, sources[1:]):
        error = refusal(load, *some)
        assert (error.where, error.got, error.expected) == ("data.mix.2", "text", f"integer, as in {some[0].name}")
        assert "data.mix.2.rename.other_n=n" in error.advice
    for one in sources:
        one.is_read = "prompt".__eq__
    assert load(*sources).column_names == ["prompt"]
    mixed = load(source("0", n=2.5, r={"b": "u"}), source("1", n=1, r={"c": 1}))
    assert {type(row["n"]) for row in mixed} == {float}


def test_columns_of_mixed_kinds_are_left_out_until_one_is_read(jsonl, refusal) -> None:
    path = jsonl([{"prompt": "a", "x": 1, "y": 2}, {"prompt": "b", "x": "c", "y": "d"}])
    assert load(DataSource(path=path, is_read="prompt".__eq__)).column_names == ["prompt"]
    assert refusal(load, DataSource(path=path, is_read=("prompt", "x").__contains__)).where == "rows.jsonl:2"


def test_the_first_rows_need_hold_no_transcript() -> None:
    """As when only these are read; of all rows one has to be split."""
    rows = RowTable([{"chosen": "a", "rejected": "b"}], ["chosen", "rejected"])
    source = DataSource(path="x", transcripts=True)
    assert prepare(rows, source, None, is_whole=False)[0]["prompt"] == ""


@pytest.mark.parametrize("are_hidden", [False, True])
def test_progress_bars_are_hidden_for_a_while(are_hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["datasets.utils.tqdm"], "_hf_datasets_progress_bars_disabled", are_hidden)
    warns = partial(logging.getLogger("datasets.fingerprint").isEnabledFor, logging.WARNING)
    with quiet():
        assert datasets.utils.are_progress_bars_disabled()
        assert not warns()  # of ORPO's method, which cannot be cached
    assert warns()
    assert datasets.utils.are_progress_bars_disabled() == are_hidden


LONE = Preview(("chosen",), [], 1, "")
MINE = "data.mix.mine"


@pytest.mark.parametrize(
    ("named", "prompt", "where", "got", "hint"),
    [
        ({"rename": {"q": "n"}}, None, f"{MINE}.rename.q", "q: n", None),
        ({"select": (0, 9)}, None, f"{MINE}.select", (0, 9), f"'~{MINE}.select'"),
        ({"split": "dev"}, None, f"{MINE}.split", "dev", f"'~{MINE}.split'"),
        ({}, "{zz}", "data.prompt", None, None),
        ({}, "{nothing}", f"data.prompt, row 1 of {MINE}", "nothing (null)", None),
    ],
)
def test_training_and_preview_name_one_key(
    named: dict[str, Any], prompt: Any, where: str, got: Any, hint: Any, jsonl, refusal
) -> None:
    source = DataSource(path=jsonl([{"q": "x", "n": 1, "nothing": None}]), name=MINE, **named)
    errors = [refusal(load_split, [source], prompt=prompt, seed=0)]
    if "select" not in named:
        errors.append(refusal(first_rows, [source], prompt=prompt, seed=0, limit=3))
    for error in errors:
        assert (error.where, error.got, error.hint) == (where, got, hint)
        assert error.expected or error.advice


def dataset(**row: object) -> datasets.Dataset:
    return datasets.Dataset.from_list([row])


def judged(rules: PairRules, name: str = MINE, **row: object) -> datasets.Dataset:
    return judge_pairs(dataset(**row), rules, name=name)


SFT = DataSource(path="x", name=MINE, trainer=TRAINERS["SFTTrainer"])
NO_SUM = DataSource(world="toy_sums", args={"max_value": 0}, name=MINE)


@pytest.mark.parametrize(
    "call",
    [
        lambda: split_transcripts(dataset(chosen="a", rejected="b"), name=MINE),
        lambda: prepare_preview(DataSource(path="x", name=MINE, transcripts=True), LONE, None),
        lambda: prepare(RowTable([{"a": [{"b": 1}]}], ["a"]), DataSource(path="x", name=MINE), "{a}"),
        lambda: prepare(dataset(messages=[{"from": "nobody", "value": "?"}]), SFT, None),
        lambda: check_pair_columns(["chosen", "rejected"], PairRules(column="m"), name=MINE),
        lambda: judged(PairRules(), chosen="a"),
        lambda: judged(PairRules(), chosen="", rejected="a"),
        lambda: judged(PairRules(column="m"), chosen="a", rejected="b", m=-1),
        lambda: leave_out(judged(PairRules(drops_bad_pairs=True), "data", chosen="a", rejected="a"), name=MINE),
        lambda: check_overlong(RowTable([{"prompt": []}], ["prompt"]), {0: 9}, 2, policy="truncate", name=MINE),
        lambda: worlds.generate("toy", {}, seed=0, name=MINE),
        lambda: peek(DataSource(world="toy_sums", args={"num_rows": 0}, name=MINE)),
        lambda: load_split([NO_SUM], seed=0),
        lambda: first_rows([NO_SUM], prompt=None, seed=0, limit=1),
    ],
)
def test_every_check_names_the_source(call: Callable[[], object], refusal) -> None:
    assert MINE in refusal(call).where


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ConnectionError("no route"), f"{MINE}.path=FILE"),
        (RuntimeError("we are OFFLINE"), f"{MINE}.path=FILE"),
        (RuntimeError("Unknown Split"), f"{MINE}.split=NAME"),
        (RuntimeError("no Config"), f"{MINE}.subset=NAME"),
        (RuntimeError("x" * 900), f"{MINE}.path=FILE"),
    ],
)
def test_a_hub_dataset_that_cannot_be_loaded(error: Exception, hint: str, monkeypatch, refusal) -> None:
    asked = []

    def load_dataset(*args: object, **named: object) -> None:
        asked.append((args, named))
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = DataSource(path="o/n", subset="sub", revision="main", name=MINE)
    found = refusal(load_split, [source], seed=0)
    assert (found.where, found.got) == (f"{MINE}.path", f"{type(error).__name__}: {str(error)[:400]}")
    assert (hint in found.hint, str(Path("o/n").absolute()) in found.expected) == (True, True)
    assert asked == [(("o/n",), {"name": "sub", "split": "train", "revision": "main"})]
