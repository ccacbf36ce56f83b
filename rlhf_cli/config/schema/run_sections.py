"""Defines `track`, `guards`, `profile`, `run`: who watches an experiment, what ends it, where it is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rlhf_cli.config.schema.section import Section


class Track(Section):
    """The mirror that a run has in a tracker; `metrics.jsonl` in the run folder is written whatever this says.

    `tracker` is `wandb`, `tensorboard`, `trackio` or `mlflow`. `mode` is `none` for no tracker at all; `online` and
    `offline` (recorded here, to be sent by `rlhf sync`) are wandb's, for the others both say that they record.
    `project`, `tags` and `notes` are shown by whichever it is: `notes` is free text, null for none. `entity` is wandb's
    account or team, null for the login's default. `profiling` adds the seconds that TRL's own profiling measures, as
    `profiling/...`.
    """

    tracker: Literal["wandb", "tensorboard", "trackio", "mlflow"] = "wandb"
    mode: Literal["online", "offline", "none"] = "offline"
    project: str = "rlhf"
    entity: str | None = None
    tags: list[str] = Field(default_factory=list)
    notes: str | None = None
    profiling: bool = False


def _rounds(value: object) -> object:
    """Return a number of rounds, or `off`, which YAML reads as false where a file has it without quotes."""
    if value is False or value == "off":
        return "off"
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError("a number of rounds, 1 or more; or off")
    return value


class Guards(Section):
    """The guards that end a run which could only come to nothing.

    So many rounds in a row as `no_signal` says, in which every advantage is 0, end it: constant rewards, say; `off` for
    never. A reward that fails on more than the share `max_error_share` of the last `error_window` rows it was asked for
    ends it as well, where its `on_error` lets it fail at all; 1 for never.
    """

    no_signal: Annotated[int | Literal["off"], BeforeValidator(_rounds)] = 5
    max_error_share: float = Field(default=0.2, ge=0, le=1)
    error_window: int = Field(default=100, gt=0)


def _profile(value: object) -> object:
    """Return what is profiled; YAML reads a bare `off` as false."""
    return "off" if value is False else value


Profile = Annotated[Literal["phases", "trace", "off"], BeforeValidator(_profile)]
"""`phases`: the share of the time that each phase takes; `trace`: with torch's profiler on a few steps; `off`."""


class KeepCompletions(Section):
    """The tables of completions that stay in the run folder while it trains; one is written a log event.

    The `last` newest of them, `all` for every one; beside these the tables of every so many steps as `every` says, null
    for none. What is kept beside the newest grows with the run.
    """

    last: Annotated[int, Field(gt=0)] | Literal["all"] = 200
    every: int | None = Field(default=None, gt=0)


class Run(Section):
    """The run folder, which lies in `root`/EXPERIMENT and is called `name`; null names it after the time it was made.

    `resume: auto` goes on with a run of that name that has not finished; `never` refuses. `resume_weights_only` goes on
    from the weights alone where a checkpoint lacks its optimizer, schedule or random state; without it such a
    checkpoint is refused, for what follows is another run.
    """

    root: str = "runs"
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    resume: Literal["never", "auto"] = "never"
    resume_weights_only: bool = False
    keep_completions: KeepCompletions = KeepCompletions()
