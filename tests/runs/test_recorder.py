"""The callback that writes down a run removes old tables of completions as it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.runs.recorder import Recorder
from rlhf_cli.runs.run_folder import RunFolder


@pytest.mark.parametrize(("step", "kept"), [(9, [1, 2, 3, 4]), (10, [1, 3, 4])])
def test_tables_are_removed_every_ten_steps_but_for_the_first_and_the_last(
    make_run: Callable[..., RunFolder], step: int, kept: list[int]
) -> None:
    folder = make_run()
    tables = folder.path / "completions"
    tables.mkdir()
    for number in (1, 2, 3, 4):
        Path(tables, f"completions_{number:05}.parquet").touch()
    recorder = Recorder(folder, None, keep_last=2, keep_every=None, new_code=dict, modes=None)
    state: Any = SimpleNamespace(global_step=step)
    recorder.on_step_begin(None, state, state)
    assert sorted(int(file.stem[-5:]) for file in tables.iterdir()) == kept
