"""Build the table of where the time went: one row per phase, one column per setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlhf_cli.comparison.logged_run import LoggedRun
from rlhf_cli.comparison.settings import Setting
from rlhf_cli.runs.time_shares import TimeShares, phase_label, time_shares

_LEAST = 0.005
"""A phase with a smaller share in every setting is left out."""


@dataclass(frozen=True)
class TimeRow:
    """A phase: its label, and its share of the time per setting in per cent (None if not timed)."""

    label: str
    per_cent: list[float | None]


@dataclass(frozen=True)
class TimeBySetting:
    """Means over each setting's runs.

    `seconds_a_step` and `slots_per_token` have one entry per setting, None if unknown.
    """

    rows: list[TimeRow]
    seconds_a_step: list[float | None]
    slots_per_token: list[float | None]


def time_by_setting(settings: Iterable[Setting]) -> TimeBySetting | None:
    """Return the table, or None if no run timed its phases."""
    timed = [[(run, shares) for run in setting.runs if (shares := _shares(run)) is not None] for setting in settings]
    keys = list(dict.fromkeys(key for runs in timed for _, shares in runs for key in shares.shares))
    if not keys:
        return None
    table = {key: [_mean(shares.shares.get(key, 0.0) for _, shares in runs) for runs in timed] for key in keys}
    shown = [key for key in keys if any(share is not None and share >= _LEAST for share in table[key])]
    shown.sort(key=lambda key: -max(share or 0.0 for share in table[key]))
    return TimeBySetting(
        rows=[TimeRow(phase_label(key), [None if one is None else 100.0 * one for one in table[key]]) for key in shown],
        seconds_a_step=[_mean(shares.elapsed_s / max(1, run.step) for run, shares in runs) for runs in timed],
        slots_per_token=[_mean(shares.slots_per_token for _, shares in runs) for runs in timed],
    )


def _shares(run: LoggedRun) -> TimeShares | None:
    return time_shares(run.metrics, lambda name: [float(value) for value in run.metrics.series(name).values])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
