"""Write JSON files into the Arrow cache of `datasets`, block by block.

The first block determines the column types, and Arrow parses the following blocks with them. If Arrow rejects a block,
Python reads it. If its rows change a column's type (values in a column that was all null, floats among integers), the
table is discarded and written again with the types of the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import datasets
import pyarrow as pa

from rlhf_cli.data.formats import FORMATS
from rlhf_cli.data.formats.json_blocks import arrow_schema
from rlhf_cli.data.kinds import BOOL, INTEGER, NULL, NUMBER, TEXT, Kind, ListOf, Record
from rlhf_cli.data.scanning import Scan, no_rows

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
    if isinstance(kind, ListOf):
        return datasets.List(_feature(kind.item))
    if isinstance(kind, Record):
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
