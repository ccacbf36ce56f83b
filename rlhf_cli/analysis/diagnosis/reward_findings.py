"""Check the rewards: whether they fail, distinguish rows, differ from each other, and whether gates move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from rlhf_cli.analysis.diagnosis.logged import (
    ENOUGH,
    ENOUGH_FOR_TREND,
    LATE,
    CheckResult,
    Curve,
    Evidence,
    Finding,
    Fix,
    Log,
    PassedCheck,
    RunSetup,
    Severity,
    SkippedCheck,
    rounded,
)

_SAME = 0.95
"""A correlation with a square of 0.9: one reward explains nine tenths of the other's variance."""
_MOSTLY = 0.8
_LEARNED_BY = 1 / 3
"""Before this share of the training, a reward that still varies may simply not have been learned yet."""
_NEVER = 0.01
"""A gate that is open for less than one row in a hundred counts as closed: a usual batch has no such row."""
_MANY_ERRORS, _SOME_ERRORS = 0.1, 0.02
_SOME_TIMEOUTS, _HALF = 0.01, 0.5
"""The limits for errors are half and a tenth of guards.max_error_share, which ends a run. Failing rows are not missing
at random.
"""


def reward_errors(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for rewards that fail on at least 2 % of their rows, or time out on 1 %, and tools that mostly fail."""
    found = list(_failing_tools(log))
    for name in log.rewards():
        calls, errors, timeouts = (log.curve(f"rewards/{name}/{what}") for what in ("calls", "errors", "timeouts"))
        asked = float(calls.values.sum())
        if not asked:
            continue
        share, late = float(errors.values.sum()) / asked, float(timeouts.values.sum()) / asked
        if share < _SOME_ERRORS and late < _SOME_TIMEOUTS:
            continue
        timed_out = f", {late:.1%} by a timeout" if late else ""
        what = f"reward {name} fails on {share:.1%} of its rows{timed_out}, so they train without its score"
        fixes = [Fix(f"rewards.{name}.on_error=raise", "ends the run at the first failure and shows row and traceback")]
        if late >= _SOME_TIMEOUTS:
            fixes.insert(0, Fix(f"rewards.{name}.timeout_s=off", "lets the reward take its time"))
        # A log event of several rounds, or a point of a long log, is a mean, so their sum is not a count.
        failed = errors if len(errors) else timeouts
        says = f"{failed.mean:.3g} of {calls.mean:.3g} rows per round; see reward_errors.jsonl in the run folder"
        severity: Severity = "serious" if share >= _MANY_ERRORS else "warning"
        found.append(failed.finding(severity, what, fixes, failed.evidence(says), subject=name))
    yield from found
    if not log.rewards():
        yield SkippedCheck("no rewards are logged")
    elif not found:
        yield PassedCheck(f"fewer than {_SOME_ERRORS:.0%} of the rows failed: {', '.join(log.rewards())}")


def _failing_tools(log: Log) -> Iterator[Finding]:
    """Yield a finding for each tool if at least half of its calls fail; a model learns by some errors.

    Calls that reach no tool are compared with all calls. Yield one if no tool was ever called, because TRL takes a call
    in a form that it cannot read for text.
    """
    every = {metric: log.curve(metric) for metric in log.names("tools/") if metric.endswith("/calls")}
    agree = Fix("rlhf check", "shows whether the chat template and its parser agree")
    if every and not any(one.values.any() for one in every.values()):
        first = next(iter(every.values()))
        if len(first) >= ENOUGH:
            what = "no tool was ever called: the model does not try, or calls in a form that cannot be read"
            yield first.finding("warning", what, [agree], first.evidence("0 calls"), subject="tools")
    for metric, calls in every.items():
        name, errors = metric.split("/")[1], log.curve(metric.removesuffix("calls") + "errors")
        is_unknown = name == "unknown"
        called = float(sum(one.values.sum() for one in (every.values() if is_unknown else [calls])))
        if not called or (share := float(errors.values.sum()) / called) < _HALF:
            continue
        timeouts = float(log.curve(metric.removesuffix("calls") + "timeouts").values.sum()) / called
        late = f", {timeouts:.0%} by a timeout" if timeouts else ""
        what = f"{share:.0%} of the calls {'reach no tool' if is_unknown else f'of tool {name} fail{late}'}"
        fix = Fix(f"tools.{name}.on_error=raise", "ends the run at the first failure and shows the traceback")
        fixes = [agree] if is_unknown else [fix]
        says = f"{errors.mean:.3g} of {called / len(calls):.3g} calls per round; the model reads the error and goes on"
        yield errors.finding("warning", what, fixes, errors.evidence(says), subject=name)


def dead_reward(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for rewards that were constant over all rows since the first log event, or always null.

    A constant score behind a gate that some rows pass and others do not tells these rows apart.
    """
    alive = []
    for name in log.rewards():
        raw, spread = log.curve(f"rewards/{name}/mean"), log.curve(f"rewards/{name}/std")
        opened = log.curve(f"rewards/{name}/open_fraction")
        if len(opened) and opened.mean < _NEVER:
            continue  # its gate is the cause, and has a finding of its own
        severity: Severity = "warning" if log.weight(name) == 0.0 else "serious"
        fixes = (
            Fix(f"rewards.{name}.weight=0", f"only watches {name} until its scores differ"),
            Fix(f"rlhf score {setup.folder}", f"shows how {name} scores single completions"),
        )
        if not len(raw) and log.nulls(raw.metric) >= ENOUGH:
            nulls = Evidence(raw.metric, f"null in all {log.nulls(raw.metric)} log events up to step {log.step}")
            what = f"reward {name} never scored a row"
            yield Finding(name, severity, what, (nulls,), 0, log.step, fixes)
        elif len(raw) < ENOUGH:
            yield SkippedCheck(f"{name}: too few log events, {len(raw)} of {ENOUGH}")
        elif _is_constant(raw, spread) and not (len(opened) and float(opened.values.min()) < 1.0 - _NEVER):
            effect = ", so the policy learns nothing from it" if log.weight(name) != 0.0 else ""
            what = f"reward {name} is {raw.values[-1]:.4g} on every row{effect}"
            yield raw.finding(severity, what, fixes, raw.evidence(raw.on_average()), subject=name)
        else:
            alive.append(name)
    if alive:
        yield PassedCheck(f"{', '.join(alive)} gave rows different scores")


def _is_constant(raw: Curve, spread: Curve) -> bool:
    size = max(1e-12, float(np.abs(raw.values).max()))
    return float(np.ptp(raw.values)) <= 1e-6 * size and not bool((spread.values > 1e-6 * size).any())


def gate(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for gates that never open, and for gates that never close."""
    gated: dict[str, list[str]] = {}
    for name, entry in setup.rewards.items():
        gates = entry.get("gate")
        each = gates if isinstance(gates, list) else [gates]
        read = [str(one["by"]) for one in each if isinstance(one, dict) and "by" in one]
        gated |= {name: read} if read else {}
    if not gated:
        yield PassedCheck("no reward has a gate")
    for name, read in gated.items():
        opened = log.curve(f"rewards/{name}/open_fraction")
        if len(opened) < ENOUGH:
            yield SkippedCheck(f"{name}: too few log events, {len(opened)} of {ENOUGH}")
            continue
        by = " and ".join(read)
        without = [Fix(f"rewards.{name}.gate=null", f"lets {name} count on every row (primary=null if it is the gate)")]
        shown = opened.evidence(opened.on_average())
        if opened.mean < _NEVER:
            read_by = [log.curve(f"rewards/{other}/mean") for other in read]
            what = f"the gate of {name} on {by} is open for {opened.mean:.1%} of the rows, so {name} hardly ever counts"
            beside = [one.evidence(one.on_average()) for one in read_by if len(one)]
            yield opened.finding("serious", what, without, shown, *beside, subject=name)
        elif float(opened.values.min()) > 1.0 - _NEVER and len(opened) >= ENOUGH_FOR_TREND:
            what = f"the gate of {name} on {by} never closed, so it changes nothing"
            yield log.too_early() or opened.finding("note", what, without, shown, subject=name)
        else:
            yield PassedCheck(f"the gate of {name} was open for {opened.on_average()}")


def redundant(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check for pairs of weighted rewards whose raw scores agree on nearly every row, over half of the run.

    If both are learned and hardly vary, a few unusual rows determine the correlation, so that does not count.
    """
    weighted = [name for name in log.rewards() if log.weight(name) != 0.0]
    alike: list[tuple[float, str]] = []
    found: list[CheckResult] = []
    for one, other in combinations(weighted, 2):
        curve = log.curve(f"rewards/correlation/{one}/{other}", f"rewards/correlation/{other}/{one}")
        late = curve.last(LATE)
        if len(late) < ENOUGH:
            continue
        first, last = late.first_and_last
        typical = float(np.median(late.values))
        varies = _varies(log, one) and _varies(log, other)
        learned = "; both hardly vary any more" if abs(typical) >= _SAME and not varies else ""
        alike.append((abs(typical), f"{one} and {other}: median {typical:.2f} from step {first} on{learned}"))
        above = (np.abs(late.values) >= _SAME).mean()
        if abs(typical) < _SAME or above < _MOSTLY or not varies:
            continue
        same = "score alike" if typical > 0 else "score in opposite ways"
        often = f"{_SAME} or more in {above:.0%} of the last log events"
        what = f"{one} and {other} {same}: correlation {typical:.2f}, {often}"
        shown = curve.evidence(f"median {typical:.3f} over steps {first} to {last}")
        less = min((one, other), key=lambda name: abs(log.weight(name) or 1.0))
        fixes = [Fix(f"rewards.{less}.weight=0", f"only watches {less}; the other reward then counts alone")]
        alarm = late.finding("warning", what, fixes, shown, subject=f"{one}/{other}")
        found.append(log.too_early(_LEARNED_BY) or alarm)
    yield from found
    if len(weighted) < 2:
        yield PassedCheck("the run has fewer than two weighted rewards")
    elif not alike:
        yield SkippedCheck(f"the correlation of two weighted rewards is logged fewer than {2 * ENOUGH} times")
    elif not found:
        yield PassedCheck(f"highest correlation: {max(alike)[1]}")


_NEARLY_ALL = 0.9
"""Share of the advantages: the rest for all other rewards is within the gradient noise of a batch."""
_DROWNED = 0.05
_STILL_VARIES = 0.5


def one_reward(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether one reward has nearly all of the advantages while another that still varies has almost none.

    A learned reward hardly varies and needs no share, so it does not count.
    """
    weighted = [name for name in log.rewards() if log.weight(name) != 0.0]
    if len(weighted) < 2:
        return PassedCheck("the run has fewer than two weighted rewards")
    late = {name: log.curve(f"rewards/{name}/advantage_share").last(LATE) for name in weighted}
    enough = {name: curve for name, curve in late.items() if len(curve) >= ENOUGH}
    if not enough:
        return SkippedCheck(f"shares of the advantages are logged fewer than {2 * ENOUGH} times")
    largest = max(enough, key=lambda name: enough[name].mean)
    share = enough[largest].mean
    is_sustained = float((enough[largest].values >= _NEARLY_ALL).mean()) >= _MOSTLY
    if share < _NEARLY_ALL or not is_sustained:
        return PassedCheck(f"{largest} has the largest share of the advantages: {share:.2f}")
    drowned = [name for name in enough if name != largest and abs(enough[name].mean) < _DROWNED and _varies(log, name)]
    if not drowned:
        return PassedCheck(f"{largest} has {share:.2f} of the advantages; the other rewards hardly vary any more")
    if early := log.too_early(_LEARNED_BY):
        return early
    shares = {name: log.curve(one.metric).evidence(one.on_average()) for name, one in enough.items()}
    spreads = {name: log.curve(f"rewards/{name}/std") for name in drowned}
    beside = [one for name in drowned for one in (shares[name], spreads[name].evidence(spreads[name].on_average()))]
    what = f"{largest} has {share:.2f} of the advantages; {' and '.join(drowned)} still varies but has almost none"
    fixes = [fix for name in drowned for fix in _heavier(log, setup, name, largest)]
    return enough[largest].finding("warning", what, fixes, shares[largest], *beside, subject=largest)


def _varies(log: Log, name: str) -> bool:
    """Return whether the spread of a reward's raw scores is at least half of its initial spread."""
    spread = log.curve(f"rewards/{name}/std")
    if len(spread) < ENOUGH:
        return False
    early, late = spread.first(0.2).mean, spread.last(LATE).mean
    return late > 0.0 and late >= _STILL_VARIES * early


_MOST_TIMES = 10.0
"""A larger factor says that the scores are on another scale: the weight would have to grow as they are learned."""


def _heavier(log: Log, setup: RunSetup, name: str, largest: str) -> Iterator[Fix]:
    """Yield a larger weight, or the normalisation that a reward needs for a third of the largest reward's deviation.

    Normalised scores have a deviation of 1; the logged deviation is that of the raw scores. Yield nothing if the
    reward's weight is large enough already.
    """
    spreads = {one: log.curve(f"rewards/{one}/std").last(LATE) for one in (name, largest)}
    is_raw = [setup.rewards.get(one, {}).get("normalize") in (None, "none") for one in spreads]
    own, others = (one.mean if len(one) and raw else 1.0 for one, raw in zip(spreads.values(), is_raw, strict=True))
    weights = [log.weight(one) or 1.0 for one in spreads]
    weight = abs(weights[1]) * others / (3.0 * own)  # own > 0: its scores vary
    if is_raw[0] and weight > _MOST_TIMES * max(map(abs, weights)):
        reason = f"{name} deviates by {own:.2g} only; normalising gives its scores a deviation of 1, then weigh them"
        yield Fix(f"rewards.{name}.normalize=batch", reason)
    elif weight > abs(weights[0]):
        signed = math.copysign(weight, weights[0])
        yield Fix(f"rewards.{name}.weight={rounded(signed)}", f"gives it a third of {largest}'s part in the total")
