"""Only the rank that writes a model says beside it how its texts ended: the others' folder may not be there yet."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.runs.text_endings import trained_with_eos
from rlhf_cli.trainers import checkpoint_mixin
from rlhf_cli.trainers.checkpoint_mixin import CheckpointMixin
from rlhf_cli.trainers.extensions import Extensions


class Saves:
    """Like transformers' Trainer: called on every rank, but only the writer creates the folder."""

    def __init__(self, *, is_writer: bool) -> None:
        self.args: Any = SimpleNamespace(should_save=is_writer, output_dir="")
        self.extensions: Any = Extensions(ends_with_eos=True)

    def _save(self, output_dir: str, state_dict: Any = None) -> None:
        if self.args.should_save:
            Path(output_dir).mkdir()


class Trainer(CheckpointMixin, Saves):
    """Has the mixin."""


@pytest.mark.parametrize(("is_writer", "found"), [(True, True), (False, None)])
def test_a_rank_that_writes_no_model_needs_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writer: bool, found: bool | None
) -> None:
    monkeypatch.setattr(checkpoint_mixin, "hide_in_arguments", lambda args, file: None)
    Trainer(is_writer=is_writer)._save(str(tmp_path / "model"))
    assert (tmp_path / "model").is_dir() == is_writer
    assert trained_with_eos(tmp_path / "model") is found
