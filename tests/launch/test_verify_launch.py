"""A run refuses a launch that differs from the requested one, and says how packed rows attend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import ConfigError
from rlhf_cli.launch.worker import refuse_other_world_size, refuse_unless_as_asked


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

AS_ASKED = [
    ({}, ALONE),
    ({"processes": 1, "device": "cpu", "precision": "float32"}, ALONE),
    ({"processes": 2}, built("MULTI_CPU", 2, "no", "cpu")),
    ({"processes": 2, "precision": "bf16", "device": "cuda"}, TWO_GPUS),
    ({"strategy": "fsdp2"}, fsdp(2)),
    ({"strategy": "zero3", "precision": "fp16"}, zero(3, "fp16", 1)),
]

OTHERS = [
    ({"processes": 2, "nodes": 2}, TWO_GPUS, "launch.processes", "4", "2"),
    ({"strategy": "fsdp2"}, built("MULTI_CPU", 2, "no", "cpu"), "launch.strategy", "fsdp2", "MULTI_CPU on cpu"),
    ({"strategy": "fsdp2"}, fsdp(1), "launch.strategy", "fsdp2", "FSDP 1 on cuda"),
    ({"strategy": "zero3"}, zero(2, "bf16", 2), "launch.strategy", "zero3", "ZeRO-2 on cuda"),
    ({"precision": "bf16"}, ALONE, "launch.precision", "bf16", "float32"),
    ({"device": "cpu"}, TWO_GPUS, "launch.device", "cpu", "cuda"),
]


@pytest.mark.parametrize(("asked", "trainer"), AS_ASKED)
def test_as_asked(asked: dict[str, object], trainer: Any) -> None:
    refuse_unless_as_asked(Launch.model_validate(asked), trainer)


@pytest.mark.parametrize(("asked", "trainer", "where", "expected", "got"), OTHERS)
@pytest.mark.fault(29)
def test_something_else(asked: dict[str, object], trainer: Any, where: str, expected: str, got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unless_as_asked(Launch.model_validate(asked), trainer)
    error = caught.value
    assert (error.where, error.expected, error.exit_code) == (where, expected, 2)
    assert str(error.got).startswith(got)


def test_the_processes_of_all_machines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as caught:
        refuse_other_world_size(Launch(processes=2, nodes=2))
    assert (caught.value.where, caught.value.expected, caught.value.got) == ("launch.processes", "4", "WORLD_SIZE=2")
    refuse_other_world_size(Launch(processes=1, nodes=2))
    refuse_other_world_size(Launch())


def test_one_process_does_not_spread_over_gpus() -> None:
    """transformers makes DataParallel of one process that sees several GPUs: another batch than was planned."""
    with pytest.raises(ConfigError) as caught:
        refuse_unless_as_asked(Launch(), built("NO", 1, "no", "cuda", n_gpu=4))
    assert caught.value.hint == "launch.processes=4, or CUDA_VISIBLE_DEVICES=0"
