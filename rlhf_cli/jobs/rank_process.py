"""One rank as a process of its own: `python -m rlhf_cli.jobs.rank_process RUN [--resume]`, and the screen it uses.

torch's elastic agent starts these processes (launch/elastic.py). A run of one process uses the screen in the command.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from rlhf_cli.display.progress_bars import Spinner, TrainingBar
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED, Preempted
from rlhf_cli.launch.worker import run_rank
from rlhf_cli.plan.launch_plan import NODE, log_name
from rlhf_cli.process import PARENT, die_with, lasting_output, leave
from rlhf_cli.runs.run_folder import RunFolder, open_run
from rlhf_cli.text.terminal_output import SafeStream, safe_output

if TYPE_CHECKING:
    from rlhf_cli.measure.scored_pairs import ScoredPair

_LOG_WIDTH = 140


class RankScreen(TrainingBar):
    """The bar of a run, with the spinner before it and the tables above it: launch/progress.py's TrainingScreen."""

    @contextmanager
    def spinner(self, doing: str, *, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
        """Spin inside the block. Yields a function that shows the current activity, its step and its steps."""
        with Spinner(shown=shown, doing=doing) as spinner:
            yield spinner.update

    def show_pairs(self, pairs: Sequence[ScoredPair], log: Path) -> None:
        """Show scored pairs above the bar and in the log."""
        from rlhf_cli.display.pair_table import pair_table
        from rlhf_cli.display.terminal import Screen

        table = pair_table(pairs)
        with log.open("a", encoding="utf-8") as stream:
            Screen(file=cast(TextIO, SafeStream(stream)), width=_LOG_WIDTH).print(table)
        self.print(table)


def main(argv: list[str] | None = None) -> int:
    """Run a rank and return its exit code.

    A rank that stopped with all others, at the same step, returns 0: torch would otherwise end those that still save.
    One that was interrupted returns 75.
    """
    parser = argparse.ArgumentParser(prog="python -m rlhf_cli.jobs.rank_process")
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(argv)
    if PARENT in os.environ:
        die_with(int(os.environ[PARENT]))
    folder = open_run(options.run)
    if PARENT in os.environ:
        _log_stderr(folder)
    try:
        with lasting_output(), safe_output():
            run_rank(folder, RankScreen(), resume=options.resume)
    except Preempted:
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_PREEMPTED
    except Exception:  # recorded in failure-rank<r>.json, which the command shows
        return EXIT_CRASH
    return EXIT_OK


def _log_stderr(folder: RunFolder) -> None:
    """Append this process's stderr to its machine's log."""
    with (folder.path / log_name(int(os.environ.get(NODE, "0")))).open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    leave(main())
