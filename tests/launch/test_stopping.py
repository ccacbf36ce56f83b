"""A request to stop waits until a step ends, the grace is over or the deadline is there; what a full memory says."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import ConfigError, GuardStopped, Interrupted, RankFailed, UserError
from rlhf_cli.launch import stopping as module
from rlhf_cli.launch.stopping import RankFailure, RanksEnd, Stopping, must_save_by, out_of_memory, raise_end
from rlhf_cli.runs.heartbeat import LOSS, TRAINING, Heartbeat
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, RUNNING, read_status, update_status
from tests.support.planning import planned


def wish(said: list[str], **named: Any) -> Stopping:
    return Stopping(**{"grace_s": 60.0, "must_save_by": None, "on_late": said.append, **named})


@pytest.fixture
def begun() -> Stopping:
    stopping = wish([])
    stopping.waits_for_step = True
    return stopping


@pytest.mark.fault(19)
def test_before_the_first_step_there_is_nothing_to_wait_for_and_later_the_next_step_is(begun: Stopping) -> None:
    with pytest.raises(Interrupted, match="SIGTERM"):
        wish([]).ask("SIGTERM")
    assert not begun.is_due(longest_step_s=1e9)
    begun.ask("SIGUSR1")
    assert begun.is_due(longest_step_s=0)
    assert begun.reason == "SIGUSR1"
    begun.close()


@pytest.mark.fault(19)
def test_the_process_leaves_when_no_step_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    left, said = threading.Event(), list[str]()
    monkeypatch.setattr(module, "_exit", lambda code: (said.append(f"exit {code}"), left.set()))
    stopping = wish(said, grace_s=0.05)
    stopping.waits_for_step = True
    stopping.ask("SIGTERM")
    assert left.wait(30)
    assert said[0].startswith("SIGTERM; ")
    assert said[1:] == ["exit 75"]


@pytest.mark.fault(27)
def test_it_stops_where_another_step_would_leave_no_grace() -> None:
    """100 s are left and 60 of them the grace: a step of 30 s fits, one of 50 s does not."""
    deadline = time.time() + 100
    for step_s, is_due in ((30.0, False), (50.0, True)):
        stopping = wish([], must_save_by=deadline)
        assert stopping.is_due(step_s) is is_due
        stopping.close()


@pytest.mark.fault(27)
def test_slurms_end_counts_where_it_comes_first() -> None:
    launch = Launch(must_save_by="2030-01-01T00:00:00+00:00")
    asked = 1893456000.0  # date -u -d 2030-01-01 +%s
    assert must_save_by(launch, {}) == asked
    assert must_save_by(launch, {"SLURM_JOB_END_TIME": "1893450000"}) == 1893450000
    assert must_save_by(launch, {"SLURM_JOB_END_TIME": "1893460000"}) == asked
    assert must_save_by(Launch(), {}) is None


@pytest.mark.parametrize("deadline", ["tomorrow", "2020-01-01T00:00"])
def test_a_deadline_that_is_none_is_refused(deadline: str) -> None:
    with pytest.raises(ConfigError, match=r"wrong value for launch\.must_save_by|launch\.must_save_by has passed"):
        planned("exp=quickstart", f"launch.must_save_by='{deadline}'")


@pytest.mark.fault(18)
def test_every_rank_stops_where_one_is_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank got a signal and the other did not: all_reduce of their flags decides for both."""
    import torch

    from rlhf_cli.analysis.diagnosis import live_rules
    from rlhf_cli.launch.stop_callback import StopBetweenSteps

    def other_was_asked(flag: torch.Tensor, op: object) -> None:
        assert op == torch.distributed.ReduceOp.MAX
        flag.fill_(max(int(flag), 1))

    monkeypatch.setattr(live_rules.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(live_rules.distributed, "all_reduce", other_was_asked)
    stop = StopBetweenSteps(wish([]))
    control: Any = SimpleNamespace(should_save=False, should_training_stop=False)
    args: Any = SimpleNamespace(device=torch.device("cpu"))
    at_the_end: Any = SimpleNamespace(global_step=5, max_steps=5)
    stop.on_step_end(args, at_the_end, control)
    assert (stop.has_stopped, control.should_save) == (False, False)  # the run is done, and has not been stopped
    between: Any = SimpleNamespace(global_step=4, max_steps=5)
    stop.on_step_end(args, between, control)
    assert (stop.has_stopped, control.should_save, control.should_training_stop) == (True, True, True)


@pytest.mark.parametrize("exit_code", [None, 1, 75])
def test_ranks_that_end_late_or_on_request_after_the_last_step_leave_a_finished_run(
    tmp_path: Path, exit_code: int | None
) -> None:
    update_status(folder := RunFolder(tmp_path), state=FINISHED)
    failures = [] if exit_code is None else [RankFailure(1, 0.0, "ended", exit_code=exit_code)]
    raise_end(folder, RanksEnd(failures, "SIGTERM", is_late=exit_code != 75), grace_s=1.0)
    assert (read_status(folder).state, read_status(folder).reason) == (FINISHED, None)


@pytest.mark.parametrize(
    ("failures", "kind", "says"),
    [
        ([], RankFailed, "training failed"),  # ended early, without an error
        ([RankFailure(1, 0.0, "mend it", exit_code=2)], UserError, "mend it"),
        ([RankFailure(1, 0.0, "mend it", is_by_guard=True)], GuardStopped, "mend it"),
        ([RankFailure(1, 2.0, "later"), RankFailure(0, 1.0, "mend it")], RankFailed, "rank 0 mend it"),
    ],
)
def test_the_end_of_a_run_is_what_its_first_rank_to_fail_says(
    tmp_path: Path, failures: list[RankFailure], kind: type[Exception], says: str
) -> None:
    """And has recorded: that it was a mistake of the user's, or a guard, is read from its file."""
    update_status(folder := RunFolder(tmp_path), state=RUNNING)
    for failure in failures:
        failure.record(folder)
    with pytest.raises(kind, match=says):
        raise_end(folder, RanksEnd(module.failures_of(folder, {}, log=folder.log, seen_at=0.0)), grace_s=1.0)
    assert read_status(folder).state == "failed"


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    ("first", "second", "later_s", "interrupts"),
    [
        (signal.SIGTERM, signal.SIGTERM, 0.0, False),  # an echo
        (signal.SIGTERM, signal.SIGUSR1, 0.0, False),
        (signal.SIGTERM, signal.SIGTERM, 0.2, True),
        (signal.SIGINT, signal.SIGINT, 0.0, True),  # a key is none, however soon
    ],
)
def test_a_second_request_interrupts_unless_it_is_an_echo(
    begun: Stopping, monkeypatch, first: signal.Signals, second: signal.Signals, later_s: float, interrupts: bool
) -> None:
    monkeypatch.setattr(module, "_ONE_WISH_S", 0.05 if later_s else 60.0)
    is_interrupted = False
    with begun.heard():
        os.kill(os.getpid(), first)
        time.sleep(later_s)
        try:
            os.kill(os.getpid(), second)
        except Interrupted:
            is_interrupted = True
    assert is_interrupted is interrupts
    assert begun.reason == ("Ctrl-C" if first == signal.SIGINT else "SIGTERM")


