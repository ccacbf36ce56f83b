"""Read a model's and its tokenizer's JSON files, count tokens, render chats like transformers' chat_template_utils."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast

from rlhf_cli.errors import ModelError, RlhfError, in_a_line
from rlhf_cli.models.foreign_files import naming_foreign_files
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.regular_files import read_object, read_regular

if TYPE_CHECKING:
    import jinja2
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
"""A folder with a tokenizer has one of these files."""


def token_ids(tokenizer: JsonTree) -> dict[str, int]:
    """Return token -> id from a tokenizer.json; a Unigram model lists its tokens in order, others map them."""
    vocabulary, added = section(tokenizer, "model").get("vocab"), tokenizer.get("added_tokens")
    known: JsonTree = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):
        known = {str(entry[0]): number for number, entry in enumerate(vocabulary) if isinstance(entry, list)}
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict):
            known[str(entry["content"])] = entry["id"]
    return {token: number for token, number in known.items() if isinstance(number, int)}


def language_part(config: JsonTree) -> JsonTree:
    """Return the language model's section in the config of a multimodal model, else the config itself."""
    return section(config, "text_config") or config


def architectures_of(config: JsonTree) -> list[str]:
    """Return the names of the model's classes; empty if the config lists none."""
    named = config.get("architectures")
    return [str(name) for name in named] if isinstance(named, list) else []


def vocab_size_of(config: JsonTree) -> int | None:
    """Return the number of tokens, or None if the config does not contain it."""
    size = language_part(config).get("vocab_size")
    return size if isinstance(size, int) else None


def context_of(config: JsonTree) -> int | None:
    """Return the context length in tokens, or None if the config does not contain it."""
    text = language_part(config)
    sizes = (text.get(name) for name in ("max_position_embeddings", "n_positions"))
    return next((size for size in sizes if isinstance(size, int)), None)


def dtype_of(config: JsonTree) -> str | None:
    """Return the name of the dtype in which the weights are stored, or None if the config does not contain it."""
    dtype = config.get("dtype") or config.get("torch_dtype") or language_part(config).get("dtype")
    return str(dtype) if dtype else None


def num_labels_of(config: JsonTree) -> int | None:
    """Return the number of labels, or None if neither the config nor the class determines it."""
    labels, num_labels = config.get("id2label"), config.get("num_labels")
    if isinstance(labels, dict):
        return len(labels)
    if isinstance(num_labels, int):
        return num_labels
    # transformers omits the labels from the file if there are two, its default. Other classes have their own default.
    return 2 if next(iter(architectures_of(config)), "").endswith(CLASSIFIERS) else None


