"""A copy of an embedded model's folder, to be spoilt in one place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER

EMPTY_WEIGHTS = "\x02" + 7 * "\0" + "{}"
"""A safetensors file without a tensor: the length of its header in eight bytes, and the header."""
CONTEXT_TOKENS = 512
"""What the embedded model says it reads, in its config.json."""


def tokenizer_json(tokens: Mapping[str, int] | Sequence[str], added: Mapping[str, int] | None = None) -> str:
    """A tokenizer.json that can be read: a vocabulary of words, or of pieces with a score each, in order."""
    if isinstance(tokens, Mapping):
        model: dict[str, object] = {"type": "WordLevel", "vocab": dict(tokens), "unk_token": next(iter(tokens))}
    else:
        model = {"type": "Unigram", "vocab": [[token, 0.0] for token in tokens], "unk_id": 0}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    listed = [{"id": number, "content": token, **flags} for token, number in (added or {}).items()]
    nothing = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return json.dumps({"version": "1.0", **nothing, "added_tokens": listed, "model": model})


def model_copy(folder: Path, *, without: tuple[str, ...] = (), **changed: Mapping[str, object]) -> Path:
    """Copy the model to `folder`, leave out the files `without`, and change keys of a JSON file: `config={...}`."""
    shutil.copytree(EMBEDDED_TOKENIZER, folder)
    for name in without:
        (folder / name).unlink()
    for name, values in changed.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return folder
