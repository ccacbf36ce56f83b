"""A checkpoint that verifies but lacks part of its state is refused, or resumed from its weights with a message."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs import checkpoint_folders
from rlhf_cli.runs.checkpoint_folders import write_manifest
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import cut, is_same

RATE = 1e-3
PARTS = [
    ("optimizer.pt", "the optimizer's state"),
    ("scheduler.pt", "the learning rate's schedule"),
    ("rng_state.pth", "the state of the random numbers"),
]


def without(whole, place: Path, *names: str) -> RunFolder:
    folder = cut(whole(), 6, place)
    for name in names:
        (folder.checkpoints / "checkpoint-6" / name).unlink()
    write_manifest(folder.checkpoints / "checkpoint-6")  # so that the checkpoint verifies without them
    return folder


@pytest.mark.parametrize(("name", "said"), PARTS)
@pytest.mark.fault(6)
def test_it_is_refused_before_anything_is_loaded(whole, workplace: Path, capsys, monkeypatch, name, said) -> None:
    import rlhf_cli.launch.local

    folder = without(whole, workplace / "cut", name)
    monkeypatch.setattr(rlhf_cli.launch.local, "run", lambda *_, **__: pytest.fail("it was started"))
    before = folder.metrics.read_bytes()
    assert main(["resume", str(folder.path)]) == 2
    told = capsys.readouterr().err
    assert f"the checkpoint lacks {said}" in told
    assert "run.resume_weights_only=true" in told
    assert folder.metrics.read_bytes() == before


def test_it_is_refused_where_only_an_older_one_is_whole_and_that_lacks_it(whole, workplace: Path, capsys) -> None:
    """The newest checkpoint is complete but does not verify: the ranks check the one they use instead."""
    folder = without(whole, workplace / "cut", "optimizer.pt")
    shutil.copytree(whole().checkpoints / "checkpoint-7", folder.checkpoints / "checkpoint-7")
    (folder.checkpoints / "checkpoint-7" / "model.safetensors").write_bytes(b"cut")
    assert main(["resume", str(folder.path)]) == 2
    assert "the checkpoint lacks the optimizer's state" in capsys.readouterr().err


@pytest.mark.fault(6)
def test_from_the_weights_alone_optimizer_and_schedule_begin_anew(whole, workplace: Path, capsys) -> None:
    """Steps 7 and 8 get the rates of the steps 1 and 2 of 8: (1 - 0/8) and (1 - 1/8) of the first."""
    folder = without(whole, workplace / "cut", "optimizer.pt", "rollout-rank0.pt")
    assert main(["resume", str(folder.path), "run.resume_weights_only=true"]) == 0
    told = capsys.readouterr().out
    assert "lacks the optimizer's state: going on from its weights; optimizer, schedule and random numbers" in told
    rates = series(read_metrics(folder.metrics), "learning_rate")[1]
    assert rates[6:] == pytest.approx([RATE, RATE * 7 / 8], rel=1e-12)
    assert not is_same(folder, whole())


def test_where_nothing_is_missing_the_permission_changes_nothing(whole, workplace: Path) -> None:
    folder = cut(whole(), 6, workplace / "cut")
    assert main(["resume", str(folder.path), "run.resume_weights_only=true"]) == 0
    assert is_same(folder, whole())


@pytest.mark.fault(6)
def test_negative_control_unseen_it_trains_another_model(whole, workplace: Path, monkeypatch) -> None:
    """What transformers does without us: it goes on, silently."""
    monkeypatch.setattr(checkpoint_folders, "_STATE", {})
    folder = without(whole, workplace / "cut", "optimizer.pt")
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same(folder, whole())
