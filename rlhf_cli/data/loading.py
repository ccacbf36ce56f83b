"""Build one `datasets.Dataset` from sources; files are parsed once, into Arrow files in the cache of `datasets`."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias, cast
from uuid import uuid4

import datasets
import pyarrow as pa
from datasets.arrow_writer import ArrowWriter
from datasets.fingerprint import Hasher

from rlhf_cli.data import worlds
from rlhf_cli.data.column_kinds import ARROW_NAMES, ColumnKind, Kind, ListKind, RecordKind, as_kind
from rlhf_cli.data.preparing import mixed_kinds, prepare
from rlhf_cli.data.source import DataSource, Template
from rlhf_cli.errors import DataError, in_a_line

_BATCH_ROWS = 1000
Feature: TypeAlias = "datasets.List | datasets.Json | datasets.Value | dict[str, Feature]"


@cache
def _code() -> str:
    """Return a digest of this folder's code: `datasets` caches rows by the names of functions, not by what they do."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def load_split(sources: Sequence[DataSource], *, prompt: Template | None = None, seed: int) -> datasets.Dataset:
    """Read every source, apply split, rename, select, `transcripts` and the prompt template, and mix.

    Several sources are interleaved at random in proportion to their weights until the first one is exhausted. The same
    arguments give the same rows in the same order; `seed` is that of the mixture and of worlds without their own. Raise
    DataError for every user error, with the file and line or the config key.
    """
    parts = [_read(source, seed, prompt, is_alone=len(sources) == 1) for source in sources]
    if len(parts) == 1:
        return parts[0]
    # The parts of a mixture get one type for each column, and lose unread columns of several kinds.
    with quiet():
        types: dict[str, list[object]] = {}
        for name, kind in (item for part in parts for item in part.features.items()):
            types.setdefault(name, []).append(kind)
        differing = {name for name, kinds in types.items() if any(kind != kinds[0] for kind in kinds)}
        tables = [part.select_columns([name for name in part.column_names if name in differing]) for part in parts]
        kinds = mixed_kinds(sources, tables)
        changed, mixed = features_of(kinds), {name for name, kind in kinds.items() if kind == ColumnKind.MIXED}
        for place, part in enumerate(parts):
            part = part.remove_columns([name for name in part.column_names if name in mixed])
            features = part.features.copy()
            features.update({name: changed[name] for name in differing & {*features}})
            parts[place] = part.map(dict, features=features)
    total = sum(source.weight for source in sources)
    shares = [source.weight / total for source in sources]
    return datasets.interleave_datasets(parts, probabilities=shares, seed=seed, stopping_strategy="first_exhausted")


def _read(source: DataSource, seed: int, prompt: Template | None, *, is_alone: bool) -> datasets.Dataset:
    if source.is_hub:
        dataset = _read_hub(source)
    elif source.world is not None:
        dataset = datasets.Dataset.from_list(worlds.generate(source.world, source.args, seed=seed, name=source.name))
    else:
        with quiet():
            dataset = _read_files(source)
    if source.split is not None and not source.is_hub:
        try:
            ranges = datasets.ReadInstruction.from_spec(source.split).to_absolute({"train": len(dataset)})
        except (ValueError, AssertionError, KeyError) as error:
            raise source.no_such_split() from error
        dataset = dataset.select([index for part in ranges for index in range(part.from_ or 0, part.to or 0)])
    if source.bounds is not None:
        source.check_selection(len(dataset))
        dataset = dataset.select(range(*source.bounds))
    dataset._fingerprint = Hasher.hash([dataset._fingerprint, _code()])
    with quiet():
        return cast(datasets.Dataset, prepare(dataset, source, prompt, is_alone=is_alone))


