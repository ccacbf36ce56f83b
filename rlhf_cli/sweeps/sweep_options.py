"""Says how a sweep runs: the options that `rlhf train -m` and `rlhf resume SWEEP` share."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.errors import ConfigError
from rlhf_cli.usage import Options

OF_SWEEPS = ("-j", "--watch", "-v", "--failed")
"""Flags that say nothing about a single run."""


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs: so many jobs at a time, which metric its table shows (None: reward, else loss), whether every
    run's panels are shown, whether nothing is started, whether only failed jobs are gone on with.
    """

    at_once: int = 1
    watch: str | None = None
    verbose: bool = False
    dry_run: bool = False
    only_failed: bool = False


def sweep_options(options: Options) -> SweepOptions:
    """Return how a sweep runs, by what was typed. Raises ConfigError where -j is no number from 1 on."""
    return SweepOptions(
        at_once=options.number("-j") or 1,
        watch=options.text("--watch"),
        verbose=options.on("-v"),
        dry_run=options.on("--dry-run"),
        only_failed="--failed" in options.usage.flags and options.on("--failed"),
    )


def refuse_of_sweeps(options: Options, hint: str) -> None:
    """Raise ConfigError where an option of sweeps was typed for a single run; `hint` is what to type for a sweep."""
    typed = [name for name in OF_SWEEPS if name in options.usage.flags and options.on(name)]
    if typed:
        raise ConfigError(
            f"{typed[0]} is an option of sweeps, and this is one run",
            where="command line",
            got=" ".join(typed),
            hint=hint,
        )
