"""Check the installed torch against the GPUs and driver.

With `--torch`, import it in a separate process and run a computation.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.project.doctor.machine import Condition, State
from rlhf_cli.runs.disk_space import size

_NVIDIA_SMI_TIMEOUT_S = 10.0
_QUERY = "name,memory.total,driver_version,compute_cap"
_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s*([\d.]+)")
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class Gpu:
    """A GPU: name, memory (0 if unknown) and compute capability (9.0 is Hopper; None if unknown)."""

    name: str
    memory_bytes: int
    capability: tuple[int, int] | None


@dataclass(frozen=True)
class Driver:
    """The output of nvidia-smi: the GPUs, the driver's version, and the newest CUDA that it supports.

    `trouble` is why nvidia-smi failed although it is installed; unknown versions are None.
    """

    gpus: tuple[Gpu, ...] = ()
    version: str | None = None
    cuda: str | None = None
    trouble: str | None = None


def read_driver(nvidia_smi: str | None) -> Driver:
    """Query nvidia-smi at this path; None means that it is not installed and there are no GPUs."""
    if nvidia_smi is None:
        return Driver()
    try:
        listed = _said([nvidia_smi, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"])
        overview = _said([nvidia_smi])
    except (OSError, subprocess.TimeoutExpired) as error:
        return Driver(trouble=f"nvidia-smi: {error}")
    if listed.returncode:
        lines = (listed.stdout + listed.stderr).strip().splitlines()
        return Driver(trouble=lines[0] if lines else f"nvidia-smi ended with exit code {listed.returncode}")
    return parse_driver(listed.stdout, overview.stdout)


def parse_driver(listed: str, overview: str) -> Driver:
    """Parse the two outputs: a line per GPU with name, MiB, driver, capability; and the heading with CUDA."""
    gpus, version = [], None
    for line in listed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4:
            continue
        name, memory, version, capability = cells
        major, _, minor = capability.partition(".")
        known = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
        gpus.append(Gpu(name, int(memory) * _MEBIBYTE if memory.isdigit() else 0, known))
    cuda = _CUDA.search(overview)
    return Driver(tuple(gpus), version, cuda[1] if cuda else None)


def nvidia_smi() -> str | None:
    """Return the path of nvidia-smi, or None."""
    return shutil.which("nvidia-smi")


def _said(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False)


_AREA = "GPU"
_TIMEOUT_S = 180.0
_OLDEST_OF_CUDA_13 = (7, 5)
"""CUDA 13 dropped GPUs older than Turing (its release notes)."""
_FIRST_WITH_BFLOAT16 = (8, 0)

_PROGRAM = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
if found["available"]:
    a = torch.ones(64, 64, device="cuda")
    found |= {"sum": (a @ a).sum().item(), "name": torch.cuda.get_device_name(0)}
    found |= {"bfloat16": torch.cuda.is_bf16_supported(), "architectures": torch.cuda.get_arch_list()}
else:
    a = torch.ones(64, 64)
    found["sum"] = (a @ a).sum().item()
print(json.dumps(found))
"""
_SUM = 64.0**3


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, and the CUDA or ROCm version that it was built for, or None."""

    version: str
    cuda: str | None = None
    rocm: str | None = None


def installed_torch() -> TorchBuild | None:
    """Return the build in torch/version.py, parsed without running it, or None if torch is not installed."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    return read_build(Path(found.origin).with_name("version.py"))


def read_build(file: Path) -> TorchBuild | None:
    """Return the build that torch's version.py names, or None."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values: dict[str, object] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    version = values.get("__version__")
    if not isinstance(version, str):
        return None
    cuda, rocm = values.get("cuda"), values.get("hip")
    return TorchBuild(version, cuda if isinstance(cuda, str) else None, rocm if isinstance(rocm, str) else None)


def gpu_condition(driver: Driver, torch: TorchBuild | None, *, has_amd: bool) -> Condition:
    """Return which GPUs there are, and whether the installed torch can use them."""
    if driver.trouble is not None:
        return Condition(_AREA, "GPU", State.UNFIT, driver.trouble, "the driver has to answer: nvidia-smi")
    if not driver.gpus:
        if has_amd:
            fits = torch is not None and torch.rocm is not None
            fix = None if fits else "a torch built for ROCm"
            return Condition(_AREA, "GPU", State.OK if fits else State.UNFIT, "AMD's, /dev/kfd", fix)
        found = "none: on a CPU tiny models train, in minutes"
        return Condition(_AREA, "GPU", State.WARN, found)
    named = ", ".join(f"{gpu.name} {size(gpu.memory_bytes)}" for gpu in driver.gpus[:2])
    more = f", {len(driver.gpus)} in all" if len(driver.gpus) > 2 else ""
    found = f"{named}{more}; driver {driver.version}, up to CUDA {driver.cuda or '?'}"
    if torch is None:
        return Condition(_AREA, "GPU", State.OK, found)
    return _fit(driver, torch, found)


def _fit(driver: Driver, torch: TorchBuild, found: str) -> Condition:
    built = f"torch {torch.version} is built for {f'CUDA {torch.cuda}' if torch.cuda else 'no GPU'}"
    plain = torch.version.partition("+")[0]
    oldest = min((gpu.capability for gpu in driver.gpus if gpu.capability is not None), default=None)
    if torch.cuda is None:
        fix = f"pip uninstall -y torch && pip install torch=={plain}   # a build with CUDA"
        return Condition(_AREA, "GPU", State.UNFIT, f"{found}; {built}", fix)
    if driver.cuda is not None and _major(driver.cuda) < _major(torch.cuda):
        fix = f"a driver for CUDA {_major(torch.cuda)}, or a torch=={plain} built for CUDA {_major(driver.cuda)}"
        return Condition(_AREA, "GPU", State.UNFIT, f"{found}; {built}", fix)
    if oldest is not None and _major(torch.cuda) >= 13 and oldest < _OLDEST_OF_CUDA_13:
        fix = f"a torch=={plain} built for CUDA 12"
        older = f"CUDA 13 has no code for compute capability {oldest[0]}.{oldest[1]}"
        return Condition(_AREA, "GPU", State.UNFIT, f"{found}; {built}; {older}", fix)
    if oldest is not None and oldest < _FIRST_WITH_BFLOAT16:
        return Condition(_AREA, "GPU", State.WARN, f"{found}; {built}; no bfloat16", "launch.precision=fp16")
    return Condition(_AREA, "GPU", State.OK, f"{found}; {built}")


def computing_condition() -> Condition:
    """Import torch in a separate process and multiply two matrices, on the GPU if there is one."""
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _broken(f"torch did not compute within {_TIMEOUT_S:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return _broken(lines[-1] if lines else f"exit code {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    where = found.get("name", "the CPU")
    if found["sum"] != _SUM:
        return _broken(f"on {where} a product of ones sums to {found['sum']:g}, not {_SUM:g}")
    bfloat16 = "" if "bfloat16" not in found else f", bfloat16 {'yes' if found['bfloat16'] else 'no'}"
    return Condition(
        _AREA, "torch", State.OK, f"torch {found['version']} computes on {where}{bfloat16}", is_needed=True
    )


def _broken(found: str) -> Condition:
    return Condition(_AREA, "torch", State.UNFIT, found, "pip install --force-reinstall torch", is_needed=True)


def _major(version: str) -> int:
    return int(version.partition(".")[0])
