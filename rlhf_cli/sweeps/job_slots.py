"""Shares the machine out among the jobs that run at a time: GPUs one by one, the cores of a CPU evenly."""

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
    """What a job has been given: GPUs, held by this process, and the environment that it sees them through."""

    held: HeldGpus
    environment: dict[str, str]


class JobSlots:
    """Places for so many jobs at a time."""

    def __init__(self, at_once: int) -> None:
        self._threads = threads_of_each(at_once)

    @property
    def threads(self) -> int | None:
        """Return how many threads each job has; None for what its environment says, or torch's own choice."""
        return self._threads

    def slot_for(self, job: ReadyJob) -> Slot | None:
        """Return what a job needs; None where its GPUs, or as many as it needs, are not free now."""
        launch = job.launch
        wanted = gpus_of(launch)
        held = take(wanted, job.folder.shown) if job.is_pinned or not wanted else _any(len(wanted), job.folder.shown)
        if held is None:
            return None
        environment = dict(os.environ)
        if held.gpus and not job.is_pinned:
            environment[_GPUS] = ",".join(held.gpus)
        # The ranks of several processes have a thread each, as in a run that is alone.
        if self._threads is not None and launch.in_this_process:
            environment[_THREADS] = str(self._threads)
        return Slot(held, environment)


def threads_of_each(at_once: int) -> int | None:
    """Return the threads of each of so many jobs at a time: the cores that this process may use, shared out, or fewer
    where the user has said so. More than there are cores for wait for one another: two jobs of two threads each took
    twenty times as long on two cores.

    None for one alone, which has what a run that is alone has.
    """
    if at_once == 1:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // at_once)
    asked = os.environ.get(_THREADS, "")
    return min(share, int(asked)) if asked.isdigit() and int(asked) else share


def _any(count: int, run: str) -> HeldGpus | None:
    """Return so many of the GPUs that this process sees, those that are free now; None where there are fewer."""
    found: list[HeldGpus] = []
    for gpu in visible_gpus():
        if (held := take([gpu], run)) is not None:
            found.append(held)
        if len(found) == count:
            return HeldGpus(tuple(one.gpus[0] for one in found), [lock for one in found for lock in one.locks])
    for held in found:
        held.release()
    return None
