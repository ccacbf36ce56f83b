"""Lists the metrics that belong to a process instead of a run, mostly times: a stopped and resumed run has other
values.

A comparison of a run with itself ignores only these. Counts that depend on time (`timeouts`) are not listed: a
different count means that the runs differed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ClockRow:
    """A metric that depends on the process. `name` is its full name, with `*` for any text without a slash."""

    name: str
    reason: str

    @property
    def pattern(self) -> str:
        """Return the regular expression that a full name has to match."""
        return re.escape(self.name).replace(r"\*", "[^/]+")


CLOCK_METRICS: tuple[ClockRow, ...] = (
    ClockRow("time_s", "seconds of training up to the log event"),
    ClockRow("time/elapsed_s", "seconds since the last log event"),
    ClockRow("time/share/*", "share of the seconds that a phase took"),
    ClockRow("time/share/reward/*", "share of the seconds that a reward took"),
    *(ClockRow(f"passes/{what}", "counted since this process last logged") for what in ("slots", "tokens")),
    ClockRow("passes/slots_per_token", "a ratio of what this process counted"),
    ClockRow("step_time", "seconds of a step, TRL's"),
    ClockRow("rewards/*/seconds", "seconds that a reward took"),
    *(ClockRow(f"{which}_runtime", "seconds of a whole call, transformers'") for which in ("train", "eval")),
    *(
        ClockRow(f"{which}_{what}_per_second", "a speed, transformers'")
        for which in ("train", "eval")
        for what in ("samples", "steps", "tokens")
    ),
    ClockRow("eval_step_time", "seconds of a step of an evaluation, TRL's"),
    ClockRow("eval_rewards/*/seconds", "seconds that a reward took in an evaluation"),
    ClockRow("profiling/*", "seconds of a part of a step, TRL's"),
    ClockRow("profiling/Time taken: *", "seconds of a part of a step, TRL's"),
)

_CLOCK = re.compile("|".join(f"(?:{row.pattern})" for row in CLOCK_METRICS))


def is_of_the_clock(metric: str) -> bool:
    """Return whether a metric, given by its full name, is a time or a speed."""
    return _CLOCK.fullmatch(metric) is not None
