"""Build one `datasets.Dataset` from sources, through Arrow's cache where rows are read in blocks.

The first block determines the column types, and Arrow parses the following blocks with them. If Arrow rejects a block,
Python reads it. If its rows change a column's type (values in a column that was all null, floats among integers), the
table is discarded and written again with the types of the whole file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import datasets
import pyarrow as pa

from rlhf_cli.data import worlds
from rlhf_cli.data.data_files import Scan, find_files, is_hub, no_rows, scan
from rlhf_cli.data.formats import FORMATS, Row, rows_of
from rlhf_cli.data.formats.json_rows import arrow_schema
from rlhf_cli.data.peeking import renamed
from rlhf_cli.data.source import BOOL, INTEGER, NULL, NUMBER, TEXT, DataSource, Kind, ListKind, RecordKind
from rlhf_cli.data.template import Template, refuse_missing_columns, render
from rlhf_cli.data.transcripts import split_transcripts
from rlhf_cli.errors import DataError, Prose
from rlhf_cli.services.hub_lookup import Question, look_up

_ARROW_TYPES = {NULL: "null", BOOL: "bool", INTEGER: "int64", NUMBER: "float64", TEXT: "string"}
_BATCH_ROWS = 100_000
"""Larger than any block, so that each block is one record batch: opening the file reads one page per batch."""
Feature: TypeAlias = "datasets.List | datasets.Json | datasets.Value | dict[str, Feature]"


class Unlike(Exception):
    """Later rows do not fit the column types of the first rows."""


@dataclass
class BlocksConfig(datasets.BuilderConfig):
    """The files to read, their format, and the column types so far."""

    paths: tuple[str, ...] = ()
    format_name: str = "jsonl"
    kinds: Mapping[str, Kind] = field(default_factory=dict)


class RowBlocks(datasets.ArrowBasedBuilder):
    """A `datasets` builder, which writes the tables under a lock and publishes them when complete."""

    BUILDER_CONFIG_CLASS = BlocksConfig

    @property
    def _ours(self) -> BlocksConfig:
        assert isinstance(self.config, BlocksConfig)
        return self.config

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=features_of(self._ours.kinds))

    def _split_generators(self, dl_manager: object) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name="train", gen_kwargs={})]

    def _generate_tables(self, **kwargs: object) -> Iterator[tuple[datasets.builder.Key, pa.Table]]:
        asked = self._ours
        schema = arrow_schema(asked.kinds)
        read = FORMATS[asked.format_name].blocks
        assert schema is not None
        assert read is not None
        for number, path in enumerate(map(Path, asked.paths)):
            num_tables = 0
            for block in read(path):
                table = block.table(schema)
                if table is None:
                    seen = Scan(kinds=dict(asked.kinds))
                    seen.add(block.rows(), limit=len(block))
                    if seen.kinds != asked.kinds:
                        raise Unlike
                    table = pa.Table.from_pylist(seen.rows, schema)
                if table.num_rows:
                    yield datasets.builder.Key(number, num_tables), table
                    num_tables += 1
            if not num_tables:
                raise no_rows(path)


def features_of(kinds: Mapping[str, Kind]) -> datasets.Features:
    """Return the column types as `datasets` features."""
    return datasets.Features(**{column: _feature(kind) for column, kind in kinds.items()})


def _feature(kind: Kind) -> Feature:
    if isinstance(kind, ListKind):
        return datasets.List(_feature(kind.item))
    if isinstance(kind, RecordKind):
        return {name: _feature(of) for name, of in kind.fields.items()}
    # A mixed type inside a column is stored as JSON, e.g. message contents that are text in one row and a list in
    # another.
    return datasets.Value(_ARROW_TYPES[kind]) if kind in _ARROW_TYPES else datasets.Json()


def table_of_files(
    paths: tuple[str, ...], format_name: str, kinds: Mapping[str, Kind] | None, fingerprint: str
) -> datasets.Dataset | None:
    """Return the rows of the files from the cache entry `fingerprint`, and write that entry if it is missing.

    kinds: the column types; None to infer them from the first block. Return None if Arrow has no type for a column.
        Raise DatasetGenerationError, caused by the error in the rows or by `Unlike`.
    """
    known = _first_kinds(Path(paths[0]), format_name) if kinds is None else kinds
    if not known or arrow_schema(known) is None:
        return None
    builder = RowBlocks(
        config_id=f"default-fingerprint={fingerprint}",
        paths=paths,
        format_name=format_name,
        kinds=known,
        writer_batch_size=_BATCH_ROWS,
    )
    builder.download_and_prepare()
    dataset = builder.as_dataset(split="train")
    assert isinstance(dataset, datasets.Dataset)
    dataset._fingerprint = fingerprint
    return dataset


def _first_kinds(path: Path, format_name: str) -> Mapping[str, Kind]:
    read = FORMATS[format_name].blocks
    assert read is not None
    seen = Scan()
    for block in read(path):
        seen.add(block.rows(), limit=0)
        break
    return seen.kinds


# Part of the cache key of parsed files. Increase it when a reader in formats/ returns other rows for the same bytes.
_READER_REVISION = 2


def load_split(
    sources: Sequence[DataSource], *, prompt: Template | None = None, seed: int, transcripts: bool = False
) -> datasets.Dataset:
    """Read every source, apply split, rename, select, `transcripts` and the prompt template, and mix.

    Interleave several sources at random in proportion to their weights until the first one is exhausted. The same
    arguments give the same rows in the same order. Files are parsed once into the Arrow cache of `datasets` and
    memory-mapped from there. `transcripts`: split dialogues into prompt and answers. `seed` is used for the mixture and
    for worlds without their own seed.

    Raise DataError for every user error, with the file and line or the config key.
    """
    drawn = [source for source in sources if source.weight > 0]
    if not drawn:
        raise DataError("no data source with a weight above 0", where=sources[0].name if sources else "data")
    parts = [_with_prompt(_read(source, seed, transcripts=transcripts), prompt, source) for source in drawn]
    if len(parts) == 1:
        return parts[0]
    total = sum(source.weight for source in drawn)
    try:
        return datasets.interleave_datasets(
            parts,
            probabilities=[source.weight / total for source in drawn],
            seed=seed,
            stopping_strategy="first_exhausted",
        )
    except ValueError as error:
        raise _do_not_mix(drawn, parts, error) from error


def _read(source: DataSource, seed: int, *, transcripts: bool) -> datasets.Dataset:
    if source.world is not None:
        rows = worlds.generate(source.world, source.args, seed=seed, name=source.name)
        dataset = _sliced(datasets.Dataset.from_list(rows), source)
    elif is_hub(source):
        dataset = _read_hub(source)
    else:
        with quiet():
            dataset = _sliced(_read_files(source), source)
    dataset = _selected(_renamed(dataset, source), source)
    if not transcripts:
        return dataset
    with quiet():
        return split_transcripts(dataset, name=source.name)


def _read_files(source: DataSource) -> datasets.Dataset:
    paths, format_name = find_files(source)
    if (head := FORMATS[format_name].head) is not None:
        head(paths, 1)  # raises an error that names the invalid file or the columns that differ
        files = [str(path.absolute()) for path in paths]
        return datasets.load_dataset(format_name, data_files=files, split="train")
    stamps = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    if FORMATS[format_name].blocks is not None:
        key = repr((_READER_REVISION, format_name, stamps))
        dataset = _by_blocks(paths, format_name, hashlib.sha256(key.encode()).hexdigest()[:32])
        if dataset is not None:
            return dataset
    scanned = scan(paths, format_name, texts=source.texts)
    key = repr((_READER_REVISION, format_name, stamps, scanned.kinds))
    try:
        return datasets.Dataset.from_generator(
            _rows,
            features=features_of(scanned.kinds),
            # A tuple, because `datasets` would distribute a list over processes as shards.
            gen_kwargs={
                **{"paths": tuple(map(str, paths)), "format_name": format_name, "columns": tuple(scanned.kinds)},
                "texts": tuple(sorted(source.texts)),
            },
            fingerprint=hashlib.sha256(key.encode()).hexdigest()[:32],
        )
    except datasets.exceptions.DatasetGenerationError as error:
        # The scan found no error, so this is a limit of Arrow, for example an integer of more than 64 bits.
        raise DataError(
            "these rows do not fit into a table",
            where=str(paths[0]),
            got=error.__cause__,
            hint=Prose("write it as text"),
        ) from error


def _by_blocks(paths: Sequence[Path], format_name: str, fingerprint: str) -> datasets.Dataset | None:
    """Return the rows of files that can be read block by block; None if the rows must be read one by one.

    That is the case if a row is invalid (the caller then reports it) or if Arrow has no type for a column.
    """
    names = tuple(map(str, paths))
    with contextlib.suppress(datasets.exceptions.DatasetGenerationError, DataError):
        try:
            return table_of_files(names, format_name, None, fingerprint)
        except datasets.exceptions.DatasetGenerationError as error:
            if not isinstance(error.__cause__, Unlike):
                return None
        # A column's type changes later in the file, so scan the whole file for the types.
        return table_of_files(names, format_name, scan(paths, format_name).kinds, fingerprint)
    return None


def _rows(paths: tuple[str, ...], format_name: str, columns: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[Row]:
    for path in paths:
        for _, row in rows_of(format_name, Path(path), texts):
            yield {column: row.get(column) for column in columns}


def _read_hub(source: DataSource) -> datasets.Dataset:
    hub_id = source.paths[0]
    # Without a network `datasets` tries six times, which takes 25 seconds or more.
    answer = look_up([Question("dataset", hub_id, source.revision)])[0]
    if answer.state == "unreachable" and not answer.is_silence:
        raise _unreadable_hub(source, ConnectionError(answer.detail))
    try:
        return datasets.load_dataset(
            hub_id, name=source.subset, split=source.split or "train", revision=source.revision
        )
    except Exception as error:  # requests, httpx, hub, fsspec and builders each have their own
        raise _unreadable_hub(source, error) from error


def _unreadable_hub(source: DataSource, error: Exception) -> DataError:
    hub_id, text = source.paths[0], str(error)
    hint: str
    if "gated" in text.lower():
        trouble = "is gated: its owner wants to know who downloads it"
        hint = Prose(f"accept its terms at https://huggingface.co/datasets/{hub_id}, then `hf auth login`")
    elif isinstance(error, datasets.exceptions.DatasetNotFoundError):
        trouble = "is not on the hub, or is private"
        hint = "hf auth login"
    elif isinstance(error, ConnectionError) or "offline" in text.lower() or "connect" in text.lower():
        trouble = "cannot be reached, and is not in the cache"
        hint = f"hf download {hub_id} --repo-type dataset, or {source.name}.path=FILE"
    elif "split" in text.lower():
        trouble, hint = f"has no split {source.split or 'train'!r}", f"{source.name}.split=NAME"
    elif "config" in text.lower():
        trouble, hint = f"has no subset {source.subset!r}", f"{source.name}.subset=NAME"
    else:
        trouble, hint = "could not be loaded", Prose(f"try it alone: datasets.load_dataset({hub_id!r})")
    return DataError(
        f"the hub dataset {hub_id} {trouble}",
        where=f"{source.name}.path",
        got=f"{type(error).__name__}: {text[:400]}",
        expected=f"a dataset of the hub, or a file: there is none at {Path(hub_id).absolute()}",
        hint=hint,
    )


def _sliced(dataset: datasets.Dataset, source: DataSource) -> datasets.Dataset:
    if source.split is None:
        return dataset
    try:
        ranges = datasets.ReadInstruction.from_spec(source.split).to_absolute({"train": len(dataset)})
    except (ValueError, AssertionError, KeyError) as error:
        raise DataError(
            "this split does not exist here",
            where=f"{source.name}.split",
            got=source.split,
            expected="train, or a part of it such as train[:90%]: files and worlds have no other split",
        ) from error
    part_of_it: datasets.Dataset = dataset.select(
        [index for part in ranges for index in range(part.from_ or 0, part.to or 0)]
    )
    return part_of_it


def _renamed(dataset: datasets.Dataset, source: DataSource) -> datasets.Dataset:
    renamed(dataset.column_names, source.rename, name=source.name)
    return dataset.rename_columns({old: new for new, old in source.rename.items()}) if source.rename else dataset


def _selected(dataset: datasets.Dataset, source: DataSource) -> datasets.Dataset:
    if source.bounds is None:
        return dataset
    start, stop = source.bounds
    if stop > len(dataset):
        raise DataError(
            "`select` reaches beyond the last row",
            where=f"{source.name}.select",
            got=source.select,
            expected=f"at most {len(dataset)}, the number of rows",
            hint=f"~{source.name}.select",
        )
    selected: datasets.Dataset = dataset.select(range(start, stop))
    return selected


def _with_prompt(dataset: datasets.Dataset, prompt: Template | None, source: DataSource) -> datasets.Dataset:
    if prompt is None:
        return dataset
    refuse_missing_columns(prompt, dataset.column_names)
    with quiet():
        prompted: datasets.Dataset = dataset.map(
            _add_prompt, with_indices=True, fn_kwargs={"template": prompt, "name": source.name}
        )
    return prompted


def _add_prompt(row: Mapping[str, object], index: int, template: Template, name: str) -> Row:
    return {"prompt": render(template, row, name=f"data.prompt, row {index + 1} of {name}")}


def _do_not_mix(sources: Sequence[DataSource], parts: Sequence[datasets.Dataset], error: ValueError) -> DataError:
    first = parts[0].features
    for source, part in zip(sources[1:], parts[1:], strict=True):
        for column in first:
            if column in part.features and part.features[column] != first[column]:
                return DataError(
                    f"two sources of the mixture disagree about the column {column!r}",
                    where=source.name,
                    got=part.features[column],
                    expected=f"{first[column]}, as in {sources[0].name}",
                    hint=Prose(f"give one of them another name: {source.name}.rename.other_{column}={column}"),
                )
    return DataError("the sources cannot be mixed", where=sources[0].name, got=error)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars of `datasets` in the `with` block, whose work takes a second.

    The environment variable for progress bars takes precedence.
    """
    wanted = datasets.utils.are_progress_bars_disabled() or "HF_DATASETS_DISABLE_PROGRESS_BARS" in os.environ
    if not wanted:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not wanted:
            datasets.enable_progress_bars()
