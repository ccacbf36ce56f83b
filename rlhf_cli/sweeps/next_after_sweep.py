"""Suggest the next command after a grid: more seeds if there is only one, the best setting's model, or the logs."""

from __future__ import annotations

import shlex

from rlhf_cli.comparison.comparison import Comparison
from rlhf_cli.comparison.settings import Setting
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.sweeps.sweep_folder import SweepFolder, typed_words

_SEEDS = "seed=range(0,5)"
_NOT_AGAIN = ("run.name", "seed")
"""Keys to drop when the command is repeated with other seeds: a folder with that run.name exists by then."""


def next_command(sweep: SweepFolder, comparison: Comparison | None) -> dict[str, str]:
    """Return command -> purpose. `comparison` is None if no run could be read."""
    shown = shlex.quote(RunFolder(sweep.path).shown)
    if comparison is not None and any(run.metrics.num_events for run in comparison.runs):
        settings = comparison.grouped.settings
        if len(settings) > 1 and all(len(setting.by_seed) == 1 for setting in settings):
            words = [word for word in typed_words(sweep.path) if word.lstrip("+").partition("=")[0] not in _NOT_AGAIN]
            return {f"rlhf train -m {shlex.join([*words, _SEEDS])}": "five seeds a setting: intervals, and a verdict"}
        if (best := _winner(comparison)) is not None and best.runs and (folder := best.runs[0].folder) is not None:
            return {f"rlhf eval {shlex.quote(folder.shown)}": f"the model of {best.name}, measured"}
    return {f"rlhf why {shown}": "what the logs say, the worst of each run"}


def _winner(comparison: Comparison) -> Setting | None:
    """Return the setting that a verdict names as the winner, or None."""
    key_of = {axis.short: axis.key for axis in comparison.grouped.axes}
    for verdict in comparison.verdicts:
        settings = comparison.grouped.settings
        won = [setting for setting in settings if setting.values[key_of[verdict.key]] == verdict.winner]
        if verdict.winner is not None and len(won) == 1:
            return won[0]
    return None
