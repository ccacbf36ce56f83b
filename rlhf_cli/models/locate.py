"""Is this a model? What can be said of a path or hub id before anything is loaded. No torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rlhf_cli.errors import ModelError

_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def describe_model(path: str, *, where: str, needs_tokenizer: bool = True) -> str:
    """`Qwen3 (local folder)` or `hub id`.

    Raises ModelError when `path` is a folder without a model in it, or neither a folder nor like a hub id.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if not _HUB_ID.match(path) or path.startswith("."):
            raise ModelError(
                "there is no such model folder",
                where=where,
                got=f"{path} (looked at {folder.resolve()})",
                expected="a folder with config.json, a hub id such as Qwen/Qwen3-0.6B, or model=tiny",
            )
        return f"{path} (hub)"
    config = folder / "config.json"
    adapter = folder / "adapter_config.json"
    if not (config.is_file() or adapter.is_file()):
        raise ModelError(
            "the model folder has no model in it",
            where=where,
            got=f"{folder.resolve()}: " + _listing(folder),
            expected="a folder that save_pretrained made, with config.json, weights and tokenizer files",
        )
    if needs_tokenizer and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            "the model folder has no tokenizer in it",
            where=where,
            got=f"{folder.resolve()}: " + _listing(folder),
            expected="one of " + ", ".join(_TOKENIZER_FILES),
            hint="model.tokenizer=FOLDER_OR_HUB_ID",
        )
    return f"{path} ({_architecture(config)})" if config.is_file() else f"{path} (adapter)"


def _architecture(config: Path) -> str:
    content = json.loads(config.read_text(encoding="utf-8"))
    names = content.get("architectures") or [content.get("model_type", "unknown")]
    return str(names[0])


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "a file"
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "empty"
