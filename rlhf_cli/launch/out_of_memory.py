"""Explain an out-of-memory error: the phase, the requested and available memory, and what to reduce."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import Prose, RlhfError
from rlhf_cli.plan.memory.memory_advice import memory_advice
from rlhf_cli.runs.disk_space import size
from rlhf_cli.runs.heartbeat import Heartbeat, in_words

_OF_GPU = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIP out of memory")
_OF_CPU = ("can't allocate memory", "not enough memory: you tried to allocate", "Cannot allocate memory")
_SIZE = r"([\d.]+ [KMGT]?i?B|[\d.]+ bytes)"
_GPU_PARTS = (
    (re.compile(rf"Tried to allocate {_SIZE}"), "{} asked for"),
    (re.compile(rf"GPU (\d+) has a total capacity of {_SIZE} of which {_SIZE} is free"), "GPU {0}: {2} of {1} free"),
    (re.compile(rf"this process has {_SIZE} memory in use"), "{} held by this process"),
    (re.compile(rf"allocated memory {_SIZE} is allocated by PyTorch"), "{} of tensors"),
    (re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"), "{} reserved by PyTorch and in no tensor"),
    (re.compile(rf"Process (\d+) has {_SIZE} memory in use"), "{1} held by another process, {0}"),
)
"""Patterns for torch's GPU message, in display order."""
_CPU_PARTS = (
    (re.compile(rf"tried to allocate {_SIZE}"), "{} asked for"),
    (re.compile(rf"Unable to allocate {_SIZE}"), "{} asked for"),
)
_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@contextlib.contextmanager
def naming_full_memory(experiment: Experiment, heartbeat: Heartbeat) -> Iterator[None]:
    """Open a context in which running out of GPU or machine memory raises an RlhfError with advice.

    Other errors pass through unchanged.
    """
    try:
        yield
    except Exception as error:
        cause = next((one for one in _chain(error) if _kind(one) is not None), None)
        if cause is None:
            raise
        reward = next((name for one in _chain(error) if (name := getattr(one, "reward", None))), None)
        raise out_of_memory(cause, experiment, heartbeat, reward=reward) from error


def out_of_memory(
    cause: BaseException, experiment: Experiment, heartbeat: Heartbeat, *, reward: str | None
) -> RlhfError:
    """Return the error with advice. `reward` is the name of the reward that ran, or None."""
    on_gpu = _kind(cause) == "gpu"
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    phases = heartbeat.phases
    advice = memory_advice(
        experiment, phases, world_size=world_size, on_gpu=on_gpu, rewards=[reward] if reward is not None else []
    )
    first = list(_before_all(str(cause)))
    lines = [*first, *map(str, advice)] or ["a machine with more memory, or a smaller model"]
    doing = in_words(phases) + (f", reward {reward!r}" if reward is not None else "")
    return RlhfError(
        ("CUDA" if on_gpu else "the machine is") + f" out of memory: {doing}",
        where=f"rank {heartbeat.rank}, {doing}",
        got="; ".join(_sizes(str(cause), _GPU_PARTS if on_gpu else _CPU_PARTS) or [_first_line(cause)])
        + (_peak() if on_gpu else _left()),
        expected="that it fits",
        hint=Prose(
            "one of these, the cheapest first:\n" + "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))
        ),
    )


def _kind(error: BaseException) -> str | None:
    """Return which memory an error says is full, "gpu" or "cpu"; None for other errors."""
    if isinstance(error, MemoryError):
        return "cpu"
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or any(words in text for words in _OF_GPU):
        return "gpu"
    is_of_torch = isinstance(error, RuntimeError | OSError)
    return "cpu" if is_of_torch and any(words in text for words in _OF_CPU) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _sizes(text: str, parts: tuple[tuple[re.Pattern[str], str], ...]) -> list[str]:
    """Return the sizes in the message, in our words."""
    matches = ((pattern.search(text), words) for pattern, words in parts)
    return [words.format(*map(_readable, match.groups())) for match, words in matches if match]


def _readable(text: str) -> str:
    """Convert a size in torch's format, `2.50 GiB`, to ours; return other text unchanged."""
    number = _number_of_bytes(text)
    return text if number is None else size(number)


def _number_of_bytes(text: str) -> float | None:
    number, _, unit = text.partition(" ")
    return float(number) * _UNITS[unit] if unit in _UNITS else None


def _before_all(text: str) -> Iterator[str]:
    """Yield advice that needs no change to the experiment."""
    if (other := re.search(rf"Process (\d+) has {_SIZE} memory in use", text)) is not None:
        holds = f"which holds {_readable(other[2])}: `nvidia-smi` says whose it is"
        yield f"end the other process on this GPU, {other[1]}, {holds}"
    asked, unused = (
        _number_of_bytes(match[1]) if (match := _GPU_PARTS[place][0].search(text)) else None for place in (0, 4)
    )
    if asked is not None and unused is not None and unused > asked:
        yield "PYTORCH_ALLOC_CONF=expandable_segments:True rlhf ...  (enough is reserved, in pieces that are too small)"


def _peak() -> str:
    """Return the peak memory of tensors as counted by torch, or '' without a GPU."""
    import torch  # already imported: it raised the error

    if not torch.cuda.is_available():
        return ""
    return f"; at most {size(torch.cuda.max_memory_allocated())} of tensors so far"


def _left() -> str:
    """Return the machine's free memory, or '' if unknown."""
    with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = {name: float(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return f"; {size(kib['MemAvailable'] * 1024)} of {size(kib['MemTotal'] * 1024)} of the machine free"
    return ""


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
