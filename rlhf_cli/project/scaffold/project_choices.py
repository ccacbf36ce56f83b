"""Hold what a new project is made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.models.model_folders import describe_model
from rlhf_cli.project.scaffold.own_rows import OwnRows, Training

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


SAMPLE = "sample"
_HELD_OUT = 0.1
_FEWEST_TO_HOLD_OUT = 40
_GROUP = 8
_FEWEST_TO_READ = 16
_PPO_MINIBATCHES = 4
"""Minibatches per PPO round, as in conf/trainer/ppo.yaml."""


@dataclass(frozen=True)
class ProjectChoices:
    """The answers to the three questions: the training, the starting model, and the rows (None: the sample's)."""

    training: Training
    model: StartingModel
    rows: OwnRows | None

    @property
    def has_answer(self) -> bool:
        """Return whether a column allows answers to be checked."""
        return self.training.generates and (self.rows is None or self.rows.has_answer)

    @property
    def answer_is_number(self) -> bool:
        """Return whether that column holds numbers."""
        return self.rows is None or self.rows.answer_is_number

    @property
    def holds_out(self) -> float | None:
        """Return the share of the rows kept for evaluation, or None if there are too few rows."""
        count = None if self.rows is None else self.rows.num_rows
        return _HELD_OUT if count is None or count >= _FEWEST_TO_HOLD_OUT else None

    @property
    def batch_size(self) -> int:
        """Return the rows per step of one process; they are completions if the training generates."""
        wanted = 64 if self.model.is_tiny else 8
        count = None if self.rows is None else self.rows.num_rows
        if count is None:
            return wanted
        count = max(1, int(count * (1 - (self.holds_out or 0))))
        if self.training.name == "ppo":
            return min(wanted, max(1, count // _PPO_MINIBATCHES))
        if not self.training.generates:
            return min(wanted, count)
        return min(wanted, count * _GROUP)

    @property
    def num_generations(self) -> int | None:
        """Return the completions per prompt, or None to keep the trainer's default."""
        return _GROUP if self.training.generates and self.training.name != "ppo" else None

    @property
    def answer_tokens(self) -> int:
        """Return the maximum tokens per answer, or per text for trainings that do not generate."""
        if self.rows is None and self.model.is_tiny:
            wanted = 16 if self.training.generates else 96
        else:
            wanted = 64 if self.model.is_tiny else 256
            wanted *= 1 if self.training.generates else 4
        limit = self.model.context_tokens
        if limit is None:
            return wanted
        return max(_FEWEST_TO_READ, min(wanted, limit // 2 if self.training.generates else limit))

    @property
    def learning_rate(self) -> str:
        """Return the learning rate as YAML text."""
        return self.training.tiny_rate if self.model.is_tiny else self.training.rate
