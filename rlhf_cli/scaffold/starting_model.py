"""Describe the starting model of a new project: its name in a configuration and its context length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.models.model_folders import describe_model

TINY = "tiny"


@dataclass(frozen=True)
class StartingModel:
    """A model to start from: a folder or hub id in `path`, or None for the embedded model.

    `context_tokens` is its context length, None if only the hub knows. `is_folder` says whether `path` is a folder.
    """

    path: str | None
    context_tokens: int | None
    is_folder: bool = False

    @property
    def is_tiny(self) -> bool:
        """Return whether it is the embedded model."""
        return self.path is None


_TINY_CONTEXT = 512
"""The value in conf/model/tiny_untrained.yaml."""


def read_starting_model(word: str) -> StartingModel:
    """Return the model for a typed word: `tiny`, a folder or a hub id.

    Raises ModelError if the folder has no model, or the word is neither a folder nor a possible hub id.
    """
    if word == TINY:
        return StartingModel(None, _TINY_CONTEXT)
    describe_model(word, where="--model")
    folder = Path(word).expanduser()
    return StartingModel(word, _context_tokens(folder / "config.json"), is_folder=folder.is_dir())


def _context_tokens(config: Path) -> int | None:
    if not config.is_file():
        return None
    content = json.loads(config.read_text(encoding="utf-8"))
    size = content.get("max_position_embeddings", content.get("n_positions"))
    return size if isinstance(size, int) else None
