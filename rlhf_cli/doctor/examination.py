"""Run all checks in parallel, so that those that wait for a program or a server wait together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlhf_cli.doctor import logins, machine_limits, package_versions, tools_around
from rlhf_cli.doctor.condition import Condition
from rlhf_cli.doctor.nvidia_driver import nvidia_smi, read_driver
from rlhf_cli.doctor.torch_build import computing_condition, gpu_condition, installed_torch

_AMD = Path("/dev/kfd")


def examine(*, with_torch: bool) -> list[Condition]:
    """Return all conditions, in the order of the table; `with_torch` also imports torch and runs a computation."""
    wants = package_versions.wanted()
    questions: list[Callable[[], Condition | list[Condition]]] = [
        lambda: gpu_condition(read_driver(nvidia_smi()), installed_torch(), has_amd=_AMD.exists()),
        *([computing_condition] if with_torch else []),
        lambda: package_versions.python_condition(wants),
        lambda: package_versions.package_conditions(wants),
        lambda: package_versions.extra_conditions(wants),
        logins.hub_condition,
        logins.hub_login_condition,
        logins.wandb_login_condition,
        machine_limits.cores_condition,
        machine_limits.memory_condition,
        machine_limits.disk_conditions,
        machine_limits.shared_memory_condition,
        tools_around.sandbox_condition,
        tools_around.slurm_condition,
        tools_around.git_condition,
        tools_around.terminal_condition,
    ]
    with ThreadPoolExecutor(max_workers=len(questions)) as pool:
        answers = [future.result() for future in [pool.submit(question) for question in questions]]
    return [one for answer in answers for one in (answer if isinstance(answer, list) else [answer])]
