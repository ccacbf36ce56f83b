"""Bad input is reported before a run in one message each, and no file is written. Shipped defaults fit each other."""

from __future__ import annotations

import errno
import functools
import json
import os
import socket
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.errors import Problems, RunError, UserError
from rlhf_cli.launch.freeze import create_run, new_folder
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.sweeps.sweep_folder import begin_sweep, new_sweep_folder
from tests.support import planning
from tests.support.one_rank import raising
from tests.support.planning import MINE, ROWS, Refused, Write, planned


def test_negative_control_what_is_written_is_noticed(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(planning, "existing_run", lambda *_: (place / "runs").mkdir())
    with pytest.raises(AssertionError, match="something was written"):
        planned("exp=quickstart")


@pytest.mark.parametrize(
    "words",
    [("data=file", "data.path=/theirs/rows.jsonl"), ("model=local", "model.path=/theirs"), ("run.root=/theirs",)],
)
def test_a_folder_of_another_user(refused: Refused, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    stat = Path.stat

    def closed(path: Path, **how: bool) -> os.stat_result:
        if str(path).startswith("/theirs"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", closed)
    assert str(refused("exp=quickstart", *words).got).startswith("/theirs")


class TestData:
    @pytest.mark.fault(42)
    def test_a_malformed_line(self, refused: Refused, write: Write) -> None:
        write("rows.jsonl", ROWS.replace('{"prompt": "6+1=", ', '{"prompt" "6+1=", '))
        error = refused(*MINE)
        assert (error.where, '{"prompt" "6+1="' in str(error.got)) == ("rows.jsonl:7", True)

    @pytest.mark.fault(41)
    def test_a_missing_column(self, refused: Refused, write: Write) -> None:
        write("rows.jsonl", ROWS.replace('"b"', '"bee"'))
        error = refused(*MINE)
        assert (error.where, error.got) == ("data, rows.jsonl", "columns prompt, a, bee")
        assert "rewards.correct.args.b=VALUE" in str(error.expected)
        assert str(error.hint).startswith("data.rename.b=")


def test_everything_is_told_at_once(write: Write) -> None:
    write("taken", "a file")
    with pytest.raises(Problems) as caught:
        planned(
            *("exp=quickstart", "model=local", "model.path=./gone", "data=file", "data.path=gone.jsonl"),
            *("rewards.mine={fn: './gone.py:reward'}", "run.root=taken", "trainer.args.num_generations=7"),
        )
    assert [(type(problem).__name__, problem.where) for problem in caught.value.problems] == [
        ("ModelError", "model.path (command line)"),
        ("DataError", "data.path (command line)"),
        ("RewardError", "rewards.mine.fn (command line)"),
        ("ConfigError", "trainer.args.per_device_train_batch_size (exp/quickstart.yaml:24)"),
        ("RunError", "run.root"),
    ]


class TestRewards:
    def test_an_annotation_that_forgets_the_column(self, write: Write, refused: Refused) -> None:
        """The data decides whether `answer: str` is a column. The columns of a hub dataset are not known yet."""
        write("sloppy.py", "def reward(completions, answer: str): ...\n\ndef strict(completions, *, least: int): ...\n")
        plan = planned("exp=quickstart", "rewards.x={fn: './sloppy.py:reward'}")
        assert (plan.num_rows, plan.columns) == (2000, ("prompt", "answer", "a", "b"))
        assert [plan.files[f"rewards.{name}"].name for name in ("correct", "x")] == ["toy.py", "sloppy.py"]
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
        assert str(error.where).endswith("runs/quickstart/first")
        assert (error.got, error.hint, "run.resume=auto" in str(error.expected)) == (says, hint, True)
        planned(*self.NAMED, "run.resume=auto")

    def test_two_that_start_in_one_second(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlhf_cli.launch.freeze.time.strftime", lambda _: "20260131-101500")
        prepared = prepare(["+exp=quickstart"])
        folders = {new_folder(prepared.experiment, prepared.composed) for _ in range(2)}
        assert [folder.name.partition("-101500")[0] for folder in folders] == ["20260131"] * 2
        jobs: Any = [SimpleNamespace(prepared=prepared)]
        assert len({new_sweep_folder(jobs) for _ in range(3)} - folders) == 3

    @pytest.mark.parametrize("ended_by", [KeyboardInterrupt(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])
    @pytest.mark.parametrize("at", ["config.yaml", "provenance.json", "status.json", "sweep.json", "hashes"])
    def test_a_folder_that_cannot_be_filled_does_not_stay(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, at: str, ended_by: BaseException
    ) -> None:
        def replace_until_full(self: Path, target: Path, replace: Any = Path.replace) -> Path:
            return raising(ended_by)() if target.name == at else replace(self, target)

        prepared = prepare(["+exp=quickstart", "run.name=full"])
        jobs: Any = [SimpleNamespace(prepared=prepared)]
        monkeypatch.setattr(Path, "replace", replace_until_full)
        if at == "hashes":
            monkeypatch.setattr("rlhf_cli.runs.provenance.sha256", lambda _: raising(ended_by)())
        fill = functools.partial(create_run, prepared.experiment, prepared.composed, files={"data": place})
        if at == "sweep.json":
            fill = functools.partial(begin_sweep, new_sweep_folder(jobs), [], [], [])
        with pytest.raises(KeyboardInterrupt if isinstance(ended_by, KeyboardInterrupt) else UserError):
            fill()
        assert not (place / "runs" / "quickstart" / "full").exists()

    def test_a_folder_of_a_run_that_was_killed_before_it_was_one_is_used(self, place: Path) -> None:
        prepared = prepare(["+exp=quickstart", "run.name=killed"])
        folder = RunFolder(place / "runs" / "quickstart" / "killed")
        folder.path.mkdir(parents=True)
        folder.provenance.write_text("{}")
        assert create_run(prepared.experiment, prepared.composed, files={}) == folder

    @pytest.mark.parametrize(("host", "more"), [(socket.gethostname(), ["run.resume=auto"]), ("elsewhere", [])])
    def test_a_run_that_is_being_trained(self, refused: Refused, write: Write, host: str, more: list[str]) -> None:
        self.run(write, state="running", step=7, pid=os.getpid(), host=host)
        error = refused(*self.NAMED, *more)
        assert error.got == f"process {os.getpid()} on {host}, step 7"
        assert error.expected == "another name"  # run.resume=auto was refused
        assert error.hint == "run.name=ANOTHER, or rlhf status runs/quickstart/first"


MODELS = ("tiny", "tiny_calls", "tiny_speakers", "tiny_untrained")
DATA = ("toy_demonstrations", "toy_judgements", "toy_preferences", "toy_speakers", "toy_sums")
REWARDED = ("grpo", "gmpo", "ppo", "rloo")
LEARNS_FROM = {
    **dict.fromkeys(REWARDED, DATA),  # they read a prompt, which all have
    **dict.fromkeys(("cpo", "dpo", "orpo", "reward", "tpo"), ("toy_preferences",)),
    "kto": ("toy_judgements", "toy_preferences"),
    "sft": ("toy_demonstrations", "toy_judgements"),
}
"""Every trainer -> the data sets that have the columns of TRL's dataset formats for it."""
TAUGHT = {"distillation", "gkd", "gold", "iw_opd", "sdft"}
"""Those that need a teacher or its hints, which no shipped data has: tests/trainers/test_teachers.py."""


def of_defaults(trainer: str, model: str, data: str) -> list[str]:
    reward = ["+reward@rewards.brevity=brevity"] if trainer in REWARDED else []  # it reads no column
    return [f"trainer={trainer}", f"model={model}", f"data={data}", *reward]


def test_nothing_shipped_is_left_out() -> None:
    def shipped(group: str) -> set[str]:
        return {file.stem for file in (shipped_dir() / group).glob("*.yaml")}

    assert shipped("trainer") == set(LEARNS_FROM) | TAUGHT
    assert shipped("model") - {"local", "smollm2", "smollm2_calls"} == set(MODELS)  # these are embedded
    assert {name for name in shipped("data") if name.startswith("toy_")} == set(DATA)


@pytest.mark.whole
@pytest.mark.parametrize("trainer", LEARNS_FROM)
def test_every_combination_is_planned_or_says_which_data_fit(refused: Refused, trainer: str) -> None:
    for data, model in zip(DATA, cycle(MODELS)):
        typed = [*of_defaults(trainer, model, data), "data.args.num_rows=256"]  # a check reads all rows
        if data in LEARNS_FROM[trainer]:
            plan = planned(*typed)
            assert (plan.workload.steps or 0) > 0
            assert not plan.notices
        else:
            error = refused(*typed)
            assert isinstance(error, UserError)
            # hh_pairs has pairs for chat models, but no reference as TPO needs it
            has_pairs = "toy_preferences" in LEARNS_FROM[trainer] and trainer != "tpo"
            fits = (*LEARNS_FROM[trainer], "hh_pairs") if has_pairs else LEARNS_FROM[trainer]
            assert error.hint == ", or ".join(f"data={fit}" for fit in fits)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # of TRL's calls
@pytest.mark.parametrize("trainer", LEARNS_FROM)
def test_every_trainer_takes_two_steps(place: Path, trainer: str) -> None:
    typed = of_defaults(trainer, "tiny", LEARNS_FROM[trainer][-1])
    assert main(["train", *typed, "trainer.args.max_steps=2", "run.name=one"]) == 0
    (folder,) = (place / "runs").glob("*/one")
    status = read_status(RunFolder(folder))
    assert (status.state, status.step) == ("finished", 2)
