"""Turns the section `data` into the `Source` objects that rlhf_cli.data reads."""

from __future__ import annotations

from rlhf_cli.config.schema import data_section as schema
from rlhf_cli.data.source import Source


def training_sources(data: schema.Data) -> list[Source]:
    """Return the sources of the training rows: a single source, or one per member of the mix."""
    if data.mix is not None:
        return [_source(member, f"data.mix.{name}") for name, member in data.mix.items()]
    return [_source(data, "data")]


def eval_sources(data: schema.Data) -> list[Source]:
    """Return the held-out source in a list.

    The list is empty if held-out rows are a fraction of the training rows, or if there are no held-out rows.
    """
    if data.eval is None or data.eval.fraction is not None:
        return []
    return [_source(data.eval, "data.eval")]


def _source(section: schema.Source, name: str) -> Source:
    select = section.select
    return Source(
        world=section.world,
        args=section.args,
        path=tuple(section.path) if isinstance(section.path, list) else section.path,
        subset=section.subset,
        split=section.split,
        revision=section.revision,
        rename=section.rename,
        select=tuple(select) if isinstance(select, list) else select,
        weight=section.weight,
        name=name,
    )


def describe_eval_rows(data: schema.Data) -> str:
    """Describe in words which rows an evaluation runs on."""
    if data.eval is None:
        return "training rows"
    if data.eval.fraction is not None:
        return f"the {data.eval.fraction:.0%} held out"
    return str(data.eval.world or data.eval.path)
