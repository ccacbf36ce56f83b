"""After a kill, a full disk or a missing file the newest whole checkpoint is used, and the others are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from rlhf_cli.cli import main
from rlhf_cli.runs import checkpoint_folders
from rlhf_cli.runs.checkpoint_folders import problem_with, write_manifest
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import cut, is_same

pytestmark = pytest.mark.whole


class Runs:
    """What would run a file's code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("THE FILE'S CODE RAN",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(None, "has no rollout state", marks=pytest.mark.fault(7)),
        pytest.param({"world_size": 2}, "another number of processes", marks=pytest.mark.fault(12)),
        ({"more": Runs()}, "the rollout state cannot be read"),
    ],
)
def test_rollouts_that_cannot_be_gone_on_with_are_refused(
    whole, workplace: Path, capsys, changes: Any, said: str
) -> None:
    folder = cut(whole(), 6, workplace / "cut")
    file = folder.checkpoints / "checkpoint-6" / "rollout-rank0.pt"
    if changes is None:
        file.unlink()
    else:
        torch.save({**torch.load(file, weights_only=True), **changes}, file)
    write_manifest(file.parent)  # as a version that knew manifests and no rollouts would leave it
    assert main(["resume", str(folder.path)]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "model.path=" in told.err
    assert "THE FILE'S CODE RAN" not in told.out + folder.log.read_text()


@pytest.mark.fault(3)
def test_a_damaged_file(whole, workplace: Path, capsys) -> None:
    folder = cut(whole(), 7, workplace / "cut")
    file = folder.checkpoints / "checkpoint-7" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["resume", str(folder.path)]) == 0
    assert is_same(folder, whole())
    assert read_status(folder).state == "finished"
    assert not list(folder.checkpoints.glob("tmp-*"))
    told = capsys.readouterr().out
    assert "skipped checkpoint-7: model.safetensors" in told
    assert "going on from checkpoint-6" in told
    assert read_status(folder).warnings >= 1
    assert "skipped checkpoint-7" in folder.log.read_text()
    assert problem_with(folder.checkpoints / "checkpoint-7") is None  # written anew


@pytest.mark.fault(1)
def test_killed_after_the_last_checkpoint_and_before_the_model(whole, workplace: Path, capsys) -> None:
    """One step too many would give another model: here the learning rate does not end at 0, nor an epoch (of four
    steps) with the run.
    """
    run = whole("trainer.args.lr_scheduler_type=constant", "trainer.args.max_steps=7")
    folder = cut(run, 7, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    assert is_same(folder, run)
    assert (read_status(folder).state, read_status(folder).step) == ("finished", 7)
    assert "step 8" not in capsys.readouterr().out


RATE = 1e-3
PARTS = [("optimizer.pt", "optimizer"), ("scheduler.pt", "schedule"), ("rng_state.pth", "random numbers")]


def without(whole, place: Path, *names: str) -> RunFolder:
    folder = cut(whole(), 6, place)
    for name in names:
        (folder.checkpoints / "checkpoint-6" / name).unlink()
    write_manifest(folder.checkpoints / "checkpoint-6")  # so that the checkpoint verifies without them
    return folder


@pytest.mark.parametrize(("name", "said"), PARTS)
@pytest.mark.fault(6)
def test_it_is_refused_before_anything_is_loaded(whole, workplace: Path, capsys, monkeypatch, name, said) -> None:
    folder = without(whole, workplace / "cut", name)
    monkeypatch.setattr("rlhf_cli.launch.resuming.train_frozen", lambda *_, **__: pytest.fail("it was started"))
    before = folder.metrics.read_bytes()
    assert main(["resume", str(folder.path)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "run.resume_weights_only=true" in told
    assert folder.metrics.read_bytes() == before


@pytest.mark.fault(6)
def test_from_the_weights_alone_all_else_begins_anew(whole, workplace: Path, capsys, monkeypatch) -> None:
    """Steps 7 and 8 get the rates of the steps 1 and 2 of 8: (1 - 0/8) and (1 - 1/8) of the first."""
    folder = without(whole, workplace / "cut", "optimizer.pt", "rollout-rank0.pt")
    monkeypatch.setattr(Trainer, "_load_rng_state", lambda *_: pytest.fail("the random state was loaded"))
    assert main(["resume", str(folder.path), "run.resume_weights_only=true"]) == 0
    assert "lacks the optimizer's state: going on from its weights" in capsys.readouterr().out
    rates = series(read_metrics(folder.metrics), "learning_rate")[1]
    assert rates[6:] == pytest.approx([RATE, RATE * 7 / 8], rel=1e-12)
    assert not is_same(folder, whole())


@pytest.mark.fault(6)
def test_negative_control_unseen_it_trains_another_model(whole, workplace: Path, monkeypatch) -> None:
    """What transformers does without us: it goes on, silently."""
    monkeypatch.setattr(checkpoint_folders, "_STATE", {})
    folder = without(whole, workplace / "cut", "optimizer.pt")
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same(folder, whole())