def _read_files(source: DataSource) -> datasets.Dataset:
    from rlhf_cli.data.data_files import FORMATS, find_files, scan  # a world needs no file, and no reader of files

    paths, format_name = find_files(source)
    if (read := FORMATS[format_name]) is None:
        scan(paths, format_name, 1)  # raises an error that names the invalid file or the columns that differ
        files = [str(path.absolute()) for path in paths]
        try:
            return datasets.load_dataset(format_name, data_files=files, split="train")
        except (datasets.exceptions.DatasetGenerationError, OSError) as error:
            got, where = in_a_line(error.__cause__ or error), ", ".join(files)
            raise DataError("not a readable Parquet file", where=where, got=got) from error
    stamps = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    texts = sorted(source.texts) if format_name == "csv" else []
    key = repr((_code(), format_name, stamps, texts))
    fingerprint = hashlib.sha256(key.encode()).hexdigest()[:32]
    file = Path(datasets.config.HF_DATASETS_CACHE) / "rlhf" / f"{fingerprint}.arrow"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{fingerprint}-{uuid4().hex}")  # other processes may write the same file
        try:
            table = RecordKind(scan(paths, format_name, 0, source).kinds)
            # pyarrow makes no JSON column of Python's values; the writer makes one of texts.
            written = features_of(table.fields, datasets.Value("string")).arrow_schema
            with ArrowWriter(features=features_of(table.fields), path=str(partial)) as writer:
                for path in paths:
                    rows = (row for _, row in read(path, source.texts))
                    while batch := [as_kind(row, table, as_json=True) for row in islice(rows, _BATCH_ROWS)]:
                        writer.write_table(pa.Table.from_pylist(batch, schema=written))
                writer.finalize()
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
    dataset = datasets.Dataset.from_file(str(file))
    mixed = [name for name, kind in dataset.features.items() if kind == datasets.Json()]
    if any(map(source.reads, mixed)):
        scan(paths, format_name, 0, source)  # raises: the table was written for a reader of other columns
    dataset._fingerprint = fingerprint
    return cast(datasets.Dataset, dataset.remove_columns(mixed))


def features_of(kinds: Mapping[str, Kind], mixed: Feature | None = None) -> datasets.Features:
    """Return the types of columns as `datasets` has them; `mixed` is the type of a mixed kind, JSON if not given."""
    return datasets.Features(**{column: _feature(kind, mixed or datasets.Json()) for column, kind in kinds.items()})


def _feature(kind: Kind, mixed: Feature) -> Feature:
    if isinstance(kind, ListKind):
        return datasets.List(_feature(kind.item, mixed))
    if isinstance(kind, RecordKind):
        return {name: _feature(field, mixed) for name, field in kind.fields.items()}
    return datasets.Value(ARROW_NAMES[kind]) if kind in ARROW_NAMES else mixed


def _read_hub(source: DataSource) -> datasets.Dataset:
    from rlhf_cli.services.hub_lookup import HubQuestion, look_up

    hub_id = source.paths[0]
    # Without a network `datasets` tries six times, which takes 25 seconds or more.
    answer = look_up([HubQuestion("dataset", hub_id, source.revision)])[0]
    if answer.state == "unreachable" and not answer.is_silence:
        raise _unreadable_hub(source, ConnectionError(answer.detail))
    try:
        split = source.split or "train"
        return datasets.load_dataset(hub_id, name=source.subset, split=split, revision=source.revision)
    except Exception as error:  # requests, httpx, hub, fsspec and builders each have their own
        raise _unreadable_hub(source, error) from error


def _unreadable_hub(source: DataSource, error: Exception) -> DataError:
    """Return the error for a hub dataset that the hub has, whose split or subset is probably wrong."""
    hub_id, text, name = source.paths[0], str(error), source.name
    key = next((key for word, key in (("split", "split"), ("config", "subset")) if word in text.lower()), None)
    hint = f"{name}.{key}=NAME" if key else f"hf download {hub_id} --repo-type dataset, or {name}.path=FILE"
    what, got = f"the hub dataset {hub_id} could not be loaded", f"{type(error).__name__}: {text[:400]}"
    expected = f"a dataset of the hub, or a file: there is none at {Path(hub_id).absolute()}"
    return DataError(what, where=f"{source.name}.path", got=got, expected=expected, hint=hint)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars of `datasets`, for work of a second, unless its environment variable decides, and what it
    says of functions whose results it cannot cache, as ORPO's.
    """
    cannot_cache = logging.getLogger("datasets.fingerprint")
    level = cannot_cache.level
    cannot_cache.setLevel(logging.ERROR)
    was_disabled = datasets.utils.are_progress_bars_disabled() or "HF_DATASETS_DISABLE_PROGRESS_BARS" in os.environ
    if not was_disabled:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        cannot_cache.setLevel(level)
        if not was_disabled:
            datasets.enable_progress_bars()
