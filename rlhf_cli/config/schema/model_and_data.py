"""The sections `model` and `data`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from rlhf_cli.config.schema.section import Bounds, OneOrNamed, Section, entries_of, one_or_several


class Message(Section):
    """One turn of a conversational prompt template.

    `role` is the speaker. `content` is a text in which `{column}` is replaced by the row's value.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Keep(Section):
    """The rows to keep: those whose number in `column` lies `between` [low, high], both inclusive."""

    column: str
    between: Bounds


class Source(Section):
    """A source of rows: a generated `world`, or a `path` (file, folder, glob, hub id, or a list of them).

    `args` are the world's arguments. `subset`, `split` and `revision` select a part of a hub dataset; null uses the
    hub's default. `rename` maps a column that a trainer or reward reads to the column in the data, or to a path into
    one (`reward_model.ground_truth`). `select` keeps the first N rows, or the rows [FIRST, END); null keeps all.
    `keep` selects by a column of numbers, and `sort` names one to sort by, smallest first (`-COLUMN`: largest first).
    `weight` is this source's share of a `mix`, relative to the others.
    """

    world: str | None = None
    args: dict[str, object] = Field(default_factory=dict)
    path: str | list[str] | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    rename: dict[str, str] = Field(default_factory=dict)
    select: int | list[int] | None = None
    keep: Keep | None = None
    sort: str | None = None
    weight: float = Field(default=1.0, gt=0)


class Eval(Source):
    """The held-out rows for evaluations: a `fraction` of the training rows, or a source of their own.

    `fraction` is between 0 and 1; null uses another source instead. `path` is a file, folder, glob or hub id, or a list
    of them. `world` is a generated data set.
    """

    fraction: float | None = Field(default=None, gt=0, lt=1)

    @model_validator(mode="after")
    def _one_origin(self) -> Eval:
        if self.fraction is not None and (self.path is not None or self.world is not None):
            raise ValueError("a `fraction` of the training rows, or a `path` or `world` of their own: fraction: null")
        return self


_OF_A_SET = tuple(Eval.model_fields)
_MAPPINGS = ("args", "rename", "keep")
_ONE_SET = "{fraction: 0.1}, {path: FILE} or {world: NAME}"


def _one_or_named(value: object) -> object:
    """Raise ValueError for an empty mapping, for keys of a set beside named sets, and for a name that cannot be one."""
    if not isinstance(value, Mapping):
        return value
    if not value:
        raise ValueError(f"{_ONE_SET}, or named sets of these; null evaluates nothing")
    sets = [name for name, part in value.items() if name not in _OF_A_SET and isinstance(part, Mapping | Section)]
    keys = [key for key in value if key in _OF_A_SET]
    taken = [key for key in keys if key not in _MAPPINGS and isinstance(value[key], Mapping)]
    if taken or (sets and keys):
        key = (taken or keys)[0]
        raise ValueError(
            f"one set, or named sets: `{key}` is a key of a set, so it is data.eval.{(sets or ['NAME'])[0]}.{key} of a "
            f"named set; no set can be called {key}, but {key}_rows can"
        )
    for name in sets:
        if not re.fullmatch(r"[A-Za-z]\w*", str(name), re.ASCII) or name in ("train", "eval"):
            raise ValueError(f"another name than {name}: letters, digits and underscores, and not `train` or `eval`")
    if sum(isinstance(value[name], Mapping) and value[name].get("fraction") is not None for name in sets) > 1:
        raise ValueError("at most one set that is a `fraction` of the training rows")
    return value


Evals: TypeAlias = Annotated[
    OneOrNamed[Eval], one_or_several(_OF_A_SET, _ONE_SET, has_list=False), BeforeValidator(_one_or_named)
]

OF_A_SOURCE = ("rename", "select", "keep", "sort")
"""Keys that a mix has for each of its sources only."""