EMBEDDED_TOKENIZER = Path(__file__).with_name("embedded") / "tiny"
"""The folder of the tokenizer shared by the embedded models."""
_WITHOUT_DEFAULTS = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
"""Classes that only have the special tokens in their files; other classes define some themselves."""
_PIECE, _AT_ONCE = 50_000, 16


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer folder, with the merged `tokenizer_config.json` and `special_tokens_map.json`."""

    folder: Path
    settings: JsonTree
    where: str
    other_template: str | None = None
    """Replaces the chat template of the folder; None keeps it."""

    def special(self, name: str) -> str | None:
        """Return the text of a special token, for example `eos_token`, or None if the files do not define it."""
        token = self.settings.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        return token if isinstance(token, str) and token else None

    def surely_lacks(self, name: str) -> bool:
        """Return whether the tokenizer has no such token; some classes define one without a file."""
        if self.special(name) is not None:
            return False
        return name in self.settings or self.settings.get("tokenizer_class", "") in _WITHOUT_DEFAULTS

    @property
    def chat_template(self) -> str | None:
        """Return the chat template, or None."""
        return self._templates.get("default")

    def template_with(self, tools: object) -> str:
        """Return the chat template for a conversation with these tools, "" without one."""
        return self._templates.get("tool_use" if tools is not None else "", self.chat_template or "")

    @cached_property
    def _templates(self) -> dict[str, str]:
        """Return the chat templates by purpose, as transformers reads them: `default` is for conversations."""
        if self.other_template is not None:
            return {"default": self.other_template}
        files = {file.stem: file for file in self.folder.glob("additional_chat_templates/*.jinja")}
        if (file := self.folder / "chat_template.jinja").is_file():
            files["default"] = file
        found = dict[str, str]()
        for name, file in files.items():
            try:
                found[name] = read_regular(file)
            except (OSError, ValueError) as error:
                what = "the chat template cannot be read"
                raise ModelError(what, where=self.where, got=f"{file}: {error}") from None
        if found:
            return found
        former = self.folder / "chat_template.json"
        settings = read_json(former, self.where) if former.is_file() else self.settings
        template = settings.get("chat_template")
        if isinstance(template, list):  # one per purpose
            template = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        named = template if isinstance(template, dict) else {"default": template}
        return {name: text for name, text in named.items() if isinstance(text, str)}

    @cached_property
    def _content(self) -> JsonTree:
        """Return the content of tokenizer.json; empty without the file."""
        file = self.folder / "tokenizer.json"
        return read_json(file, self.where) if file.is_file() else {}

    @cached_property
    def tokens(self) -> dict[str, int]:
        """Return token -> id; empty without a tokenizer.json."""
        return token_ids(self._content)

    @cached_property
    def added_tokens(self) -> list[JsonTree]:
        """Return the added tokens of tokenizer.json: dicts with `content` and `id`."""
        listed = self._content.get("added_tokens")
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    @property
    def unread_end(self) -> str | None:
        """Return the end-of-sequence token if texts are padded with it, so that no reward model reads it, else None."""
        eos = self.special("eos_token")
        return eos if eos is not None and self.special("pad_token") in (None, eos) else None

    @property
    def other_padding(self) -> str | None:
        """Return the token to pad with instead of the end-of-sequence token, or None if there is none."""
        special = [str(entry["content"]) for entry in self.added_tokens if entry.get("special")]
        return padding_beside(self.special("eos_token"), special, self.chat_template)

    def lengths(self, texts: Sequence[str], *, special_tokens: bool) -> list[int] | None:
        """Return the number of tokens of each text, including special tokens if `special_tokens`.

        Return None without a tokenizer.json, which only transformers can handle. A long text is counted in pieces,
        because the library needs 200 bytes of memory for each byte; every boundary may add a token.
        """
        if self._fast is None:
            return None
        counts = [len(self._fast.encode("", add_special_tokens=special_tokens).ids)] * len(texts)
        pieces = [(row, text[at : at + _PIECE]) for row, text in enumerate(texts) for at in range(0, len(text), _PIECE)]
        for some in (pieces[at : at + _AT_ONCE] for at in range(0, len(pieces), _AT_ONCE)):
            encoded = self._fast.encode_batch([piece for _, piece in some], add_special_tokens=False)
            for (row, _), piece in zip(some, encoded, strict=True):
                counts[row] += len(piece.ids)
        return counts

    def doubled_start(self, text: str) -> str | None:
        """Return the token that `text` begins with and that the tokenizer adds before it once more, None if none."""
        if self._fast is None:
            return None
        own, added = (self._fast.encode(text[:100], add_special_tokens=adds).ids for adds in (False, True))
        return str(self._fast.id_to_token(own[0])) if own and added[: len(own) + 1] == [own[0], *own] else None

    @property
    def added_end(self) -> str | None:
        """Return the token that the tokenizer adds behind every plain text, None if none."""
        if self._fast is None:
            return None
        own, added = (self._fast.encode("a", add_special_tokens=adds).ids for adds in (False, True))
        return str(self._fast.id_to_token(added[-1])) if added[-1:] != own[-1:] else None

    @cached_property
    def _fast(self) -> Tokenizer | None:
        from tokenizers import Tokenizer  # a compiled library, imported only to count tokens

        file = self.folder / "tokenizer.json"
        if not file.is_file():
            return None
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises a bare Exception
            got, expected = f"{file}: {error}", "a whole tokenizer.json"
            raise ModelError("the tokenizer cannot be read", where=self.where, got=got, expected=expected) from None
        tokenizer.no_truncation()  # the file keeps both of the last call before it was saved
        tokenizer.no_padding()
        return tokenizer


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[object],
    settings: Mapping[str, object],
    tools: Sequence[Sequence[object]] = (),
) -> list[list[int]]:
    """Return the tokens of prompts that are all texts or all lists of messages; `settings` are the template's, `tools`
    what it is told of each prompt's.
    """
    if isinstance(prompts[0], str):
        return [list(ids) for ids in tokenizer(list(prompts), verbose=False)["input_ids"]]
    if any(tools):
        told = [{**settings, "tools": list(own) or None} for own in tools]
        return [prompt_ids(tokenizer, [prompt], own)[0] for prompt, own in zip(prompts, told, strict=True)]
    render: Callable[..., object] = tokenizer.apply_chat_template  # its return type depends on the arguments
    asked = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, **settings}
    rendered = cast("Mapping[str, list[list[int]]]", render(list(prompts), **asked))
    return [list(ids) for ids in rendered["input_ids"]]


def padding_beside(eos: str | None, special: Sequence[str], template: str | None) -> str | None:
    """Return the special token that texts least likely hold: neither `eos` nor in the chat template; None without.

    One that is named after padding comes first, else the order is that of `special`.
    """
    unused = [token for token in special if token != eos and token not in (template or "")]
    return min(unused, key=lambda token: "pad" not in token.lower(), default=None)


def read_tokenizer(
    folder: Path, *, where: str, template: str | None = None, response_template: JsonTree | None = None
) -> TokenizerFiles:
    """Return the tokenizer in a folder; `where` is the config key for errors, also in its methods.

    `template` replaces its chat template, `response_template` what reads a call back. Raise ModelError if a file is not
    valid JSON.
    """
    settings: JsonTree = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name, where)
    if response_template is not None:
        settings["response_template"] = response_template
    return TokenizerFiles(folder, settings, where, template)


def load_tokenizer(
    name: str,
    template: str | None,
    response_template: JsonTree | None = None,
    load: Callable[..., PreTrainedTokenizerBase] | None = None,
    *,
    where: str = "model.path",
    **given: object,
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or hub id, or what `load` loads, with the templates that are not None.

    Raise ModelError, with `where` as its place, if it cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        with naming_foreign_files({where: name}):
            tokenizer: PreTrainedTokenizerBase = (load or AutoTokenizer.from_pretrained)(name, **given)
    except RlhfError:
        raise
    except Exception as error:  # each class of transformers raises its own
        what, got = "the tokenizer or processor cannot be loaded", f"{name} ({in_a_line(error):.200})"
        expected = "a folder with a tokenizer, or a hub id that is in the cache or can be reached"
        hint = None if Path(name).is_dir() else f"hf download {name}"
        raise ModelError(what, where=where, got=got, expected=expected, hint=hint) from error
    if template is not None:
        tokenizer.chat_template = template
    if response_template is not None:
        tokenizer.response_template = response_template
    return tokenizer


JINJA_FILES = (".jinja", ".j2")
"""Suffixes by which TRL's `chat_template_path` tells a file from a tokenizer."""
_LARGEST_TEMPLATE = 1_000_000


