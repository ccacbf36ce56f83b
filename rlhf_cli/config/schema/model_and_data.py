"""Define the sections `model` and `data`."""

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


class WarmStart(Section):
    """The short supervised training that gives a freshly built model something to improve.

    It learns from the demonstrations of `worlds` for `steps` optimizer steps, `batch_size` demonstrations at a time,
    with a `learning_rate` that rises to that value for a while and then falls to 0.
    """

    worlds: list[str]
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)


class Build(Section):
    """A small byte-level transformer that is made on the spot instead of downloaded.

    It has `num_layers` layers of width `hidden_size` with `num_heads` attention heads, and reads at most
    `context_tokens` tokens. `warm_start` trains it once before it is used, null leaves it random. `seed` draws its
    weights, its demonstrations and their order: another seed is another starting model of the same kind.
    """

    hidden_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    context_tokens: int = Field(gt=8)
    seed: int = Field(default=0, ge=0)
    warm_start: WarmStart | None = None

    @model_validator(mode="after")
    def _whole_heads(self) -> Build:
        # Rotary positions (arXiv 2104.09864) turn pairs of a head's numbers, so a head is of even width.
        width, rest = divmod(self.hidden_size, self.num_heads)
        if rest or width % 2:
            raise ValueError(f"`hidden_size` as a multiple of {2 * self.num_heads}, twice `num_heads`")
        return self


class Lora(Section):
    """A LoRA adapter (arXiv 2106.09685) that is trained on the policy; the names are peft.LoraConfig's.

    `r` is its rank, `lora_alpha` / `r` scales what it adds, `lora_dropout` is the share of its inputs that is dropped,
    and `target_modules` names the layers that get one.
    """

    r: int = Field(default=16, gt=0)
    lora_alpha: int = Field(default=32, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"


class Model(Section):
    """The model that is trained, from a `path` (local folder or hub id) or a `build`.

    A reward model is trained from it, too. `revision` is a commit, branch or tag of the hub, null for the default
    branch. `tokenizer` is the folder or hub id of another tokenizer, null for the model's own. `trust_remote_code` runs
    code from the model's repository, and is accepted from the command line only. `lora` trains an adapter, null the
    weights themselves. `quantize` loads the frozen weights in 4 bits (QLoRA, arXiv 2305.14314) or 8, under a `lora`
    that is trained; null loads them in `dtype`.
    """

    path: str | None = None
    build: Build | None = None
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    tokenizer: str | None = None
    trust_remote_code: bool = False
    lora: Lora | None = None
    quantize: Literal["4bit", "8bit"] | None = None

    @model_validator(mode="after")
    def _one_of_path_and_build(self) -> Model:
        if (self.path is None) == (self.build is None):
            raise ValueError("either `path` (a folder or hub id) or `build`, not both and not neither")
        return self
