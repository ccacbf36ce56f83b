"""A run that does not fit into memory says where, what there was, and what to type: with torch's own messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RewardFailed, RlhfError
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.launch.out_of_memory import naming_full_memory
from rlhf_cli.runs.heartbeat import GENERATION, LOSS, REWARDS, TRAINING, Heartbeat
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import SMALL

OF_GPU = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.05 GiB is "
    "free. Including non-PyTorch memory, this process has 78.05 GiB memory in use. Of the allocated memory 70.20 GiB "
    "is allocated by PyTorch, and 6.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    "Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html)"
)
SHARED_GPU = OF_GPU.replace("free. ", "free. Process 4711 has 40.00 GiB memory in use. ").replace("6.50", "0.10")


@pytest.fixture
def experiment(workplace: Path) -> Experiment:
    return prepare(SMALL).experiment


def told(experiment: Experiment, run: Path, error: Exception, *phases: str) -> RlhfError:
    heartbeat = Heartbeat(run, 1)
    heartbeat.enter(*phases)
    with pytest.raises(RlhfError) as caught, naming_full_memory(experiment, heartbeat):
        raise error
    return caught.value


@pytest.mark.fault(45)
def test_a_full_gpu(experiment: Experiment, tmp_path: Path) -> None:
    error = told(experiment, tmp_path, torch.OutOfMemoryError(OF_GPU), TRAINING, LOSS)
    assert error.what == "CUDA out of memory: loss and gradient"
    assert error.where == "rank 1, loss and gradient"
    assert str(error.got).startswith(
        "2.7 GB asked for; GPU 0: 1.1 GB of 84.9 GB free; 83.8 GB held by this process; 75.4 GB of tensors; "
        "7.0 GB reserved by PyTorch and in no tensor"
    )  # a GiB is 1.0737 GB, in which the plan's panel says sizes
    hints = str(error.hint).splitlines()
    assert hints[1].startswith("1. PYTORCH_ALLOC_CONF=expandable_segments:True")
    assert hints[2].startswith(
        "2. trainer.args.per_device_train_batch_size=4 trainer.args.gradient_accumulation_steps=2  "
        "(the same batch in smaller parts; now 8 and 1)"
    )
    assert error.exit_code == 1


@pytest.mark.fault(45)
def test_a_gpu_that_another_process_has_filled(experiment: Experiment, tmp_path: Path) -> None:
    error = told(experiment, tmp_path, torch.OutOfMemoryError(SHARED_GPU), TRAINING, LOSS, GENERATION)
    assert error.what == "CUDA out of memory: generation"
    assert "42.9 GB held by another process, 4711" in str(error.got)
    hints = str(error.hint).splitlines()
    assert hints[1].startswith("1. end the other process on this GPU, 4711, which holds 42.9 GB")
    assert "PYTORCH_ALLOC_CONF" not in str(error.hint)  # 0.10 GiB in pieces would not be enough for 2.50


def no_room() -> Exception:
    """What torch really says: 4 petabytes are more than any machine has."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    return caught.value


@pytest.mark.parametrize("make", [no_room, lambda: MemoryError()], ids=["torch", "python"])
@pytest.mark.fault(45)
def test_a_full_machine(experiment: Experiment, tmp_path: Path, make: Callable[[], Exception]) -> None:
    error = told(experiment, tmp_path, make(), TRAINING, LOSS)
    assert error.what == "the machine is out of memory: loss and gradient"
    assert "of the machine free" in str(error.got)
    assert ("4000.0 TB asked for" in str(error.got)) == (make is no_room)
    assert "launch=" not in str(error.hint)


def test_in_a_reward_its_name_is_there(experiment: Experiment, tmp_path: Path) -> None:
    failed = RewardFailed("reward 'style' failed on row 0")
    failed.reward = "style"
    failed.__cause__ = torch.OutOfMemoryError(OF_GPU)
    error = told(experiment, tmp_path, failed, TRAINING, LOSS, REWARDS)
    assert error.what == "CUDA out of memory: rewards, reward 'style'"


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), ValueError("out of memory, he said")])
def test_negative_control_other_errors_stay(experiment: Experiment, tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, naming_full_memory(experiment, Heartbeat(tmp_path, 0)):
        raise error
    assert caught.value is error


def in_generation(trainer: Any) -> None:
    def generate(*args: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError(OF_GPU)

    trainer.model.generate = generate


def in_the_loss(trainer: Any) -> None:
    def compute_loss(*args: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError(OF_GPU)

    trainer._compute_loss = compute_loss


def in_the_optimizer(trainer: Any) -> None:
    create = trainer.create_optimizer

    def created(*args: Any, **named: Any) -> Any:
        optimizer = create(*args, **named)

        def step(*args: Any, **named: Any) -> Any:
            raise torch.OutOfMemoryError(OF_GPU)

        optimizer.step = step
        return optimizer

    trainer.create_optimizer = created


def in_a_save(trainer: Any) -> None:
    def save(*args: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError(OF_GPU)

    trainer._save_optimizer_and_scheduler = save


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    ("plant", "phase", "first"),
    [
        (in_generation, "generation", "trainer.args.per_device_train_batch_size=4"),
        (in_the_loss, "loss and gradient", "trainer.args.per_device_train_batch_size=4"),
        (in_the_optimizer, "optimizer step", "model.lora.r=16"),
        (in_a_save, "saving", "trainer.args.save_only_model=true"),
    ],
)
def test_a_run_says_in_which_phase(
    train, before_training, capsys: pytest.CaptureFixture[str], plant: Callable[[Any], None], phase: str, first: str
) -> None:
    before_training(plant)
    code, folder = train("trainer.args.save_steps=1")
    said = capsys.readouterr().err
    assert code == 1
    assert f"error: CUDA out of memory: {phase}\n" in said
    assert f"2. {first}" in said
    assert "no checkpoint was saved" in said
    status = read_status(folder)
    assert (status.state, str(status.reason).splitlines()[0]) == ("failed", f"CUDA out of memory: {phase}")


REWARD = """
import torch


def large(completions, **kwargs):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
"""


@pytest.mark.fault(45)
def test_a_run_says_in_which_reward(train, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "mine.py").write_text(REWARD)
    code, _ = train("rewards.mine.fn=./mine.py:large")
    said = capsys.readouterr().err
    assert code == 1
    assert "error: CUDA out of memory: rewards, reward 'mine'\n" in said
    assert "21.0 MB asked for" in said
    assert "1. rewards.mine.isolate=true" in said
