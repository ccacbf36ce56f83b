"""A plain text and a conversation to score, and copies of model folders with something changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

PLAIN = (["17+5=", "a much longer prompt than that: 3+4="], ["22", "it is 7, I think"])

CONVERSATION = (
    [[{"role": "user", "content": text}] for text in PLAIN[0]],
    [[{"role": "assistant", "content": text}] for text in PLAIN[1]],
)


def copied(folder: Path, parent: Path) -> Path:
    return Path(shutil.copytree(folder, parent / "rm"))


def edited(folder: Path, parent: Path, file: str, **values: object) -> Path:
    """A copy of the folder with some values of a JSON file changed, removed where None."""
    copy = copied(folder, parent)
    content = json.loads((copy / file).read_text()) | values
    (copy / file).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return copy


def tiny_policy(folder: Path) -> str:
    from rlhf_cli.models.tiny import tiny_model_path

    build = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_tokens": 64, "seed": 0, "warm_start": None}
    return str(tiny_model_path(build, list, lambda step, steps: None))
