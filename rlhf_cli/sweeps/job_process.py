"""Run one job of a sweep in a fork, with what all jobs import.

This module only imports, because an initialised device or a thread does not survive a fork.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, Preempted, RewardFailed, RlhfError
from rlhf_cli.jobs.one_run import train_frozen
from rlhf_cli.launch.freeze import plan_frozen
from rlhf_cli.process import lasting_output
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps.warm_processes import JobRequest
from rlhf_cli.text.redaction import remember_typed
from rlhf_cli.text.terminal_output import safe_output


def run_job(request: JobRequest) -> int:
    """Train the run in the requested folder, as its own command would, and return the exit code."""
    remember_typed(sys.argv[1:])
    with lasting_output(), safe_output():
        try:
            return _train(RunFolder(Path(request.run)), request)
        except RlhfError as error:
            if isinstance(error, RewardFailed) and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
            print(f"{'stopped' if isinstance(error, Preempted) else 'error'}: {error}{notes}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            return Preempted.exit_code
        except Exception:  # last handler of this process; the traceback goes to console.txt
            traceback.print_exc()
            return EXIT_CRASH


def _train(folder: RunFolder, request: JobRequest) -> int:
    with only_writer(folder, take_over=request.take_over):
        _have_threads()
        plan, launch = plan_frozen(folder, resume=request.resume)
        train_frozen(Screen(), folder, plan, launch, resume=request.resume)
    return EXIT_OK


def _have_threads() -> None:
    """Give torch the number of threads it would have read from the environment, because torch is imported already."""
    import torch

    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) != torch.get_num_threads():
        torch.set_num_threads(int(asked))
