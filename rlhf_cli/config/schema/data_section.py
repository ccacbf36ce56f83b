"""The section `data`: where rows come from, and what becomes of them before a trainer sees them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf_cli.config.schema.section import Section


class Message(Section):
    """One turn of a conversational prompt template."""

    role: Literal["system", "user", "assistant"]
    content: str


class Source(Section):
    """Where rows come from: a generated `world`, or a `path` (file, folder, glob, hub id)."""

    world: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    path: str | list[str] | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    rename: dict[str, str] = Field(default_factory=dict)
    select: int | list[int] | None = None
    weight: float = Field(default=1.0, gt=0)


class Eval(Source):
    """Held-out rows: a `fraction` of the training rows, or a source of their own."""

    fraction: float | None = Field(default=None, gt=0, lt=1)


class Data(Source):
    """Training rows: one source, or a `mix` of named ones.

    `transcripts`: `chosen` and `rejected` are whole dialogues, to be split into `prompt` and last answers.
    """

    mix: dict[str, Source] | None = None
    transcripts: bool = False
    prompt: str | list[Message] | None = None
    eval: Eval | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Data:
        if sum(origin is not None for origin in (self.world, self.path, self.mix)) != 1:
            raise ValueError("exactly one of `world`, `path` and `mix`")
        return self
