"""One rank's life, with a trainer that only pretends: the run claimed, its end told, and all else as it was before."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import re
import shutil
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
import yaml

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import ConfigError, Preempted, RankFailed, RlhfError, RunError
from rlhf_cli.launch import stopping, worker
from rlhf_cli.launch.freeze import plan_frozen
from rlhf_cli.launch.one_run import train_frozen
from rlhf_cli.launch.rank_process import main
from rlhf_cli.launch.stopping import RankFailure, failure_file
from rlhf_cli.launch.worker import logging_into, refuse_other_world_size, refuse_unless_as_asked, run_rank
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.provenance import versions
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from rlhf_cli.runs.run_status import read_status
from tests.support.one_rank import FakeTrainer, raising, write_checkpoint


@pytest.fixture(scope="module")
def frozen() -> str:
    experiment = prepare(["+exp=quickstart", "launch=cpu", "launch.processes=1", "track=none"], keep_run_names=True)
    return yaml.safe_dump(experiment.experiment.model_dump(mode="json", by_alias=True))


@pytest.fixture
def folder(tmp_path: Path, frozen: str) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text(frozen)
    return folder


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTrainer]:
    import rlhf_cli.trainers.assemble.trainer

    def use(work: Callable[[], None] = lambda: None, **named: Any) -> FakeTrainer:
        fake = FakeTrainer(work, **named)
        monkeypatch.setattr(rlhf_cli.trainers.assemble.trainer, "assemble", lambda *args, **given: fake)
        return fake

    return use


def failure(folder: RunFolder, rank: int = 0) -> dict[str, Any]:
    return read_json(folder.path / f"failure-rank{rank}.json")


class TestGood:
    @pytest.mark.fault(14)
    def test_it_is_this_very_process_s_while_it_runs_and_an_earlier_try_is_forgotten(
        self, folder: RunFolder, trainer
    ) -> None:
        """Told to resume without a checkpoint, it begins."""
        write_json(folder.status, {"state": "failed", "reason": "of old", "failing_rank": 0, "warnings": 4, "step": 2})
        seen: list[dict[str, Any]] = []

        def work() -> None:
            logging.getLogger("some.library").warning("mind the gap")
            seen.append(read_json(folder.status))
            (folder.path / "README.md").write_text("# card")

        fake, saved = trainer(work), list[Path]()
        fake.extensions.left_out = {"train": {"equal": 2}}
        fake.critic = SimpleNamespace(save=saved.append)
        run_rank(folder, resume=True)
        assert fake.began_at is None
        assert (seen[0]["state"], seen[0]["pid"], seen[0]["host"]) == ("running", os.getpid(), socket.gethostname())
        status, written = read_status(folder), read_json(folder.provenance)
        assert (status.state, status.reason, status.failing_rank, status.warnings) == ("finished", None, None, 1)
        assert (status.step, status.max_steps) == (3, 3)
        assert "rank0 WARNING some.library: mind the gap" in folder.log.read_text()
        assert (written["num_parameters"], written["num_train_rows"], written["world_size"]) == (7, 5, 1)
        assert written["left_out"] == {"train": {"equal": 2}}
        assert (folder.model / "README.md").read_text() == "# card"
        assert not (folder.path / "README.md").exists()
        assert saved == [folder.critic]

    def test_another_rank_leaves_the_telling_to_the_first(self, folder: RunFolder, trainer, monkeypatch) -> None:
        monkeypatch.setenv("RANK", "1")
        fake = trainer()
        run_rank(folder, resume=False)
        assert not folder.status.exists()
        assert not folder.provenance.exists()
        assert fake.callbacks == ["ShortHistory", "KeepHeartbeat", "StopBetweenSteps"]
        assert folder.model.exists()  # every rank takes part in saving


class TestFailures:
    def test_an_end_before_the_last_step_is_none(self, folder: RunFolder, trainer) -> None:
        trainer(ends_at=2, max_steps=3)
        with pytest.raises(RlhfError, match="training ended at step 2 of 3"):
            run_rank(folder, resume=False)
        assert not folder.model.exists()
        status = read_status(folder)
        assert (status.state, status.reason) == ("failed", "training ended at step 2 of 3")

    def test_an_error_is_recorded_with_its_traceback(self, folder: RunFolder, trainer) -> None:
        before = time.time()
        fake = trainer(raising(ValueError("no such number")))
        with pytest.raises(ValueError, match="no such number"):
            run_rank(folder, resume=False)
        status = read_status(folder)
        assert (status.state, status.reason, status.failing_rank) == ("failed", "ValueError: no such number", 0)
        written = failure(folder)
        assert (written["rank"], written["message"], written["exit_code"]) == (0, "ValueError: no such number", 1)
        assert before <= written["time"] <= time.time()
        assert "in fail_in_training" in written["traceback"]
        assert written["traceback"].rstrip().endswith("ValueError: no such number")
        assert "rank 0 failed" in folder.log.read_text()
        assert "in fail_in_training" in folder.log.read_text()
        assert fake.closed == 1  # no thread waits for an abandoned reward
        assert not folder.model.exists()

    def test_another_number_of_processes_than_asked(self, folder: RunFolder, trainer, monkeypatch) -> None:
        fake = trainer()
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match=r"(?s)=2.*1"):
            run_rank(folder, resume=False)
        assert fake.began_at == "not at all"
        assert failure(folder)["exit_code"] == 2


class TestResume:
    def test_other_versions_than_those_it_began_with_are_named(self, folder: RunFolder, trainer, capsys) -> None:
        write_checkpoint(folder, 1)
        begun = read_json(folder.provenance)
        now = importlib.metadata.version("torch")
        for recorded in ({}, {"torch": "2.0.0"}, {"torch": "2.0.0", "rlhf": "0.0.1"}):
            write_json(folder.provenance, {**begun, "versions": {**versions(), **recorded}})
            trainer()
            shutil.rmtree(folder.model, ignore_errors=True)
            run_rank(folder, resume=True)
            out = capsys.readouterr().out
            assert (f"torch 2.0.0 -> {now}" in out) == ("warning: " in out) == bool(recorded)
            assert ("rlhf 0.0.1 -> " in out) == ("rlhf" in recorded)
            assert ("torch 2.0.0" in folder.log.read_text()) == bool(recorded)

    @pytest.mark.fault(3)
    def test_it_goes_on_from_the_newest_that_is_whole_and_forgets_what_was_logged_later(
        self, folder: RunFolder, trainer, capsys
    ) -> None:
        """Without a complete one the folder stays as it is."""
        newest, older = (write_checkpoint(folder, step) for step in (2, 1))
        folder.metrics.write_text("".join(json.dumps({"step": step, "time_s": 1.0}) + "\n" for step in (1, 2, 3)))
        fake = trainer()
        run_rank(folder, resume=True)
        assert fake.began_at == str(newest)
        assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [1, 2]
        assert "going on from checkpoint-2" in capsys.readouterr().out
        (newest / "trainer_state.json").write_text("")
        shutil.rmtree(folder.model)
        fake = trainer()
        run_rank(folder, resume=True)
        assert fake.began_at == str(older)
        assert "warning: skipped checkpoint-2" in capsys.readouterr().out
        assert read_status(folder).warnings == 1
        (older / "manifest.json").unlink()
        fake = trainer()
        with pytest.raises(RunError, match="no checkpoint"):
            run_rank(folder, resume=True)
        assert fake.began_at == "not at all"


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [
        (None, 0, "finished"),
        (ValueError("no"), 1, "failed"),
        (KeyboardInterrupt(), 75, "preempted"),
        (Preempted("saved step 2"), 0, "preempted"),  # torch would otherwise end the others, which may still save
    ],
)
def test_exit_codes_of_a_rank_that_a_launcher_started(
    folder: RunFolder, trainer, error: BaseException | None, code: int, state: str
) -> None:
    trainer(raising(error) if error is not None else lambda: None)
    assert main([str(folder.path)]) == code
    assert read_status(folder).state == state


@pytest.mark.parametrize("is_asked_before", [False, True])
def test_a_run_that_has_finished_stays_so_while_its_tracker_closes(
    folder: RunFolder, trainer, monkeypatch, *, is_asked_before: bool
) -> None:
    """Ctrl-C while it closes, or a grace period that is over."""

    @contextmanager
    def attempt(*_: object, **__: object) -> Iterator[None]:
        yield
        assert read_status(folder).state == "finished"
        if not is_asked_before:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)

    made: list[stopping.Stopping] = []
    left: list[int] = []

    def work() -> None:
        made[0].waits_for_step = True
        if is_asked_before:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(stopping, "_exit", left.append)
    monkeypatch.setattr(worker, "Stopping", lambda **named: made.append(stopping.Stopping(**named)) or made[0])
    monkeypatch.setattr("rlhf_cli.runs.tracking.mirror.Mirror", lambda *_, **__: SimpleNamespace(attempt=attempt))
    text = re.sub("grace_s: .*", "grace_s: 0.2", folder.config.read_text())
    folder.config.write_text(text.replace("mode: none", "mode: offline"))
    trainer(work)
    train_frozen(Screen(), folder, *plan_frozen(folder, resume=False), resume=False)
    assert (read_status(folder).state, read_status(folder).reason, left) == ("finished", None, [])


def test_one_of_several_ranks_that_is_interrupted_records_when(folder: RunFolder, trainer, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder.config.write_text(folder.config.read_text().replace("processes: 1", "processes: auto"))
    trainer(raising(KeyboardInterrupt("SIGTERM")))
    assert main([str(folder.path)]) == 75
    assert (failure(folder, 1)["exit_code"], failure(folder, 1)["message"]) == (75, "SIGTERM")


def test_a_rank_that_a_launcher_ends_because_another_failed_names_that_one(
    folder: RunFolder, trainer, monkeypatch
) -> None:
    """torchrun sends SIGTERM to the ranks that are left; the run is not taken for one that was stopped."""
    plan, launch = plan_frozen(folder, resume=False)
    folder.config.write_text(folder.config.read_text().replace("processes: 1", "processes: auto"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def work() -> None:
        write_json(failure_file(folder, 1), asdict(RankFailure(1, time.time(), "boom")))
        raise KeyboardInterrupt("SIGTERM")

    trainer(work)
    leader: Any = SimpleNamespace(begin=lambda *_, **__: None)
    with pytest.raises(RankFailed, match="rank 1"):
        train_frozen(Screen(), folder, replace(plan, world_size=2), launch, resume=False, leader=leader)
    assert read_status(folder).state != "preempted"


# The log of one rank: what libraries log or warn is in log.txt, a repeated warning once, and nothing stays behind.
LIBRARY = logging.getLogger("some.library")


def test_a_repeated_warning_is_written_and_counted_once_and_a_log_is_appended_to(folder: RunFolder) -> None:
    with logging_into(folder, 3) as count:
        for step in (1, 1, 2):
            LIBRARY.warning("at step %d", step)
            LIBRARY.error("größer als 3")
            LIBRARY.debug("of no interest")
        assert count() == 2
    with logging_into(folder, 3) as count:
        LIBRARY.info("second")
        assert count() == 0
    warned = [f"rank3 WARNING some.library: at step {step}" for step in (1, 2)]
    wrong = "rank3 ERROR some.library: größer als 3"
    lines = folder.log.read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} rank", line) for line in lines)
    assert [line.split(" ", 2)[2] for line in lines] == [
        warned[0],
        wrong,
        wrong,
        warned[1],
        wrong,
        "rank3 INFO some.library: second",
    ]


@pytest.mark.parametrize("said_by", ["warnings", "logging"])
def test_a_warning_of_a_library_is_written_and_not_counted(folder: RunFolder, said_by: str) -> None:
    """The same call, compiled as a file of a package and as one of the user's."""
    call = "warnings.warn('it will go', FutureWarning)" if said_by == "warnings" else "LIBRARY.warning('it will go')"
    counts = []
    files = (
        f"{Path(str(transformers.__file__)).parent}/trainer.py",
        "/home/me/rewards.py",
        "<frozen importlib>",
        worker.__file__,
    )
    for file in (*files, "/envs/other/lib/python3.11/site-packages/trl/x.py"):
        with logging_into(folder, 0) as count, warnings.catch_warnings():
            warnings.simplefilter("always")
            for _ in range(2):
                exec(compile(call, file, "exec"), {"warnings": warnings, "LIBRARY": LIBRARY})
            counts.append(count())
    assert counts == [0, 1, 0, int(said_by == "logging"), 0]
    assert folder.log.read_text().count("it will go") >= 3