class Data(Source):
    """The training rows, from one source or a `mix` of named sources.

    Give exactly one of `world` (a generated data set), `path` (a file, folder, glob, hub id, or a list of them) and
    `mix` (named sources). `transcripts` says that `chosen` and `rejected`, or `messages`, are whole dialogues, which
    are split into `prompt` and final answers. `prompt` is a template for the prompt, a text or a list of messages; null
    uses the column `prompt` as it is. `eval` defines held-out rows, or several sets of them by name; null has none.

    `overlong_prompts` says what happens to a prompt that leaves no room in the model's context for a completion of
    `max_completion_length` tokens: an `error`, `drop` the row, or `truncate` the prompt from the left (text prompts
    only). It applies to trainers that generate.
    """

    mix: dict[str, Source] | None = Field(default=None, min_length=1)
    transcripts: bool = False
    prompt: str | list[Message] | None = None
    overlong_prompts: Literal["error", "drop", "truncate"] = "error"
    eval: Evals = None
    exactly_one = ("world", "path", "mix")

    @property
    def evals(self) -> dict[str, Eval]:
        """Return name -> evaluation set; a single one has the name ''."""
        return entries_of(self.eval)

    @property
    def eval_names(self) -> list[str]:
        """Return the names of named evaluation sets."""
        return list(filter(None, self.evals))

    @property
    def fraction(self) -> float | None:
        """Return the share of the rows that is held out for an evaluation set, None without such a set."""
        return next((held_out.fraction for held_out in self.evals.values() if held_out.fraction is not None), None)

    @model_validator(mode="after")
    def _has_one_kind_of_source(self) -> Data:
        if self.mix is not None and (name := next(filter(self.__getattribute__, OF_A_SOURCE), None)) is not None:
            raise ValueError(f"`{name}` of each source of a mix: data.mix.NAME.{name}")
        return self


class WarmStart(Section):
    """A short supervised training of a newly built model, so that it has something to improve.

    `worlds` are the generated data sets whose demonstrations it learns. `steps` is the number of optimizer steps.
    `batch_size` is the number of demonstrations in a step. `learning_rate` is the peak: it rises to this value and then
    falls to 0.
    """

    worlds: list[str] = Field(min_length=1)
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)


class Build(Section):
    """A small byte-level transformer that is built on the spot instead of downloaded.

    `num_layers` is the number of layers, and `hidden_size` is their width. `num_heads` is the number of attention heads
    in a layer. `context_tokens` is the longest text that it reads. `warm_start` trains it before its first use; null
    leaves it random. `seed` determines its weights, its demonstrations and their order, so another seed is another
    starting model of the same kind.
    """

    hidden_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    context_tokens: int = Field(gt=8)
    seed: int = Field(default=0, ge=0)
    warm_start: WarmStart | None = None

    @model_validator(mode="after")
    def _even_heads(self) -> Build:
        # Rotary positions (arXiv 2104.09864) rotate pairs of numbers, so the width of a head is even.
        width, rest = divmod(self.hidden_size, self.num_heads)
        if rest or width % 2:
            raise ValueError(f"`hidden_size` as a multiple of {2 * self.num_heads}, twice `num_heads`")
        return self


class Lora(Section):
    """A LoRA adapter (arXiv 2106.09685) on the policy; the keys are the fields of peft.LoraConfig.

    `r` is the rank. `lora_alpha` divided by the rank scales the adapter's output. `lora_dropout` is the dropout rate of
    its inputs. `target_modules` names the layers that get an adapter. `rlhf list keys lora` shows peft's other fields.
    """

    model_config = ConfigDict(extra="allow")  # config/rules/trainer_rules.py judges them
    r: int = Field(default=16, gt=0)
    lora_alpha: int = Field(default=32, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: str | list[str] = Field(default="all-linear", min_length=1)


class Teacher(Section):
    """A model that a distilled policy learns from, token by token; it is not trained.

    `path` is a folder, a hub id or run:NAME. `revision` is a commit, branch or tag on the hub; null is the default
    branch. `dtype` is the type its weights are loaded in.
    """

    path: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


NOT_GIVEN = "(not given)"
"""Placeholder for a path of a model or of data that is not needed and not configured."""


class Model(Section):
    """The model that is trained, as a policy or as a reward model.

    Give either `path` (a local folder or hub id) or `build` (a small model made on the spot). `revision` is a commit,
    branch or tag on the hub; null is the default branch. `dtype` is the type its weights are loaded in. `tokenizer` is
    the folder or hub id of another tokenizer; null is the model's own. `chat_template` writes conversations as text: a
    Jinja file, or the template itself; null is the tokenizer's own. `response_template` reads calls of tools back from
    what `chat_template` writes, by the rules of transformers' `parse_response`; null is the tokenizer's own.
    `trust_remote_code` runs code from the model's repository; it is accepted from the command line only. `lora` trains
    an adapter; null trains all weights. `quantize` loads the frozen weights in 4 bits (QLoRA, arXiv 2305.14314) or 8
    bits and requires `lora`; null loads them in `dtype`.
    """

    path: str | None = None
    build: Build | None = None
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    tokenizer: str | None = None
    chat_template: str | None = None
    response_template: dict[str, JsonValue] | None = None
    trust_remote_code: bool = False
    lora: Lora | None = None
    quantize: Literal["4bit", "8bit"] | None = None
    exactly_one = ("path", "build")
