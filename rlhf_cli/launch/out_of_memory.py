"""Explain an out-of-memory error: the phase, torch's own numbers, and what to reduce. Imported after an error only."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import Prose, RlhfError
from rlhf_cli.plan.memory.memory_advice import memory_advice
from rlhf_cli.runs.heartbeat import Heartbeat, in_words

_OF_GPU = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIP out of memory")
_OF_CPU = ("can't allocate memory", "not enough memory: you tried to allocate", "Cannot allocate memory")


def out_of_memory(error: BaseException, experiment: Experiment, heartbeat: Heartbeat) -> RlhfError | None:
    """Return the error with advice if `error` or one of its causes says that memory is full, else None."""
    chain = list(_chain(error))
    cause = next((one for one in chain if _kind(one) is not None), None)
    if cause is None:
        return None
    reward = next((name for one in chain if (name := getattr(one, "reward", None))), None)
    on_gpu = _kind(cause) == "gpu"
    advice = memory_advice(
        experiment,
        heartbeat.phases,
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        on_gpu=on_gpu,
        rewards=[reward] if reward is not None else [],
    )
    lines = [*map(str, advice)] or ["a machine with more memory, or a smaller model"]
    doing = in_words(heartbeat.phases) + (f", reward {reward!r}" if reward is not None else "")
    return RlhfError(
        ("CUDA" if on_gpu else "the machine is") + f" out of memory: {doing}",
        where=f"rank {heartbeat.rank}, {doing}",
        got=str(cause).partition("  See documentation")[0].partition("\n")[0] or type(cause).__name__,
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
