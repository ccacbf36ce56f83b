"""Count for how long the rules of `stop` have held."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rlhf_cli.config.rules.metric_rules import STEP, logged_name
from rlhf_cli.config.schema.run_sections import StopRule
from rlhf_cli.text.suggest import nearest

_SHOWN = 5
_WAITED = 5
"""Warn if a rule's metric is missing after this many log events."""
_EVAL = "eval_"


@dataclass
class _Counted:
    """A rule, its metric, and the consecutive (step, value) pairs for which it held."""

    name: str
    rule: StopRule
    metric: str
    held: list[tuple[int, float]] = field(default_factory=list)
    was_logged: bool = False
    is_warned: bool = False


class StoppingRules:
    """Count how long each rule has held. `rules` maps name -> rule, `rewards` are the names of the run's rewards."""

    def __init__(self, rules: Mapping[str, StopRule], rewards: Collection[str]) -> None:
        names = list(rewards)
        self._counted = [_Counted(name, rule, logged_name(rule.metric, names)) for name, rule in rules.items()]
        self._num_events = 0
        self._logged: dict[str, None] = {}
        self.fired: str | None = None
        """The message about the rule that ends the run, or None."""

    def replay(self, events: Iterable[Mapping[str, object]]) -> None:
        """Count the log events of an earlier attempt at the run, so that counts continue across a resume.

        A rule that had already held long enough ends the run at the next log event in which it still holds.
        """
        for event in events:
            step = event.get("step")
            self.take(int(step) if isinstance(step, int | float) else 0, event)
        self.fired = None

    def take(self, step: int, event: Mapping[str, object]) -> str | None:
        """Count a log event; return the message of the first rule that has held long enough, else None."""
        if "train_runtime" in event:
            return None
        if not any(name.startswith(_EVAL) for name in event):
            self._num_events += 1
        self._logged.update(dict.fromkeys(event))
        event = {STEP: step, **event}
        for counted in self._counted:
            if counted.metric not in event:
                continue
            counted.was_logged = True
            value, needed = event[counted.metric], counted.rule.log_events
            holds = isinstance(value, int | float) and counted.rule.holds(value)
            counted.held = [*counted.held, (step, float(value))][-needed:] if holds else []  # type: ignore[arg-type]
            if len(counted.held) == needed and self.fired is None:
                self.fired = _describe(counted)
        return self.fired

    def never_logged(self, *, at_end: bool = False) -> Iterator[str]:
        """Yield a message, once per rule, if its metric is missing although others were logged.

        For a metric of an evaluation, wait until there was one or until the end.
        """
        has_evaluated = any(name.startswith(_EVAL) for name in self._logged)
        for counted in self._counted:
            is_due = has_evaluated if counted.metric.startswith(_EVAL) else self._num_events >= _WAITED
            if counted.was_logged or counted.is_warned or not (is_due or at_end) or not self._logged:
                continue
            counted.is_warned = True
            close = nearest(counted.metric, self._logged)
            guess = f"; {close} is" if close else ""
            yield f"stop rule `{counted.rule.when}` never applies: {counted.metric} is not logged{guess}"


def _describe(counted: _Counted) -> str:
    values = ", ".join(f"{value:.4g}" for _, value in counted.held[-_SHOWN:])
    first, last = counted.held[0][0], counted.held[-1][0]
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    shown = "... " if len(counted.held) > _SHOWN else ""
    named = f" {counted.name!r}" if counted.name and not counted.name.isdigit() else ""
    return f"stopped by rule{named}: {counted.rule.when}: {shown}{values} at {steps}"