def chat_template_text(named: str, *, where: str) -> str:
    """Return the chat template that `named` is, or that the file of this name holds.

    A text with a brace or a line break is a template. Raise ModelError for a file that cannot be read and for a
    template that Jinja cannot parse.
    """
    import jinja2

    text, got, problem = named, "", "the chat template cannot be read"
    try:
        if not set("{}\n") & set(named):
            file = Path(named).expanduser()
            got = f"{file.absolute()}: "
            text = read_regular(file, _LARGEST_TEMPLATE)
        problem = "the chat template is not valid Jinja"
        _compiled(text)
    except jinja2.TemplateSyntaxError as error:
        got += f"line {error.lineno}: {error.message}"
    except (OSError, ValueError) as error:
        got += str(error)
    else:
        return text
    expected = "a text file with a Jinja template, or the template itself"
    raise ModelError(problem, where=where, got=got, expected=expected)


def read_json(file: Path, where: str = "model.path") -> JsonTree:
    """Return the object in a JSON file of a model folder. Raise ModelError for anything else."""
    try:
        return read_object(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file.name} is not a JSON object", where=where, got=f"{file}: {error}") from None


def adapter_base(folder: Path, where: str = "model.path") -> str | None:
    """Return the base that an adapter's folder names; None for a folder without an adapter or with a whole model."""
    adapter = folder / "adapter_config.json"
    if not adapter.is_file() or (folder / "config.json").is_file():
        return None
    base = read_json(adapter, where).get("base_model_name_or_path")
    return base if isinstance(base, str) else None


