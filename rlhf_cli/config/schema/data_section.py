"""Defines the section `data`: where rows come from, and what becomes of them before a trainer sees them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_cli.config.schema.section import Section


class Message(Section):
    """A message that stands as one turn in a conversational prompt template.

    `role` says who speaks. `content` is a text with `{column}` where a row's value goes.
    """

    role: Literal["system", "user", "assistant"]
    content: str


class Source(Section):
    """A source that rows come from: a generated `world`, or a `path` (file, folder, glob, hub id, or a list of them).

    `args` go to the world. `subset`, `split` and `revision` pick from a dataset of the hub, where null takes the hub's
    own default. `rename` maps the column a trainer or reward reads to the column of the data. `select` keeps the first
    N rows, or the rows [FIRST, END), and null keeps all. `weight` is this source's share in a `mix`, relative to the
    others'.
    """

    world: str | None = None
    args: dict[str, object] = Field(default_factory=dict)
    path: str | list[str] | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    rename: dict[str, str] = Field(default_factory=dict)
    select: int | list[int] | None = None
    weight: float = Field(default=1.0, gt=0)


class Eval(Source):
    """The held-out rows that evaluations run on: a `fraction` of the training rows, or a source of their own.

    `fraction` is between 0 and 1; null leaves it to `world` or `path`.
    """

    fraction: float | None = Field(default=None, gt=0, lt=1)


class Data(Source):
    """The training rows, which come from one source or a `mix` of named ones.

    Exactly one of `world`, `path` and `mix` is given. `transcripts` says that `chosen` and `rejected` are whole
    dialogues, to be split into `prompt` and last answers. `prompt` is a template for the prompt, a text or a list of
    messages; null takes the column `prompt` as it is. `eval` names held-out rows, null for none.

    `overlong_prompts` says what becomes of a prompt that leaves no room in what the model reads for a completion of
    `max_completion_length` tokens: it is an `error`, the row is left out (`drop`), or only the end of the prompt stays
    (`truncate`, for prompts of text). It is for trainers that generate.
    """

    mix: dict[str, Source] | None = None
    transcripts: bool = False
    prompt: str | list[Message] | None = None
    overlong_prompts: Literal["error", "drop", "truncate"] = "error"
    eval: Eval | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Data:
        if sum(origin is not None for origin in (self.world, self.path, self.mix)) != 1:
            raise ValueError("exactly one of `world`, `path` and `mix`")
        return self
