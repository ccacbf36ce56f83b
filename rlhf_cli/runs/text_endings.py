"""Keeps beside a reward model's weights how the texts ended that it was trained on. No torch.

TRL's RewardTrainer ends plain texts with the end-of-sequence token, its GRPOTrainer shows a reward model texts without
one, and a model that reads its score off the last token has two answers to one text. The record lies in the model's
folder, so it goes wherever the model goes, and whoever scores by the model asks it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlhf_cli.errors import ModelError, Prose

_FILE = "text_endings.json"
_KEY = "plain_texts_end_with_eos"


def write_text_endings(model: Path, *, with_eos: bool) -> None:
    """Write whether plain texts ended with the end-of-sequence token; conversations end as their template says."""
    (model / _FILE).write_text(json.dumps({_KEY: with_eos}) + "\n", encoding="utf-8")


def trained_with_eos(model: str | Path) -> bool | None:
    """Return whether the plain texts that a model folder was trained on ended with the end-of-sequence token.

    None where nothing says so, as for a hub id: such a model is shown texts as TRL's GRPOTrainer shows them, without.
    Raises ModelError for a record that cannot be read.
    """
    file = Path(os.path.expanduser(model)) / _FILE
    if not file.is_file():
        return None
    try:
        return bool(json.loads(file.read_text(encoding="utf-8"))[_KEY])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            "the record of how a reward model's training texts ended is damaged",
            where=str(file),
            got=f"{type(error).__name__}: {error}",
            expected=f'{{"{_KEY}": true}} or false',
            hint=Prose("without the file nothing is known, and texts are scored without the token"),
        ) from error