NUMBERS = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.05 GiB is "
    "free. Process 4711 has 40.00 GiB memory in use. Of the allocated memory 70.20 GiB is allocated by PyTorch, and "
    "6.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OF_GPU = f"{NUMBERS}  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html)"


def told(run: Path, error: Exception) -> Any:
    heartbeat = Heartbeat(run, 1)
    heartbeat.enter(TRAINING, LOSS)
    return out_of_memory(error, heartbeat)


@pytest.mark.fault(45)
def test_a_full_gpu(tmp_path: Path) -> None:
    error = told(tmp_path, torch.OutOfMemoryError(OF_GPU))
    assert error.what == "CUDA out of memory: loss and gradient"
    assert error.where == "rank 1, loss and gradient"
    assert error.got == NUMBERS
    assert str(error.advice).startswith("a smaller trainer.args.per_device_train_batch_size")
    assert error.exit_code == 1


@pytest.mark.fault(45)
def test_a_full_machine(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(10**15)  # 4 petabytes are more than any machine has
    for full, got in ((of_torch.value, "4000000000000000"), (MemoryError(), "MemoryError")):
        error = told(tmp_path, full)
        assert error.what == "the machine is out of memory: loss and gradient"
        assert got in str(error.got)


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), ValueError("out of memory, he said")])
def test_negative_control_other_errors_stay(tmp_path: Path, error: Exception) -> None:
    assert told(tmp_path, error) is None


@pytest.mark.fault(45)
def test_a_run_says_in_which_phase(train, before_training, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*args: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError(OF_GPU)

    before_training(lambda trainer: setattr(trainer.model, "generate", full))
    code, folder = train("trainer.args.save_steps=1")
    said = capsys.readouterr().err
    assert code == 1
    assert "error: CUDA out of memory: generation\n" in said
    assert "fewer completions at once" in said.replace("\n            ", " ")
    assert "no checkpoint was saved" in said
    status = read_status(folder)
    assert (status.state, str(status.reason).splitlines()[0]) == ("failed", "CUDA out of memory: generation")
