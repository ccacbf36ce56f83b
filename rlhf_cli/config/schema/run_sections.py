"""Define the sections `track`, `guards`, `profile`, `run`, `warn` and `stop`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from rlhf_cli.config.schema.section import Section
from rlhf_cli.tables.metrics import FINDING_KINDS
from rlhf_cli.text.suggest import nearest


class Track(Section):
    """The mirror that a run has in a tracker; `metrics.jsonl` in the run folder is written whatever this says.

    `tracker` is `wandb`, `tensorboard`, `trackio` or `mlflow`. `mode` is `none` for no tracker at all; `online` and
    `offline` (recorded here, to be sent by `rlhf sync`) are wandb's, for the others both say that they record.
    `project`, `tags` and `notes` are shown by whichever it is: `notes` is free text, null for none. `entity` is wandb's
    account or team, null for the login's default. `profiling` sends wandb the seconds that TRL's profiling measures, as
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


_WORDS = {"on": True, "off": False}


def _switch(value: object) -> object:
    """Return true or false; YAML makes these of a bare `on` and `off`, a command line leaves the words."""
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if not isinstance(value, bool):
        raise ValueError("on or off")
    return value


Switch = Annotated[bool, BeforeValidator(_switch)]


def all_switches(value: object) -> object:
    """Return the switches that are meant by one word for all of them; a section as it is."""
    if isinstance(value, bool) or (isinstance(value, str) and value in _WORDS):
        return dict.fromkeys(FINDING_KINDS, _switch(value))
    if not isinstance(value, dict | Warn):
        raise ValueError("a switch a kind, such as {redundant: off}; or off, for all of them")
    return value


class Warn(Section):
    """The warnings of a running training, each of which it says once: a switch a kind of what `rlhf why` finds.

    `on` says it, `off` is silent; `warn: off` is silent about all of them. What ends a run is `guards` and `stop`.
    """

    non_finite: Switch = True
    reward_errors: Switch = True
    dead_reward: Switch = True
    gate: Switch = True
    no_deviation: Switch = True
    overoptimised: Switch = True
    learning: Switch = True
    kl: Switch = True
    truncation: Switch = True
    length: Switch = True
    entropy: Switch = True
    redundant: Switch = True
    one_reward: Switch = True
    clipping: Switch = True
    explained_variance: Switch = True
    value_loss: Switch = True
    time: Switch = True

    @property
    def kinds(self) -> list[str]:
        """Return the kinds that are said."""
        return [kind for kind in FINDING_KINDS if getattr(self, kind)]


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_WHEN = re.compile(r"^\s*(?P<metric>[^\s<>=]+)\s*(?P<sign>>=|<=|>|<)\s*(?P<number>[^\s<>=]+)\s*$")
_EXPECTED = "METRIC, then one of > >= < <=, then a number, such as kl/k1_policy_ref > 0.5"
RULE_KEYS = ("when", "for")
_NONE = (None, False, "off")


class StopRule(Section):
    """A rule that ends a run: `when` is METRIC > NUMBER (or >=, <, <=), `for` in how many log events in a row.

    METRIC is a name of metrics.jsonl, or the name of a reward, which stands for its raw mean; `total` is that of all
    rewards, and `step` the number of the step. Log events without the metric count neither way.
    """

    when: str
    log_events: int = Field(default=1, gt=0, alias="for")

    @property
    def metric(self) -> str:
        """Return the name that is written in `when`."""
        return parsed(self.when)[0]

    def holds(self, value: float) -> bool:
        """Return whether a value of the metric meets the rule; NaN meets none."""
        _, sign, bound = parsed(self.when)
        return _OPERATORS[sign](value, bound)


StopRules: TypeAlias = StopRule | dict[str, StopRule] | list[StopRule] | None


def parsed(when: str) -> tuple[str, str, float]:
    """Return (metric, sign, bound) of a rule's text. Raises ValueError where it is none."""
    match = _WHEN.match(when)
    if match is None:
        raise ValueError(f"{_EXPECTED}; {when!r} is not")
    try:
        bound = float(match["number"])
    except ValueError:
        raise ValueError(f"a number after {match['sign']}; {match['number']!r} is none") from None
    if not math.isfinite(bound):
        raise ValueError(f"a finite number after {match['sign']}")
    return match["metric"], match["sign"], bound


def checked_rules(value: object) -> object:
    """Return one rule, a list of them or named ones as they are, null for none.

    Raises ValueError that says which part is wrong; one message for all shapes it may have.
    """
    if value in _NONE:
        return None
    if isinstance(value, StopRule):
        return value
    if isinstance(value, Mapping) and (set(value) & set(RULE_KEYS) or not value):
        return _checked_rule(value, "")
    if isinstance(value, Mapping):
        return {name: _checked_rule(rule, f"{name}: ") for name, rule in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_checked_rule(rule, f"rule {number}: ") for number, rule in enumerate(value, 1)]
    raise ValueError("{when: METRIC > NUMBER, for: LOG EVENTS}, a list of such rules, rules with names, or null")


def _checked_rule(rule: object, place: str) -> object:
    if isinstance(rule, StopRule):
        return rule
    if not isinstance(rule, Mapping):
        close = nearest(place.removesuffix(": "), RULE_KEYS)
        guess = f"; did you mean {close!r}?" if close else ""
        raise ValueError(f"{place}{{when: METRIC > NUMBER, for: LOG EVENTS}}{guess}")
    for key in rule:
        if key not in RULE_KEYS:
            close = nearest(str(key), RULE_KEYS)
            raise ValueError(f"{place}`when` and `for` alone, not {key!r}" + (f"; try {close}" if close else ""))
    when, log_events = rule.get("when"), rule.get("for", 1)
    if not isinstance(when, str):
        raise ValueError(f"{place}`when: METRIC > NUMBER`" + ("" if when is None else f", not {when!r}"))
    try:
        parsed(when)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from None
    if isinstance(log_events, bool) or not isinstance(log_events, int) or log_events < 1:
        raise ValueError(f"{place}`for` as a number of log events, 1 or more, not {log_events!r}")
    return rule


def rules_of(stop: StopRules) -> dict[str, StopRule]:
    """Return the rules by their keys below `stop`: '' for one alone, `0`, `1` in a list."""
    if stop is None:
        return {}
    if isinstance(stop, StopRule):
        return {"": stop}
    return {str(number): rule for number, rule in enumerate(stop)} if isinstance(stop, list) else dict(stop)