def built(kind: str, processes: int, precision: str, device: str, *, n_gpu: int = 1, **state: object) -> Any:
    """A trainer, as far as accelerate says what it has become."""
    accelerator = SimpleNamespace(
        distributed_type=SimpleNamespace(value=kind),
        num_processes=processes,
        mixed_precision=precision,
        device=f"{device}:0",
        state=SimpleNamespace(**state),
    )
    return SimpleNamespace(accelerator=accelerator, args=SimpleNamespace(n_gpu=n_gpu))


def fsdp(version: int) -> Any:
    return built("FSDP", 2, "bf16", "cuda", fsdp_plugin=SimpleNamespace(fsdp_version=version))


def zero(stage: int, precision: str, processes: int) -> Any:
    return built("DEEPSPEED", processes, precision, "cuda", deepspeed_plugin=SimpleNamespace(zero_stage=stage))


ALONE = built("NO", 1, "no", "cpu")
TWO_GPUS = built("MULTI_GPU", 2, "bf16", "cuda")


@pytest.mark.parametrize(
    ("asked", "trainer"),
    [
        ({}, ALONE),
        ({"processes": 1, "device": "cpu", "precision": "float32"}, ALONE),
        ({"processes": 2}, built("MULTI_CPU", 2, "no", "cpu")),
        ({"processes": 2, "precision": "bf16", "device": "cuda"}, TWO_GPUS),
        ({"strategy": "fsdp2"}, fsdp(2)),
        ({"strategy": "zero3", "precision": "fp16"}, zero(3, "fp16", 1)),
    ],
)
def test_as_asked(asked: dict[str, object], trainer: Any) -> None:
    refuse_unless_as_asked(Launch.model_validate(asked), trainer)


