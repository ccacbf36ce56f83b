"""Divide the machine among concurrent jobs: GPUs one by one, CPU cores evenly."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlhf_cli.launch.gpu_locks import HeldGpus, gpus_of, take
from rlhf_cli.plan.devices import visible_gpus
from rlhf_cli.sweeps.ready_job import ReadyJob

_THREADS = "OMP_NUM_THREADS"
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Slot:
    """The resources of a job: GPUs, locked by this process, and the environment that exposes them."""

    held: HeldGpus
    environment: dict[str, str]


class JobSlots:
    """Resources for `at_once` concurrent jobs."""

    def __init__(self, at_once: int) -> None:
        self._threads = threads_of_each(at_once)

    @property
    def threads(self) -> int | None:
        """Return the threads per job, or None to use its environment's setting or torch's default."""
        return self._threads

    def slot_for(self, job: ReadyJob) -> Slot | None:
        """Return the resources for a job, or None if not enough suitable GPUs are free now."""
        launch = job.launch
        wanted = gpus_of(launch)
        held = take(wanted, job.folder.shown) if job.is_pinned or not wanted else _any(len(wanted), job.folder.shown)
        if held is None:
            return None
        environment = dict(os.environ)
        if held.gpus and not job.is_pinned:
            environment[_GPUS] = ",".join(held.gpus)
        # A run with several ranks uses one thread per rank, as it does outside a sweep.
        if self._threads is not None and launch.in_this_process:
            environment[_THREADS] = str(self._threads)
        return Slot(held, environment)


def threads_of_each(at_once: int) -> int | None:
    """Return the threads per job: the usable cores divided by `at_once`, or fewer if the user asked for fewer.

    More threads than cores block one another: two jobs with two threads each took twenty times as long on two cores.
    Return None for one job at a time, which runs like a single run.
    """
    if at_once == 1:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // at_once)
    asked = os.environ.get(_THREADS, "")
    return min(share, int(asked)) if asked.isdigit() and int(asked) else share


def _any(count: int, run: str) -> HeldGpus | None:
    """Lock and return `count` free GPUs of those visible to this process, or None if there are fewer."""
    found: list[HeldGpus] = []
    for gpu in visible_gpus():
        if (held := take([gpu], run)) is not None:
            found.append(held)
        if len(found) == count:
            return HeldGpus(tuple(one.gpus[0] for one in found), [lock for one in found for lock in one.locks])
    for held in found:
        held.release()
    return None