def base_revision(folder: Path) -> str | None:
    """Return the commit, branch or tag of its base that an adapter's folder names; None for the default branch."""
    revision = None if adapter_base(folder) is None else read_json(folder / "adapter_config.json").get("revision")
    return revision if isinstance(revision, str) else None


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    special_tokens: Mapping[str, str],
    settings: Mapping[str, object] | None = None,
) -> str:
    """Return a conversation as a text that ends with the generation prompt.

    `special_tokens` are `bos_token` and the like, `settings` further template variables. Raise jinja2.TemplateError if
    the template is malformed or rejects the conversation.
    """
    given = {"add_generation_prompt": True, "tools": None, "documents": None, **special_tokens, **(settings or {})}
    return _compiled(template).render(messages=messages, **given)


def variables_of(template: str) -> set[str]:
    """Return the variables that a chat template reads, and those that `apply_chat_template` takes itself."""
    import jinja2.meta

    of_call = {"documents", "continue_final_message", "max_length", "padding", "truncation", "tokenizer_kwargs"}
    return of_call | jinja2.meta.find_undeclared_variables(_compiled(template).environment.parse(template))


@cache
def _compiled(template: str) -> jinja2.Template:
    """Return a template that renders, and is refused, as by transformers, whose import takes too long for `check`."""
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """A jinja2 extension that ignores `{% generation %}`, the block around an assistant's text."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            """Return the content of the block."""
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    class Dict:
        """What a hub's template may do with `dict`."""

        __call__: ClassVar[Callable[..., object]] = staticmethod(dict)
        fromkeys: ClassVar[Callable[..., object]] = staticmethod(dict.fromkeys)

    class Namespace(jinja2.utils.Namespace):
        """A namespace in which a hub's template can set no attribute of Python's own."""

        def __init__(self, /, *given: Mapping[str, object], **names: object) -> None:
            super().__init__()
            for name, value in dict(*given, **names).items():
                self[name] = value

        def __setitem__(self, name: str, value: object) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a chat template may not set {name!r} of a namespace")
            super().__setitem__(name, value)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **form: json.dumps(
        value, ensure_ascii=ensure_ascii, **form
    )

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["namespace"] = Namespace
    environment.globals["dict"] = Dict()
    try:
        return environment.from_string(template)
    except RecursionError:
        raise jinja2.TemplateSyntaxError("nested too deeply", 1) from None


def no_end_token(tokenizer: object, *, where: str) -> ModelError:
    """Return the error for a tokenizer without an end-of-sequence token; `tokenizer` is its folder."""
    expected, got = "eos_token in its tokenizer_config.json", f"{tokenizer}: eos_token is not set"
    what = "the tokenizer has no end-of-sequence token, which ends and pads texts"
    return ModelError(what, where=where, got=got, expected=expected, hint="model.tokenizer=FOLDER_OR_HUB_ID")


def no_chat_template(tokenizer: object, *, where: str) -> ModelError:
    """Return the error for conversations and a tokenizer without a chat template; `tokenizer` is its folder."""
    what = "the model has no chat template, and the rows are conversations"
    expected = "a chat_template.jinja, or chat_template in tokenizer_config.json"
    hint = "model.chat_template=FILE.jinja, or model.tokenizer=FOLDER_OR_HUB_ID  # of its chat model"
    return ModelError(what, where=where, got=str(tokenizer), expected=expected, hint=hint)
