"""wandb offline of real runs, read back: what is sent while TRL trains, and that TRL sends nothing beside it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import wandb
from transformers import TrainerCallback

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.tracking.tracked_run import is_number, shown_name
from tests.support.wandb_read_back import records, tables

pytestmark = pytest.mark.whole


@pytest.mark.fault(16)
def test_rows_are_those_of_metrics_jsonl_and_a_moved_run_goes_on_in_the_same_wandb_run(
    train, workplace: Path, monkeypatch, capsys
) -> None:
    """Online without a login, so it goes on offline. The id was a hash of the folder's path once: a moved run began a
    second one in wandb.
    """
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(workplace / "home"))
    code, folder = train("track=wandb", "trainer.args.lr_scheduler_type=constant")
    assert code == 0
    out = capsys.readouterr().out
    assert "no wandb login" in out
    assert f"  rlhf sync {folder.shown}  # " in out
    (recorded,) = records(folder.path)
    assert list(recorded.steps) == [1, 2, 3]  # TRL's profiling was a row a call once: 24 of 32 rows of such a run
    for event in read_metrics(folder.metrics)[:3]:
        row = recorded.steps[int(str(event["step"]))]
        told = {name: row[name] for name in row if not name.startswith(("_", "completions."))}
        told.pop("train/global_step")
        numbers = {shown_name(name): one for name, one in event.items() if name != "step" and is_number(one)}
        assert told == pytest.approx(numbers, abs=0)
    assert not any("profiling" in name for name in recorded.metrics)
    assert len(tables(folder.path, "completions")) == 2, "of the first step and the last: track.completions_every is 10"
    began = recorded.run["run_id"]
    assert began == read_json(folder.provenance)["wandb_id"]
    moved = RunFolder(workplace / "elsewhere" / "moved")
    moved.path.parent.mkdir()
    folder.path.rename(moved.path)
    shutil.rmtree(moved.path / "wandb")
    assert main(["resume", str(moved.path), "trainer.args.max_steps=4"]) == 0
    (read,) = records(moved.path)
    assert read.run["run_id"] == began
    assert list(read.steps) == [4]  # after the three that the first recording has


def test_a_service_that_is_killed_is_told_on_the_screen_and_at_the_end(train, before_training, capfd) -> None:
    """TRL logs while stdout is redirected: the warning was in log.txt alone, and the last line said `recorded here`."""

    def kill_service(trainer: Any) -> None:
        class Kills(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 2:
                    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
                    kinds = {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in children}
                    for pid, command in kinds.items():
                        if "wandb-core" in command:
                            os.kill(pid, signal.SIGKILL)
                            time.sleep(0.5)

        trainer.add_callback(Kills())

    before_training(kill_service)
    code, folder = train("track=wandb_offline", "trainer.args.max_steps=6")
    assert code == 0
    out, err = capfd.readouterr()
    assert re.search(r"^warning: wandb failed at step \d", out, re.MULTILINE)
    assert f"  rlhf sync {folder.shown}  # send the record to wandb" in out
    assert re.search(r"wandb failed at step \d[^(]*metrics\.jsonl", out)  # the last screen says it again
    wandb.teardown()  # as at the end of the process: no part of the dead service remains
    assert "Traceback" not in err
