"""List the rewards that failed during a run, with commands that reproduce the failures."""

from __future__ import annotations

from rich.text import Text

from rlhf_cli.runs.failure_capsules import capsules_of, failed_rows, replay_command
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.screen.one_line import one_line

_LONGEST = 60


def rows_failed(folder: RunFolder) -> list[Text]:
    """Return one panel line per reward that failed, with its number of failed rows."""
    told = []
    for name, count in failed_rows(folder).items():
        rows = "1 row" if count == 1 else f"{count} rows"
        told.append(Text(f"{name} failed on {rows}: {folder.reward_errors.name}", style="yellow"))
    return told


def failures_again(folder: RunFolder) -> dict[str, str]:
    """Return command -> reason, one per stored failure."""
    return {
        replay_command(folder, file): f"{capsule.reward} fails again: {one_line(capsule.error)[:_LONGEST]}"
        for file, capsule in capsules_of(folder).items()
    }
