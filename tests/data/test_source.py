"""Where data comes from: a world, a path or a hub id; which files, under which names; the files of `conf/data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from omegaconf import OmegaConf
from PIL import Image

from rlhf_cli.data.data_files import find_files
from rlhf_cli.data.images import opened, with_images
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.peeking import first_rows, peek, prepare_preview
from rlhf_cli.data.preparing import renamed, template_columns
from rlhf_cli.data.rows import RowTable, check_rows
from rlhf_cli.data.source import DataSource
from rlhf_cli.evaluation.score_completions import read_completions, score_each
from rlhf_cli.plan.prepare import prepare


def test_a_hub_id_is_no_file_and_no_folder(workplace: Path) -> None:
    for path in ("openai/gsm8k", "imdb", "HuggingFaceH4/ultra_feedback-v1.2", "owner/name"):
        found = peek(source := DataSource(path=path))
        assert (source.is_hub, found.columns) == (True, ())
        assert "read when the run starts" in found.origin
    (workplace / "owner" / "name").mkdir(parents=True)  # what is on disk
    for path in ("./gsm8k", "data/rows.jsonl", "rows.csv.gz", "data/rows.txt", "owner/NAME.JSONL", "data/*", "x.y"):
        assert not DataSource(path=path).is_hub
    for given in ({"path": "owner/name"}, {"path": ["owner/other", "other"]}, {"world": "toy_sums"}):
        assert not DataSource(**given).is_hub  # type: ignore[arg-type]


def test_exactly_one_of_world_and_path_and_a_subset_of_the_hub_only(refusal) -> None:
    both: dict[str, Any] = {"world": "toy_sums", "path": "a.csv"}
    for given, got in (({}, "neither"), (both, "world='toy_sums' and path='a.csv'")):
        error = refusal(DataSource, **given)
        assert (error.where, error.got, error.hint) == ("data", got, "data.world=toy_sums, or data.path=FILE")
    for key, value in both.items():
        error = refusal(DataSource, **{key: value}, subset="main")
        assert (error.where, error.got, error.hint, error.expected) == ("data.subset", None, "'~data.subset'", None)
    assert refusal(DataSource, path=[]).where == "data.path"


@pytest.mark.parametrize("select", [0, (5, 5), (-1, 5), (1, 2, 3)])
def test_a_selection_that_selects_nothing(select: Any, refusal) -> None:
    error = refusal(DataSource, world="toy_sums", select=select)
    assert (error.where, error.got, error.hint, bool(error.expected)) == ("data.select", select, None, True)


def test_a_missing_file_is_reported_with_a_similar_name(workplace: Path, jsonl, refusal) -> None:
    jsonl([{"prompt": "x"}], "prompts.jsonl")
    error = refusal(peek, DataSource(path="promts.jsonl", name="data.mix.mine"))
    assert (error.where, error.hint) == ("data.mix.mine.path", "prompts.jsonl")
    assert (error.got.startswith(str(workplace / "promts.jsonl")), "glob" in error.expected) == (True, True)
    (workplace / "aaaaabbbbb").touch()
    assert refusal(peek, DataSource(path="./aaaaacccc")).hint == "aaaaabbbbb", "ten of nineteen letters are alike"
    assert str(workplace) in refusal(peek, DataSource(path="./no/a.csv")).advice, "the folder that there is"
    names = [f"{number}.jsonl" for number in range(9)]
    for name in names:
        (workplace / name).touch()
    assert refusal(peek, DataSource(path="./zzzz")).advice.endswith(f": {', '.join(names[:8])}")
    (workplace / "none").mkdir()
    error, folder = refusal(find_files, DataSource(path="none")), workplace / "none"
    assert (error.got, error.advice) == (f"{folder}, which holds nothing", f"data files in {folder}: none")


def test_an_unknown_suffix_is_refused_with_the_known_ones(workplace: Path, refusal) -> None:
    (workplace / "rows.zst").touch()
    error = refusal(peek, DataSource(path="rows.zst"))
    assert (error.where, error.got, error.advice) == ("data.path", "rows.zst", "zstd -d rows.zst")
    assert error.expected == ".jsonl, .jsonl.gz, .ndjson, .json, .json.gz, .csv, .csv.gz, .tsv, .tsv.gz, .parquet"
    for ending, new in (("arrow", "parquet"), ("feather", "parquet"), ("txt", "jsonl")):
        (workplace / f"rows.{ending}").touch()
        assert f"rows.{ending}.{new}" in refusal(peek, DataSource(path=f"rows.{ending}")).advice


def test_folder_and_glob_expand_sorted(workplace: Path, jsonl) -> None:
    (workplace / "part").mkdir()
    for name in ("part/b.jsonl", "part/a.jsonl"):
        jsonl([{"prompt": name}], name)
    (workplace / "part" / "README.md").write_text("not data")
    (workplace / "part" / "e.jsonl").mkdir()
    for path in ("part", "part/*.jsonl", "part/?.jsonl", "part/[ab].jsonl", "**/*.jsonl"):
        files, format_name = find_files(DataSource(path=path))
        assert ([file.name for file in files], format_name) == (["a.jsonl", "b.jsonl"], "jsonl")
    listed = find_files(DataSource(path=["part/b.jsonl", "part/a.jsonl"]))[0]
    assert [file.name for file in listed] == ["b.jsonl", "a.jsonl"]


@pytest.mark.parametrize(
    ("files", "name", "hint"),
    [
        (["latest.jsonl", "train.jsonl", "test.jsonl"], "data", "data.path='[part/latest.jsonl,part/train.jsonl]'"),
        (["train.jsonl", "test-0-of-1.jsonl"], "data.eval", "data.eval.path='[part/test-0-of-1.jsonl]'"),
        (["dataset_infos.json", "rows.csv"], "data", "data.path='part/*.csv'"),
        (["test-1.jsonl", "test-2.jsonl"], "data", None),  # all are of one kind: they are read
    ],
)
def test_a_folder_of_several_kinds(files: list[str], name: str, hint: Any, workplace: Path, refusal) -> None:
    """What is held out for a test is not trained on because it lies in the same folder."""
    (workplace / "part").mkdir()
    for file in files:
        (workplace / "part" / file).write_text('{"a": 1}\n')
    source = DataSource(path="part", name=name)
    if hint is None:
        assert [file.name for file in find_files(source)[0]] == files
        return
    error = refusal(find_files, source)
    assert (error.where, error.hint, bool(error.expected)) == (f"{name}.path", hint, True)
    assert all(file in error.got for file in files)
    error = refusal(find_files, DataSource(path="."))
    assert (error.where, error.got) == ("data.path", f"{workplace}, which holds part")
    assert (".jsonl, " in error.expected, error.advice.endswith(f"part/{sorted(files)[-1]}")) == (True, True)


def test_a_folder_that_datasets_has_saved_gets_the_command_that_converts_it(workplace: Path, refusal) -> None:
    saved = workplace / "saved"
    for folder, file, taken in (
        ("", "dataset_dict.json", '["train"]'),
        ("dev", "", '["dev"]'),
        ("train", "", '["train"]'),
        ("", "state.json", ""),
    ):
        (saved / folder).mkdir(exist_ok=True)
        if file:
            (saved / file).write_text("{}")
        error = refusal(find_files, DataSource(path="saved"))
        assert (error.where, "Parquet" in error.expected) == ("data.path", True)
        assert (file in error.got, f'("saved"){taken}.to_parquet("saved.parquet")' in error.hint) == (True, True)


@pytest.mark.parametrize(
    "source",
    [
        DataSource(path="rows.csv", rename={"answer": "a"}, select=(2, 5)),
        DataSource(path="rows.jsonl"),
        DataSource(path="rows.jsonl", rename={"chosen": "x", "rejected": "y"}, select=(1, 4), transcripts=True),
        DataSource(world="toy_sums", args={"num_rows": 20}, select=(15, 20)),
        DataSource(path="rows.csv", split="train[50%:]"),
    ],
)
def test_first_rows_and_a_preview_equal_those_of_a_training(workplace: Path, source: DataSource) -> None:
    start, numbers = "\n\nHuman: x\n\nAssistant:", range(9)
    (workplace / "rows.csv").write_text("q,a,n\n" + "".join(f"what is {n}?,it is {n},{n}\n" for n in numbers))
    rows = [{"q": f"{n}", "a": [1.5, n], "x": f"{start} a{n}", "y": f"{start} b{n}"} for n in numbers]
    (workplace / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = "Q: {prompt}" if source.world or source.transcripts else "Q: {q}"
    for prompt in (template, None):
        read = load_split([source], prompt=prompt, seed=3)
        ours = first_rows([source], prompt=prompt, seed=3, limit=4)
        assert ours == [read[row] for row in range(min(4, len(read)))]
        columns, found = prepare_preview(source, peek(source, 9, seed=3), prompt)
        assert list(columns) == read.column_names
        assert found is None or [found[row] for row in range(len(found))] == read.to_list()[: len(found)]
        assert (found is None) == (source.split == "train[50%:]" or source.select == (15, 20))  # it looked at 9 rows
        assert prompt is None or ours[0]["prompt"].startswith("Q: ")


@pytest.mark.parametrize(
    ("rename", "columns"), [({"x": "b"}, "a x c"), ({"a": "b", "b": "a"}, "b a c"), ({"a": "b", "old": "a"}, "old a c")]
)
def test_renames(rename: dict[str, str], columns: str) -> None:
    source = DataSource(path="rows.csv", rename=rename)
    assert " ".join(renamed(RowTable([], ("a", "b", "c")), source).column_names) == columns


@pytest.mark.parametrize(
    ("rename", "key", "got", "told"),
    [
        ({"b": "x"}, "b", None, ("data.rename.x=b", None)),
        ({"y": "x"}, "y", None, (None, None)),
        ({"a": "b"}, "a", "a: b", (None, "rename the existing column too: data.rename.old_a=a")),
        ({"x": "a", "y": "a"}, "y", "x and y", (None, None)),
    ],
)
def test_renames_that_are_refused(rename: dict[str, str], key: str, got: str | None, told: object, refusal) -> None:
    error = refusal(renamed, RowTable([], ("a", "b", "c")), DataSource(path="rows.csv", rename=rename))
    assert (error.where, error.got, (error.hint, error.advice)) == (f"data.rename.{key}", got, told)


FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "data").glob("*.yaml"))
SOURCE_KEYS = {"world", "args", "path", "subset", "split", "revision", "rename", "select", "weight"}


def content_of(file: Path) -> dict[str, Any]:
    """Return the file's keys over those of the files that it is based on."""
    content = yaml.safe_load(file.read_text())
    bases = [content_of(file.with_stem(base)) for base in content.pop("defaults", []) if base != "_self_"]
    merged = OmegaConf.to_container(OmegaConf.merge(*bases, content))
    return cast(dict[str, Any], merged)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file(file: Path) -> None:
    text = file.read_text()
    assert 3 <= len(text.splitlines()) <= 15
    assert text.startswith("# ")
    content = content_of(file)
    assert set(content) <= SOURCE_KEYS | {"mix", "transcripts", "prompt", "eval"}
    prompt, _ = content.pop("prompt", None), content.pop("eval", None)
    assert content.pop("transcripts", False) == (file.stem == "hh_rlhf")
    columns_line = next((line for line in text.splitlines() if line.startswith("# columns: ")), "")
    if prompt is not None:
        assert all(column in columns_line for column in template_columns(prompt))
    source = DataSource(**content)
    if file.stem == "file":
        assert content["path"] == "???"
    elif source.world is None:
        assert "hub dataset" in peek(source).origin
    else:
        if source.world == "reasoning_gym":
            pytest.importorskip("reasoning_gym", reason="pip install 'rlhf-cli[reasoning]'")
        dataset = load_split([source], prompt=prompt, seed=0)
        assert len(dataset) == content["args"]["num_rows"]
        assert all(column in columns_line for column in dataset.column_names)
        check_rows(dataset, dataset.column_names)


