"""Remove secrets from what TRL writes: its tables of completions and the arguments beside every model."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import TrainingArguments

from rlhf_cli.redaction import redacted_tree


def hide_in_tables(logs: Mapping[str, object]) -> None:
    """Hide known secrets in TRL's `_logs` in place: an environment value may occur in every prompt.

    Texts that only look like a secret stay: a model or a data set wrote them.
    """
    for column in logs.values():
        if isinstance(column, Mapping):
            hide_in_tables(column)
        elif isinstance(column, deque):
            for row, text in enumerate(redacted_tree(list(column), values_only=True)):
                column[row] = text


def hide_in_arguments(args: TrainingArguments, file: Path) -> None:
    """Rewrite `file`, where transformers has just saved the arguments, if one of them contains a secret."""
    values = {field.name: getattr(args, field.name, None) for field in dataclasses.fields(args)}
    hidden = dict(zip(values, redacted_tree(list(values.values())), strict=True))  # reads the environment only once
    changed = {name: value for name, value in hidden.items() if isinstance(value, str | list | tuple | dict)}
    changed = {name: value for name, value in changed.items() if value != values[name]}
    if changed:
        shown = copy.copy(args)
        vars(shown).update(changed)
        torch.save(shown, file)
