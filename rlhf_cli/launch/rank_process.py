"""One rank, as torch's agent starts it (launch/elastic.py): `python -m rlhf_cli.launch.rank_process RUN [--resume]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED, Preempted
from rlhf_cli.launch.worker import run_rank
from rlhf_cli.plan.launch_plan import log_name
from rlhf_cli.plan.rank_group import NODE
from rlhf_cli.process import PARENT, die_with, lasting_output, leave
from rlhf_cli.runs.run_folder import open_run
from rlhf_cli.text.redaction import safe_output


def main(argv: list[str] | None = None) -> int:
    """Run a rank and return its exit code, 75 for one that was interrupted.

    A rank that stopped with all others, at the same step, returns 0: torch would otherwise end those that still save.
    """
    run, *flags = sys.argv[1:] if argv is None else argv
    folder = open_run(Path(run))
    if PARENT in os.environ:
        die_with(int(os.environ[PARENT]))
        with (folder.path / log_name(int(os.environ.get(NODE, "0")))).open("a", encoding="utf-8") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        with lasting_output(), safe_output():
            run_rank(folder, resume="--resume" in flags)
    except Preempted:
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_PREEMPTED
    except Exception:  # recorded in failure-rank<r>.json, which the command shows
        return EXIT_CRASH
    return EXIT_OK


if __name__ == "__main__":
    leave(main())
