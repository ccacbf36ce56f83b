"""A run that does not fit into memory says in which phase, torch's own numbers, and what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.launch.stopping import out_of_memory
from rlhf_cli.runs.heartbeat import LOSS, TRAINING, Heartbeat
from rlhf_cli.runs.run_status import read_status

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
