"""Return the result of a sweep as JSON: its runs and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.comparison.comparison import compare
from rlhf_cli.comparison.logged_run import read_runs
from rlhf_cli.comparison.measures import is_shown
from rlhf_cli.comparison.written_out import comparison_json
from rlhf_cli.runs.found_runs import runs_below
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_result import run_result


@dataclass(frozen=True)
class SweepEnd:
    """How a sweep ended: the exit code and its folder. `is_dry` is set if nothing was started."""

    code: int
    folder: Path
    is_dry: bool = False

    def as_json(self) -> dict[str, object]:
        """Return the existing runs of the sweep and their comparison, null if no run could be read."""
        found = runs_below(self.folder) if self.folder.is_dir() else []
        runs, problems = read_runs(found, wanted=is_shown)
        return {
            "sweep": RunFolder(self.folder).shown,
            "dry_run": self.is_dry,
            "runs": [run_result(folder) for folder in found],
            "comparison": comparison_json(compare(runs), problems) if runs else None,
        }
