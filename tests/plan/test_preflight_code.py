"""Rewards and run folders that cannot be used are reported before a run, and no file is written."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from rlhf_cli.errors import RunError
from tests.support.planning import Refused, Write, planned


class TestRewards:
    def test_an_annotation_that_forgets_the_column(self, write: Write, refused: Refused) -> None:
        """The data decides whether `answer: str` is a column. The columns of a hub dataset are not known yet."""
        write("sloppy.py", "def reward(completions, answer: str): ...\n\ndef strict(completions, *, least: int): ...\n")
        assert planned("exp=quickstart", "rewards.x={fn: './sloppy.py:reward'}").num_rows == 2000
        on_hub = ("exp=gsm8k_grpo", "model.path=org/model")
        assert planned(*on_hub, "rewards.x={fn: './sloppy.py:reward'}").num_rows is None
        assert refused(*on_hub, "rewards.x={fn: './sloppy.py:strict'}").hint == "rewards.x.args.least=VALUE"


class TestRunFolder:
    NAMED = ("exp=quickstart", "run.name=first")

    def run(self, write: Write, **status: object) -> None:
        write("runs/quickstart/first/config.yaml", "seed: 0\n")
        write("runs/quickstart/first/status.json", json.dumps(status))

    @pytest.mark.parametrize(
        ("state", "says", "hint"),
        [
            ("finished", "it is finished, at step 7", "run.name=first-2"),
            ("preempted", "it is preempted, at step 7", "run.resume=auto"),
        ],
    )
    def test_a_name_that_is_taken(self, refused: Refused, write: Write, state: str, says: str, hint: str) -> None:
        self.run(write, state=state, step=7)
        error = refused(*self.NAMED)
        assert isinstance(error, RunError)
        assert error.what == "run 'first' exists already"
        assert str(error.where).endswith("runs/quickstart/first")
        assert error.got == says
        assert "run.resume=auto" in str(error.expected)
        assert error.hint == hint
        planned(*self.NAMED, "run.resume=auto")

    def test_a_run_that_is_being_trained(self, refused: Refused, write: Write) -> None:
        self.run(write, state="running", step=7, pid=os.getpid(), host=socket.gethostname())
        error = refused(*self.NAMED, "run.resume=auto")
        assert error.what == "run 'first' is being trained right now"
        assert error.got == f"process {os.getpid()} on {socket.gethostname()}, step 7"
        assert error.hint == "run.name=ANOTHER"

    @pytest.mark.fault(5)
    def test_a_root_that_cannot_be_written_to(
        self, refused: Refused, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
        error = refused("exp=quickstart")
        assert error.got == f"{place} is not writable"
        monkeypatch.undo()
