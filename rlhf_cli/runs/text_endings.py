"""Record beside a model's weights what texts it was trained on: conversations or plain ones, and how they ended.

TRL's RewardTrainer appends the EOS token to plain texts, but its GRPOTrainer passes texts to a reward model without it.
A model that reads its score from the last token then scores the same text in two ways. The records are in the model's
folder, so they move with the model and are available when scoring. Needs no torch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlhf_cli.errors import ModelError
from rlhf_cli.text.regular_files import read_object

_FILE = "text_endings.json"
_KEY = "plain_texts_end_with_eos"
_FORMAT_FILE = "training_format.json"
_CONVERSATIONS = "conversations"


def write_training_format(model: Path, *, conversations: bool) -> None:
    """Write whether the training rows were conversations, which go through the chat template."""
    (model / _FORMAT_FILE).write_text(json.dumps({_CONVERSATIONS: conversations}) + "\n", encoding="utf-8")


def trained_on_conversations(model: Path) -> bool | None:
    """Return whether a model was trained on conversations; None without a record that can be read."""
    try:
        found = read_object(model / _FORMAT_FILE)[_CONVERSATIONS]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, bool) else None


def write_text_endings(model: Path, *, with_eos: bool) -> None:
    """Write whether plain texts ended with the EOS token; conversations end as their chat template defines."""
    (model / _FILE).write_text(json.dumps({_KEY: with_eos}) + "\n", encoding="utf-8")


def trained_with_eos(model: str | Path) -> bool | None:
    """Return whether the plain texts that a model was trained on ended with the EOS token.

    Returns None without a record, as for a hub id: such a model gets texts without EOS, as in TRL's GRPOTrainer. Raises
    ModelError if the record cannot be read.
    """
    file = Path(os.path.expanduser(model)) / _FILE
    if not file.exists():
        return None
    try:
        return bool(read_object(file)[_KEY])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            "the record of how a reward model's training texts ended is damaged",
            where=str(file),
            got=f"{type(error).__name__}: {error}",
            expected=f'{{"{_KEY}": true}} or false',
            advice="delete the file to score texts without the token",
        ) from error
