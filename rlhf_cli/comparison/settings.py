"""Group runs that differ only in their seed into settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_cli.comparison.logged_run import LoggedRun
from rlhf_cli.comparison.what_differs import Axis, axes
from rlhf_cli.errors import in_one_line
from rlhf_cli.runs.run_status import told_state


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in seeds.

    `name` shows the difference from other settings (`weight=0.5`), `values` maps the axis' key -> its value as text.
    `by_seed` maps seed -> the run that counts; `left_out` maps the other runs -> the reason, in words.
    """

    name: str
    values: Mapping[str, str]
    by_seed: Mapping[str, LoggedRun]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[LoggedRun]:
        """Return the runs that count, in the order of their seeds."""
        return list(self.by_seed.values())


@dataclass(frozen=True)
class Grouped:
    """All runs as settings. `axes` are the differences between settings, `seeds` the seed keys that differ.

    `runs` are all grouped runs. `up_to` is the last step of the curves to compare: the last step that all runs reached
    if no run has finished, else None.
    """

    settings: list[Setting]
    axes: list[Axis]
    seeds: list[Axis]
    runs: list[LoggedRun]
    up_to: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """Return every key that differs -> its value in each run, as text."""
        found: dict[str, tuple[str, ...]] = {}
        for axis in [*self.axes, *self.seeds]:
            found |= {axis.key: axis.texts, **axis.others}
        return found


def group_over_seeds(runs: Sequence[LoggedRun]) -> Grouped:
    """Return the runs as settings, in the order of their values.

    If any run has finished, only finished runs count, because a run that stopped at step 12 of 120 would lower its
    setting's mean. Otherwise all runs with log events count, up to the last step that all of them reached.
    """
    found = axes(runs) if len(runs) > 1 else []
    of_settings, of_seeds = [axis for axis in found if not axis.is_seed], [axis for axis in found if axis.is_seed]
    has_finished = any(run.is_finished for run in runs)
    logged = [run for run in runs if run.metrics.num_events]
    up_to = None if has_finished or not logged else min(run.metrics.last_step for run in logged)
    places: dict[tuple[str, ...], list[int]] = {}
    for place in range(len(runs)):
        places.setdefault(tuple(axis.texts[place] for axis in of_settings), []).append(place)
    settings = []
    for texts, members in sorted(places.items(), key=lambda one: [number_or_text(text) for text in one[0]]):
        by_seed: dict[str, LoggedRun] = {}
        left_out: dict[str, str] = {}
        for place in sorted(members, key=lambda place: [number_or_text(axis.texts[place]) for axis in of_seeds]):
            run = runs[place]
            seed = "/".join(axis.texts[place] for axis in of_seeds) or _own_seed(run)
            if why := _why_left_out(run, has_finished):
                left_out[run.name] = why
            elif seed in by_seed:
                left_out[run.name] = f"the same settings and seed as {by_seed[seed].name}, which counts"
            else:
                by_seed[seed] = run
        name = ",".join(f"{axis.short}={text}" for axis, text in zip(of_settings, texts, strict=True))
        values = {axis.key: text for axis, text in zip(of_settings, texts, strict=True)}
        settings.append(Setting(name or "all runs", values, by_seed, left_out))
    notes = []
    if up_to is not None:
        notes.append(f"no run has finished: compared up to step {up_to}, the last that all of them have reached")
    return Grouped(settings, of_settings, of_seeds, list(runs), up_to, notes)


def _why_left_out(run: LoggedRun, has_finished: bool) -> str | None:
    if not run.metrics.num_events:
        return _end(run, ", nothing was logged")
    if has_finished and not run.is_finished:
        of = f" of {run.max_steps}" if run.max_steps is not None else ""
        return _end(run, f" at step {run.step}{of}")
    return None


def _end(run: LoggedRun, at: str = "") -> str:
    """Return how a run ended in one line; `rlhf why` shows the rest."""
    told, reason = told_state(run.state, run.reason), in_one_line(run.reason or "")
    return told + at + (f": {reason}" if reason and told == run.state else "")


def _own_seed(run: LoggedRun) -> str:
    return str(run.settings.get("seed", "-"))


def number_or_text(text: str) -> tuple[int, float, str]:
    """Return a sort key for values: numbers by size, before words."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