@pytest.mark.parametrize("path", ["p/1.png", "https://host.invalid/1.png", "/pics/1.png", None, {"bytes": b""}])
def test_a_path_is_seen_from_the_folder_of_its_data_file(workplace: Path, path: object, refusal) -> None:
    for folder in ("a", "b"):
        (workplace / folder).mkdir()
        (workplace / folder / "rows.jsonl").write_text("{}\n")

    def table(path: object) -> RowTable:
        return RowTable([{"prompt": "q", "image": path, "images": [path]}], ("prompt", "image", "images"))

    whole = str(workplace / "a" / "p/1.png") if path == "p/1.png" else path
    assert with_images(table(path), DataSource(path="a/rows.jsonl"))[0] == table(whole)[0]
    of_both = DataSource(path="*/rows.jsonl", name="data.eval")  # beside which of the two?
    if whole == path:
        assert with_images(table(path), of_both)[0] == table(path)[0]
    else:
        error = refusal(with_images, table(path), of_both)
        assert (error.where, str(error.got)[:7]) == ("data.eval.path", "p/1.png")


def test_what_is_no_file_is_left_as_it_is() -> None:
    """Pictures in base64 are longer than a file's name may be."""
    for value in ("nowhere.png", "iVBORw0KGgo" * 500, "nul\0", 5, None):
        assert opened({"image": value, "images": [value]}) == {"image": value, "images": [value]}


def test_a_reward_gets_opened_pictures_as_in_training() -> None:
    Path("d").mkdir()
    Image.new("RGB", (2, 3)).save("d/p.png")
    Path("d/c.jsonl").write_text('{"prompt": "q", "completion": "a", "image": "p.png"}\n')
    Path("mine.py").write_text("def wide(completions, image, **columns): return [one.width for one in image]\n")
    experiment = prepare(["exp=quickstart", "~rewards.correct", "rewards.wide.fn=./mine.py:wide"]).experiment
    (row,) = read_completions(Path("d/c.jsonl"), limit=None, experiment=experiment)
    assert score_each(experiment, [[row]])[0].rows[0].rewards["wide"].raw == 2