@pytest.mark.parametrize(
    ("asked", "trainer", "key", "expected", "got"),
    [
        ({"processes": 2, "nodes": 2}, TWO_GPUS, "processes", "4", "2"),
        ({"strategy": "fsdp2"}, built("MULTI_CPU", 2, "no", "cpu"), "strategy", "fsdp2", "MULTI_CPU on cpu"),
        ({"strategy": "fsdp2"}, fsdp(1), "strategy", "fsdp2", "FSDP 1 on cuda"),
        ({"strategy": "zero3"}, zero(2, "bf16", 2), "strategy", "zero3", "ZeRO-2 on cuda"),
        ({"precision": "bf16"}, ALONE, "precision", "bf16", "float32"),
        ({"device": "cpu"}, TWO_GPUS, "device", "cpu", "cuda"),
    ],
)
@pytest.mark.fault(29)
def test_something_else(asked: dict[str, object], trainer: Any, key: str, expected: str, got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unless_as_asked(Launch.model_validate(asked), trainer)
    error = caught.value
    assert (error.where, error.expected, error.exit_code) == (f"launch.{key}", expected, 2)
    assert str(error.got).startswith(got)


def test_the_processes_of_all_machines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", seen)
        with pytest.raises(ConfigError) as caught:
            refuse_other_world_size(Launch(processes=2, nodes=2))
        error = caught.value
        assert (error.where, error.expected, error.got) == ("launch.processes", "4", f"WORLD_SIZE={seen}")
    refuse_other_world_size(Launch(processes=1, nodes=2))
    refuse_other_world_size(Launch())


def test_one_process_does_not_spread_over_gpus() -> None:
    """transformers makes DataParallel of one process that sees several GPUs: another batch than was planned."""
    with pytest.raises(ConfigError) as caught:
        refuse_unless_as_asked(Launch(), built("NO", 1, "no", "cuda", n_gpu=4))
    assert caught.value.hint == "launch.processes=4, or CUDA_VISIBLE_DEVICES=0"
