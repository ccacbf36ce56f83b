"""Read tokenizer files and count tokens, without transformers or torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.errors import ModelError
from rlhf_cli.json_values import JsonTree
from rlhf_cli.models.config_json import token_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EMBEDDED_TOKENIZER = Path(__file__).with_name("embedded") / "tiny"
"""The folder of the tokenizer shared by the embedded models."""
_WITHOUT_DEFAULTS = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
"""Classes that only have the special tokens in their files; other classes define some themselves."""


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer folder, with the merged `tokenizer_config.json` and `special_tokens_map.json`."""

    folder: Path
    settings: JsonTree
    where: str

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
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        former = self.folder / "chat_template.json"
        said = (
            read_json(former, self.where).get("chat_template")
            if former.is_file()
            else self.settings.get("chat_template")
        )
        if isinstance(said, list):  # one per purpose; `default` is for conversations
            named = {one.get("name"): one.get("template") for one in said if isinstance(one, dict)}
            said = named.get("default")
        return said if isinstance(said, str) else None

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

    def lengths(self, texts: Sequence[str], *, special_tokens: bool) -> list[int] | None:
        """Return the number of tokens of each text, including special tokens if `special_tokens`.

        Return None without a tokenizer.json, which only transformers can handle.
        """
        if self._fast is None:
            return None
        return [len(one.ids) for one in self._fast.encode_batch(list(texts), add_special_tokens=special_tokens)]

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


def read_tokenizer(folder: Path, *, where: str) -> TokenizerFiles:
    """Return the tokenizer in a folder; `where` is the config key for errors, also in its methods.

    Raise ModelError if a file is not valid JSON.
    """
    settings: JsonTree = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name, where)
    return TokenizerFiles(folder, settings, where)


def read_json(file: Path, where: str = "model.path") -> JsonTree:
    """Return the object in a JSON file of a model folder. Raise ModelError for anything else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file.name} is no JSON", where=where, got=f"{file}: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{file.name} is no JSON object", where=where, got=f"{file}: {content!r:.80}")
    return content
