"""The layout of a run folder, and which runs a path means."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, open_run, runs_in

MakeRun = Callable[..., RunFolder]


def checkpoint(folder: RunFolder, name: str, *, whole: bool = True) -> Path:
    path = folder.checkpoints / name
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"0")
    if whole:
        (path / "trainer_state.json").write_text("{}")
    return path


class TestLastCheckpoint:
    def test_the_highest_step_and_not_the_last_in_the_alphabet(self, make_run: MakeRun) -> None:
        folder = make_run()
        checkpoint(folder, "checkpoint-9")
        newest = checkpoint(folder, "checkpoint-100")
        checkpoint(folder, "checkpoint-20")
        assert folder.last_checkpoint() == newest

    def test_a_partial_one_is_passed_over(self, make_run: MakeRun) -> None:
        folder = make_run()
        whole = checkpoint(folder, "checkpoint-10")
        partial = checkpoint(folder, "checkpoint-20", whole=False)
        assert folder.last_checkpoint() == whole
        (partial / "trainer_state.json").write_text("{}")
        assert folder.last_checkpoint() == partial


class TestOpenRun:
    def test_a_folder_that_holds_runs_or_sweeps_is_told(
        self, tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("quickstart/s1/a", "quickstart/s1/b", "quickstart/s2/a"):
            folder = make_run(f"runs/{name}").path
            (folder.parent / "sweep.json").write_text("{}")
            os.utime(folder / "config.yaml", (1, 1 if "s1" in name else 2))
        for typed, got, hint in (
            ("runs", "a folder with 3 runs", "runs/quickstart/s2/a"),
            ("runs/quickstart/s1", "a sweep: several runs of one command", "runs/quickstart/s1/a"),
            ("s2", "no such folder", "runs/quickstart/s2"),
        ):
            with pytest.raises(RunError) as caught:
                open_run(Path(typed))
            assert (caught.value.got, caught.value.hint) == (got, hint)


def test_a_misspelt_part_of_a_run_leads_to_that_part(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run().path
    (folder / "model").mkdir()
    monkeypatch.chdir(folder.parent)
    Path("runs").mkdir()
    with pytest.raises(RunError) as caught:
        open_run(Path(folder.name, "modle"))
    assert caught.value.hint == f"{folder.name}/model"


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "checkpoints/checkpoint-5/trainer_state.json"])
def test_a_file_in_a_run_leads_to_the_run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = make_run()
    monkeypatch.chdir(folder.path.parent)
    file = folder.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    if name == "config.yaml":
        file.write_text("seed: 0\n")
    for call in (open_run, runs_in):
        with pytest.raises(RunError) as caught:
            call(Path(os.path.relpath(file)))
        assert (caught.value.got, caught.value.hint) == ("a file", folder.path.name)
