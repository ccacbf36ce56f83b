"""Read the JSON files of a model and its tokenizer, count tokens, render a chat.

`transformers.utils.chat_template_utils` defines the variables of a template; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlhf_cli.errors import ModelError
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.regular_files import read_object

if TYPE_CHECKING:
    import jinja2
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")


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

    @cached_property
    def chat_template(self) -> str | None:
        """Return the chat template, or None."""
        if self.other_template is not None:
            return self.other_template
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        former = self.folder / "chat_template.json"
        settings = read_json(former, self.where) if former.is_file() else self.settings
        template = settings.get("chat_template")
        if isinstance(template, list):  # one per purpose; `default` is for conversations
            named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    @cached_property
    def tokens(self) -> dict[str, int]:
        """Return token -> id; empty without a tokenizer.json."""
        file = self.folder / "tokenizer.json"
        return token_ids(read_json(file, self.where)) if file.is_file() else {}

    @cached_property
    def added_tokens(self) -> list[JsonTree]:
        """Return the added tokens of tokenizer.json: dicts with `content` and `id`."""
        file = self.folder / "tokenizer.json"
        listed = read_json(file, self.where).get("added_tokens") if file.is_file() else None
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    @property
    def unread_end(self) -> str | None:
        """Return the end-of-sequence token if texts are padded with it too, else None.

        A reward model's score is read at the last token that is no padding: before such an end, which it never reads.
        """
        eos = self.special("eos_token")
        return eos if eos is not None and self.special("pad_token") in (None, eos) else None

    @property
    def other_padding(self) -> str | None:
        """Return the token to pad with instead of the end-of-sequence token, or None if there is none."""
        special = [str(entry["content"]) for entry in self.added_tokens if entry.get("special")]
        return padding_beside(self.special("eos_token"), special, self.chat_template)

    def lengths(self, texts: Sequence[str], *, special_tokens: bool) -> list[int] | None:
        """Return the number of tokens of each text, including special tokens if `special_tokens`.

        Return None without a tokenizer.json, which only transformers can handle. A long text is counted in pieces: the
        library needs 200 bytes of memory for each byte. Every seam may add a token.
        """
        if self._fast is None:
            return None
        counts = [len(self._fast.encode("", add_special_tokens=special_tokens).ids)] * len(texts)
        pieces = [(row, text[at : at + _PIECE]) for row, text in enumerate(texts) for at in range(0, len(text), _PIECE)]
        for some in (pieces[at : at + _AT_ONCE] for at in range(0, len(pieces), _AT_ONCE)):
            encoded = self._fast.encode_batch([piece for _, piece in some], add_special_tokens=False)
            for (row, _), one in zip(some, encoded, strict=True):
                counts[row] += len(one.ids)
        return counts

    @cached_property
    def _fast(self) -> Tokenizer | None:
        from tokenizers import Tokenizer  # a compiled library, imported only to count tokens

        file = self.folder / "tokenizer.json"
        if not file.is_file():
            return None
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises a bare Exception
            raise ModelError(
                "the tokenizer cannot be read",
                where=self.where,
                got=f"{file}: {error}",
                expected="a whole tokenizer.json",
            ) from None


def padding_beside(eos: str | None, special: Sequence[str], template: str | None) -> str | None:
    """Return the special token that texts least likely hold: neither `eos` nor in the chat template; None without.

    One that is named after padding comes first, else the order is that of `special`.
    """
    unused = [token for token in special if token != eos and token not in (template or "")]
    return min(unused, key=lambda token: "pad" not in token.lower(), default=None)


def read_tokenizer(folder: Path, *, where: str, template: str | None = None) -> TokenizerFiles:
    """Return the tokenizer in a folder; `where` is the config key for errors, also in its methods.

    `template` replaces its chat template. Raise ModelError if a file is not valid JSON.
    """
    settings: JsonTree = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name, where)
    return TokenizerFiles(folder, settings, where, template)


def load_tokenizer(name: str, template: str | None, **given: object) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or hub id; `template` replaces its chat template, None keeps it."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **given)
    if template is not None:
        tokenizer.chat_template = template
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

    text, expected = named, "a text file with a Jinja template, or the template itself"
    if not set("{}\n") & set(named):
        file = Path(named).expanduser()
        try:
            if not file.is_file() or file.stat().st_size > _LARGEST_TEMPLATE:
                problem = "no such file" if not file.exists() else f"no file, or one above {_LARGEST_TEMPLATE} bytes"
                raise OSError(problem)
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            got = f"{file.absolute()}: {error}"
            raise ModelError("the chat template cannot be read", where=where, got=got, expected=expected) from None
    try:
        _compiled(text)
    except jinja2.TemplateSyntaxError as error:
        got = f"line {error.lineno}: {error.message}"
        raise ModelError(
            "the chat template is no valid Jinja template", where=where, got=got, expected=expected
        ) from None
    return text


def read_json(file: Path, where: str = "model.path") -> JsonTree:
    """Return the object in a JSON file of a model folder. Raise ModelError for anything else."""
    try:
        return read_object(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file.name} is no JSON object", where=where, got=f"{file}: {error}") from None


def adapter_base(folder: Path, where: str = "model.path") -> str | None:
    """Return the base that an adapter's folder names; None for a folder without an adapter or with a whole model."""
    adapter = folder / "adapter_config.json"
    if not adapter.is_file() or (folder / "config.json").is_file():
        return None
    base = read_json(adapter, where).get("base_model_name_or_path")
    return base if isinstance(base, str) else None


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


@cache
def _compiled(template: str) -> jinja2.Template:
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """A jinja2 extension that ignores `{% generation %}`, the block around an assistant's text."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            """Return the content of the block."""
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def no_end_token(tokenizer: object, *, where: str) -> ModelError:
    """Return the refusal of a tokenizer, named by its folder, without an end-of-sequence token."""
    return ModelError(
        "the tokenizer has no token for the end of a text: nothing could end, and nothing be padded",
        where=where,
        got=f"{tokenizer}: eos_token is not set",
        expected="eos_token in its tokenizer_config.json",
        hint="model.tokenizer=FOLDER_OR_HUB_ID",
    )


def no_chat_template(tokenizer: object, *, where: str) -> ModelError:
    """Return the refusal of conversations for a tokenizer, named by its folder, without a chat template."""
    return ModelError(
        "the model has no chat template, and the rows are conversations",
        where=where,
        got=str(tokenizer),
        expected="a chat_template.jinja, or chat_template in tokenizer_config.json",
        hint="model.chat_template=FILE.jinja, or model.tokenizer=FOLDER_OR_HUB_ID  # of its chat model",
    )
