"""Check the rewards: whether they fail, distinguish rows, differ from each other, and whether gates move."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from rlhf_cli.analysis.diagnosis.finding import (
    CheckResult,
    Evidence,
    Finding,
    Fix,
    PassedCheck,
    RunSetup,
    Severity,
    SkippedCheck,
)
from rlhf_cli.analysis.diagnosis.logged import (
    ENOUGH,
    ENOUGH_FOR_TREND,
    LATE,
    Curve,
    Log,
    evidence,
    finding,
    on_average,
    rounded,
    steps_of,
    too_early,
)

_SAME = 0.95
"""A correlation with a square of 0.9: one reward explains nine tenths of the other's variance."""
_MOSTLY = 0.8
_LEARNED_BY = 1 / 3
"""Before this share of the training, a reward that still varies may simply not have been learned yet."""
_NEVER = 0.01
"""A gate that is open for less than one row in a hundred counts as closed: a usual batch has no such row."""
_MANY_ERRORS, _SOME_ERRORS = 0.1, 0.02
_SOME_TIMEOUTS = 0.01
"""The limits for errors are half and a tenth of guards.max_error_share, which ends a run. Failing rows are not missing
at random.
"""


def reward_errors(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for rewards that fail on at least 2 % of their rows, or time out on 1 %."""
    kind, is_fine = "reward_errors", True
    for name in log.rewards():
        calls, errors, timeouts = (log.curve(f"rewards/{name}/{what}") for what in ("calls", "errors", "timeouts"))
        asked = float(calls.values.sum())
        if not asked:
            continue
        share, late = float(errors.values.sum()) / asked, float(timeouts.values.sum()) / asked
        if share < _SOME_ERRORS and late < _SOME_TIMEOUTS:
            continue
        is_fine = False
        in_time = f", {late:.1%} in time" if late else ""
        what = f"reward {name} fails: {share:.1%} of the rows it was asked for failed{in_time}"
        fixes = [Fix(f"rewards.{name}.on_error=raise", "ends the run at the first, with the row and the traceback")]
        if late >= _SOME_TIMEOUTS:
            fixes.insert(0, Fix(f"rewards.{name}.timeout_s=off", "lets it take its time"))
        # A log event of several rounds, or a point of a long log, is a mean, so their sum is not a count.
        failed = errors if len(errors) else timeouts
        says = f"{failed.mean:.3g} of {calls.mean:.3g} rows a round; reward_errors.jsonl in the run folder keeps them"
        severity: Severity = "serious" if share >= _MANY_ERRORS else "warning"
        yield finding(kind, severity, what, failed, fixes, subject=name, shown=evidence(failed, says))
    if not log.rewards():
        yield SkippedCheck(kind, "no rewards are logged")
    elif is_fine:
        yield PassedCheck(kind, f"fewer than {_SOME_ERRORS:.0%} of the rows failed: {', '.join(log.rewards())}")


def dead_reward(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for rewards that were constant over all rows since the first log event, or always null.

    A constant score behind a gate that some rows pass and others do not tells these rows apart.
    """
    kind = "dead_reward"
    alive = []
    for name in log.rewards():
        raw, spread = log.curve(f"rewards/{name}/mean"), log.curve(f"rewards/{name}/std")
        opened = log.curve(f"rewards/{name}/open_fraction")
        if len(opened) and opened.mean < _NEVER:
            continue  # its gate is the cause, and has a finding of its own
        severity: Severity = "warning" if log.weight(name) == 0.0 else "serious"
        fixes = (
            Fix(f"rewards.{name}.weight=0", "only watches it, until it does tell them apart"),
            Fix(f"rlhf score {setup.folder}", f"shows what {name} makes of single completions"),
        )
        if not len(raw) and log.nulls(raw.metric) >= ENOUGH:
            nulls = Evidence(raw.metric, f"null in all {log.nulls(raw.metric)} log events up to step {log.step}")
            what = f"reward {name} never applied to any row"
            yield Finding(kind, name, severity, what, (nulls,), 0, log.step, fixes)
        elif len(raw) < ENOUGH:
            yield SkippedCheck(kind, f"{name}: too few log events, {len(raw)} of {ENOUGH}")
        elif _is_constant(raw, spread) and not (len(opened) and float(opened.values.min()) < 1.0 - _NEVER):
            what = f"reward {name} is {raw.values[-1]:.4g} on every row: it teaches nothing"
            yield finding(kind, severity, what, raw, fixes, subject=name, shown=evidence(raw, on_average(raw)))
        else:
            alive.append(name)
    if alive:
        yield PassedCheck(kind, f"{', '.join(alive)} told rows apart")


def _is_constant(raw: Curve, spread: Curve) -> bool:
    size = max(1e-12, float(np.abs(raw.values).max()))
    return float(np.ptp(raw.values)) <= 1e-6 * size and not bool((spread.values > 1e-6 * size).any())


def gate(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for gates that never open, and for gates that never close."""
    kind = "gate"
    if not setup.gated:
        yield PassedCheck(kind, "no reward has a gate")
    for name, read in setup.gated.items():
        opened = log.curve(f"rewards/{name}/open_fraction")
        if len(opened) < ENOUGH:
            yield SkippedCheck(kind, f"{name}: too few log events, {len(opened)} of {ENOUGH}")
            continue
        by = " and ".join(read)
        without = [Fix(f"rewards.{name}.gate=null", "lets it count on every row (or primary=null, if that gates it)")]
        shown = evidence(opened, on_average(opened))
        if opened.mean < _NEVER:
            read_by = [log.curve(f"rewards/{other}/mean") for other in read]
            what = f"the gate of {name} on {by} is open for {opened.mean:.1%} of the rows: {name} hardly ever counts"
            beside = [evidence(one, on_average(one)) for one in read_by if len(one)]
            yield finding(kind, "serious", what, opened, without, subject=name, shown=shown, beside=beside)
        elif float(opened.values.min()) > 1.0 - _NEVER and len(opened) >= ENOUGH_FOR_TREND:
            what = f"the gate of {name} on {by} has never closed: it changes nothing"
            never = finding(kind, "note", what, opened, without, subject=name, shown=shown)
            yield too_early(kind, log) or never
        else:
            yield PassedCheck(kind, f"the gate of {name} was open for {on_average(opened)}")


def redundant(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for pairs of weighted rewards whose raw scores agree on nearly every row, over half of the run.

    If both are learned and hardly vary, a few unusual rows determine the correlation, so that does not count.
    """
    kind = "redundant"
    weighted = [name for name in log.rewards() if log.weight(name) != 0.0]
    alike: list[tuple[float, str]] = []
    is_fine = True
    for one, other in combinations(weighted, 2):
        curve = log.first_of(f"rewards/correlation/{one}/{other}", f"rewards/correlation/{other}/{one}")
        late = curve.last(LATE)
        if len(late) < ENOUGH:
            continue
        first, last = steps_of(late)
        typical = float(np.median(late.values))
        varies = _varies(log, one) and _varies(log, other)
        learned = "; they vary little any more" if abs(typical) >= _SAME and not varies else ""
        alike.append((abs(typical), f"{one} and {other}: median {typical:.2f} from step {first} on{learned}"))
        above = (np.abs(late.values) >= _SAME).mean()
        if abs(typical) < _SAME or above < _MOSTLY or not varies:
            continue
        is_fine = False
        same = f"{one} and {other} say the same" if typical > 0 else f"{one} and {other} undo each other"
        what = f"{same}: correlated by {typical:.2f}, by {_SAME} or more in {above:.0%} of the last log events"
        shown = evidence(curve, f"median {typical:.3f} over steps {first} to {last}")
        less = min((one, other), key=lambda name: abs(log.weight(name) or 1.0))
        why = f"only watches {less}; the other's weight then says how much both count"
        fixes = [Fix(f"rewards.{less}.weight=0", why)]
        alarm = finding(kind, "warning", what, late, fixes, subject=f"{one}/{other}", shown=shown)
        yield too_early(kind, log, _LEARNED_BY) or alarm
    if len(weighted) < 2:
        yield PassedCheck(kind, "there is one weighted reward at most")
    elif not alike:
        yield SkippedCheck(kind, f"no correlation of two weighted rewards is logged {2 * ENOUGH} times")
    elif is_fine:
        yield PassedCheck(kind, f"the most alike are {max(alike)[1]}")


_NEARLY_ALL = 0.9
"""Share of the advantages: the rest for all other rewards is within the gradient noise of a batch."""
_DROWNED = 0.05
_STILL_VARIES = 0.5


def one_reward(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether one reward has nearly all of the advantages while another that still varies has almost none.

    A learned reward hardly varies and needs no share, so it does not count.
    """
    kind = "one_reward"
    weighted = [name for name in log.rewards() if log.weight(name) != 0.0]
    if len(weighted) < 2:
        return PassedCheck(kind, "there is one weighted reward at most")
    late = {name: log.curve(f"rewards/{name}/advantage_share").last(LATE) for name in weighted}
    enough = {name: curve for name, curve in late.items() if len(curve) >= ENOUGH}
    if not enough:
        return SkippedCheck(kind, f"no share of the advantages is logged {2 * ENOUGH} times")
    largest = max(enough, key=lambda name: enough[name].mean)
    share = enough[largest].mean
    is_sustained = float((enough[largest].values >= _NEARLY_ALL).mean()) >= _MOSTLY
    if share < _NEARLY_ALL or not is_sustained:
        return PassedCheck(kind, f"the largest share of the advantages is that of {largest}: {share:.2f}")
    drowned = [name for name in enough if name != largest and abs(enough[name].mean) < _DROWNED and _varies(log, name)]
    if not drowned:
        return PassedCheck(kind, f"{largest} has {share:.2f} of the advantages: the others vary little any more")
    if early := too_early(kind, log, _LEARNED_BY):
        return early
    shares = {name: evidence(log.curve(one.metric), on_average(one)) for name, one in enough.items()}
    spreads = {name: log.curve(f"rewards/{name}/std") for name in drowned}
    beside = [one for name in drowned for one in (shares[name], evidence(spreads[name], on_average(spreads[name])))]
    what = f"{largest} has {share:.2f} of the advantages, and {' and '.join(drowned)}, which still varies, next to none"
    fixes = [_heavier(log, setup, name, largest) for name in drowned]
    whole = enough[largest]
    return finding(kind, "warning", what, whole, fixes, subject=largest, shown=shares[largest], beside=beside)


def _varies(log: Log, name: str) -> bool:
    """Return whether the spread of a reward's raw scores is at least half of its initial spread."""
    spread = log.curve(f"rewards/{name}/std")
    if len(spread) < ENOUGH:
        return False
    early, late = spread.first(0.2).mean, spread.last(LATE).mean
    return late > 0.0 and late >= _STILL_VARIES * early


_MOST_TIMES = 10.0
"""A larger factor says that the scores are on another scale: the weight would have to grow as they are learned."""


def _heavier(log: Log, setup: RunSetup, name: str, largest: str) -> Fix:
    """Return what gives a reward a third of the largest reward's deviation in the total: a weight, or a normalisation.

    Normalised scores have a deviation of 1, whatever the logged one of the raw scores is.
    """
    spreads = {one: log.curve(f"rewards/{one}/std").last(LATE) for one in (name, largest)}
    is_raw = [setup.rewards.get(one, {}).get("normalize") in (None, "none") for one in spreads]
    own, others = (
        curve.mean if len(curve) and raw else 1.0 for curve, raw in zip(spreads.values(), is_raw, strict=True)
    )
    weight = abs(log.weight(largest) or 1.0) * others / (3.0 * own) if own else 1.0
    if is_raw[0] and weight > _MOST_TIMES * max(abs(log.weight(name) or 1.0), abs(log.weight(largest) or 1.0)):
        reason = f"its scores deviate by {own:.2g} only: divided by that they count like others; then weigh it"
        return Fix(f"rewards.{name}.normalize=batch", reason)
    sign = -1.0 if (log.weight(name) or 1.0) < 0 else 1.0
    return Fix(
        f"rewards.{name}.weight={rounded(sign * weight)}", f"gives {name} a third of {largest}'s part in the total"
    )
