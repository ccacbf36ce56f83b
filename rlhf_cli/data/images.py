"""Find the images of rows: paths beside the data file, or what Parquet and the hub store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.data.rows import Dataset, RowTable, Table, map_rows
from rlhf_cli.data.source import DataSource, Row
from rlhf_cli.errors import DataError
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.text.json_values import without_images


def with_images(table: Table, source: DataSource) -> Table:
    """Return the rows with whole paths of images; in a Dataset, as `datasets` stores them."""
    columns = [name for name in IMAGES if name in table.column_names]
    if columns and source.path is not None and not source.is_hub:
        from rlhf_cli.data.data_files import find_files

        folders = sorted({file.absolute().parent for file in find_files(source)[0]})
        given = {"columns": columns, "folders": folders, "where": f"{source.name}.path"}
        table = map_rows(table, _whole_paths, dict.fromkeys(columns, ""), **given)
    return table if isinstance(table, RowTable) else as_images(table, opens=False)


def as_images(dataset: Dataset, *, opens: bool) -> Dataset:
    """Return the rows with columns of images, which open when they are read, or stay as they are stored."""
    for name in [name for name in IMAGES if name in dataset.column_names]:
        import datasets

        image = datasets.Image(decode=opens)
        dataset = dataset.cast_column(name, datasets.List(image) if name == "images" else image)
    return dataset


def _whole_paths(row: Mapping[str, object], _: int, columns: Sequence[str], folders: Sequence[Path], where: str) -> Row:
    def whole(value: object) -> object:
        if not isinstance(value, str) or "://" in value or Path(value).is_absolute():
            return value
        if len(folders) > 1:
            what, others = "which folder a picture lies in is unknown", f"{folders[0]} and {folders[1]}"
            expected = "whole paths of pictures, or all data files in one folder, or a source under data.mix for each"
            raise DataError(what, where=where, got=f"{value}, and files in {others}", expected=expected)
        return str(folders[0] / value)

    return {name: list(map(whole, one)) if isinstance(one := row[name], list) else whole(one) for name in columns}


def images_of(row: Mapping[str, Any]) -> list[Any]:
    """Return the images of a row as TRL takes them: those of `images`, without that column that of `image`."""
    found = row.get("images") if "images" in row else row.get("image")
    return found if isinstance(found, list) else [] if found is None else [found]


def opened(row: Row) -> Row:
    """Return a row with its images opened that are stored as `datasets` does it, or in files."""

    def image(value: object) -> object:
        stored = {"path": value, "bytes": None} if isinstance(value, str) and os.path.isfile(value) else value
        if not isinstance(stored, dict):
            return value
        import datasets

        picture: Any = datasets.Image().decode_example(stored)
        picture.filename = without_images(stored)  # which bytes lack
        return picture

    columns = [name for name in IMAGES if name in row]
    return row | {name: list(map(image, one)) if isinstance(one := row[name], list) else image(one) for name in columns}


def in_parts(messages: Sequence[Mapping[str, Any]], num_images: int = 0) -> list[dict[str, Any]]:
    """Return messages with contents in parts, as TRL gives them to a processor: images before the first user's text."""
    written = [dict(message) for message in messages]
    for message in [message for message in written if isinstance(message.get("content"), str)]:
        num_before, num_images = (num_images, 0) if message["role"] == "user" else (0, num_images)
        message["content"] = [*[{"type": "image"}] * num_before, {"type": "text", "text": message["content"]}]
    return written
