"""Check the policy and the critic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhf_cli.analysis.diagnosis.finding import CheckResult, Fix, PassedCheck, RunSetup, Severity, SkippedCheck
from rlhf_cli.analysis.diagnosis.logged import (
    ENOUGH,
    ENOUGH_FOR_TREND,
    LATE,
    SURE,
    Log,
    evidence,
    finding,
    from_to,
    means,
    on_average,
    passed,
    rounded,
    too_early,
    too_few,
    trend,
)

_FAR = 1.0
"""Nats per token: the policy gives each of its tokens e times the reference's probability. Runs of
docs/reference/studies/overoptimisation.md that keep their gold reward stay below 0.6; runs that lose it end at 1
to 3.5.
"""
_FASTER = 2.0
"""The last of three thirds gains twice the previous level, and twice the gain of the second third. A KL that grows
linearly gains the same in each third; under a penalty, or as a random walk, it gains less and less.
"""
_NOT_NOTHING = 0.2


def kl(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the per-token KL from the reference is large or grows faster and faster."""
    kind = "kl"
    curve = log.first_of("kl/k1_policy_ref", "kl")
    if few := too_few(kind, curve, ENOUGH):
        return few
    late = curve.last(0.2)
    early, middle, end = means(curve, 3)
    parts = means(curve, 6)
    is_running = end - middle > _FASTER * max(middle - early, middle) and parts[-1] > parts[-2] > parts[-3]
    if late.mean >= _FAR:
        what = f"the policy is {late.mean:.2g} nats a token away from where it began"
    elif is_running and end >= _NOT_NOTHING and len(curve) >= ENOUGH_FOR_TREND:
        what = f"the policy leaves its reference faster and faster: {early:.2g}, {middle:.2g}, {end:.2g} nats a token"
    else:
        return passed(kind, curve)
    return finding(kind, "warning", what, curve, _nearer(log, setup))


def _nearer(log: Log, setup: RunSetup) -> Iterator[Fix]:
    if setup.has_critic:
        yield Fix(f"kl.coef={_more(setup.kl_coef, 0.05)}", "a larger penalty holds it nearer")
    elif setup.trainer in ("grpo", "rloo"):
        yield Fix(f"trainer.args.beta={_more(setup.number('beta', 0.0), 0.04)}", "a larger penalty holds it nearer")
    yield from slower(log, setup)


def _more(value: float | None, least: float) -> str:
    return rounded(max(least, 3.0 * (value or 0.0)))


def slower(log: Log, setup: RunSetup) -> Iterator[Fix]:
    """Yield a third of the learning rate, if it was configured or logged."""
    rate = setup.number("learning_rate", log.largest("learning_rate"))
    if rate > 0.0:
        yield Fix(f"trainer.args.learning_rate={rounded(rate / 3)}", "smaller steps")


_HALF, _NEARLY_ALL = 0.5, 0.9
_GROWTH, _WORTH_TELLING = 0.1, 0.15


def truncation(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether half of the completions are truncated, more and more of them, or all are empty (EOS alone)."""
    kind = "truncation"
    curve = log.first_of("rewards/truncation/fraction", "completions/clipped_ratio")
    if few := too_few(kind, curve, ENOUGH):
        return few
    longest = log.curve("completions/max_length")
    if len(longest) and max(longest.last(0.3).values) <= 1:
        return finding(kind, "serious", "every completion is empty: the policy ends before it has begun", longest, [])
    late = curve.last(0.3)
    line = trend(curve.last(0.7)) if len(curve) >= ENOUGH_FOR_TREND else None
    grows = line is not None and line.rises(SURE) and line.change >= _GROWTH and late.mean >= _WORTH_TELLING
    if late.mean >= _HALF:
        what = f"{late.mean:.0%} of the completions are cut off at {setup.limit} tokens"
    elif grows and line is not None:
        what = f"more and more completions are cut off: {line.start:.0%} -> {line.end:.0%}"
    else:
        return PassedCheck(kind, f"cut off: {from_to(curve)}")
    severity: Severity = "serious" if late.mean >= _NEARLY_ALL else "warning"
    fixes = [Fix(f"trainer.args.max_completion_length={2 * setup.limit}", "gives them room to end")]
    if setup.truncation == "none":
        fixes.append(Fix("truncation=eos_penalty", "a completion that is cut off pays for it"))
    elif setup.truncation == "bootstrap":
        fixes.append(Fix("truncation.mode=replace", "what is cut off is worth what the critic expects, no more"))
    return finding(kind, severity, what, curve, fixes)


_BY_HALF = 0.5
_EXCUSE = 0.15


def length(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether completions became much longer or shorter while no reward rose: an unrewarded drift."""
    kind = "length"
    curve = log.curve("completions/mean_length")
    if few := too_few(kind, curve, ENOUGH_FOR_TREND):
        return few
    line = trend(curve)
    if line is None:
        return SkippedCheck(kind, f"{curve.metric} wanders too much to tell a drift from noise")
    relative = line.change / max(line.start, 1e-9)
    if not (line.rises(SURE) or line.falls(SURE)) or abs(relative) < _BY_HALF:
        return passed(kind, curve)
    if risen := [name for name in log.rewards() if _rises(log, name)]:
        return passed(kind, curve, f"; {' and '.join(risen)} rose with it")
    direction = "longer" if relative > 0 else "shorter"
    what = f"completions became {abs(relative):.0%} {direction}, and no reward rose with it"
    overlong = Fix("truncation=soft_overlong", "the last tokens before the limit cost more and more")
    return finding(kind, "warning", what, curve, [*([overlong] if relative > 0 else []), *_nearer(log, setup)])


def _rises(log: Log, name: str) -> bool:
    """Return whether a reward's mean rose by more than a seventh of its rows' deviation. It excuses a drift."""
    curve, spread = log.curve(f"rewards/{name}/mean"), log.curve(f"rewards/{name}/std")
    thirds = means(curve, 3)
    return len(thirds) == 3 and len(spread) > 0 and thirds[-1] - thirds[0] > _EXCUSE * spread.mean > 0.0


_COLLAPSED = 0.1
_LITTLE = 0.05


def entropy(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the entropy fell to a tenth and the total did not rise: the policy is certain but wrong."""
    kind = "entropy"
    curve = log.first_of("ppo/entropy", "entropy")
    if few := too_few(kind, curve, ENOUGH_FOR_TREND):
        return few
    start, end = curve.first(0.1).mean, curve.last(0.1).mean
    total = log.total()
    if end > _COLLAPSED * start:
        return passed(kind, curve)
    if len(total) < ENOUGH:
        why = f"{curve.metric} fell to {end:.2g}, and no total is logged that could have risen with it"
        return SkippedCheck(kind, why)
    spread = log.curve("reward_std")
    scale = spread.first(0.2).mean if len(spread) else 0.0
    gain = total.last(0.2).mean - total.first(0.2).mean
    line = trend(total)
    if gain > max(_LITTLE, 0.2 * scale) or (line is not None and line.rises(SURE) and gain > 0.1 * scale):
        return passed(kind, curve, "; the total rose with it")
    what = f"the entropy fell from {start:.2g} to {end:.2g} nats a token, and the total did not rise with it"
    warmer = [Fix("trainer.args.temperature=1.2", "samples more widely")] if setup.trainer != "ppo" else []
    beside = [evidence(total, from_to(total))]
    return finding(kind, "serious", what, curve, [*warmer, *_nearer(log, setup)], beside=beside)


_TOO_MUCH = 0.3
"""Above the usual 0.1 to 0.2 of PPO's papers and implementations: a third of the tokens have no gradient."""


def clipping(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether many updates are clipped, or none ever is although rollouts are reused."""
    kind = "clipping"
    curve = log.first_of("ppo/clip_fraction", "clip_ratio/region_mean")
    if few := too_few(kind, curve, ENOUGH):
        return few
    late = curve.last(LATE)
    reuses = setup.number("num_iterations", 1.0) > 1.0
    if late.mean > _TOO_MUCH:
        what = f"{late.mean:.0%} of the tokens are outside the clip range: their gradient is thrown away"
        once = [Fix("trainer.args.num_iterations=1", "uses a rollout once")] if reuses else []
        fixes = [*slower(log, setup), *once]
        return finding(kind, "warning", what, late, fixes, shown=evidence(curve, on_average(late)))
    if float(curve.values.max()) > 0.0 or not reuses:
        unused = "no rollout is used twice, so there is nothing to clip"
        return PassedCheck(kind, f"{curve.metric}: {on_average(late) if reuses or late.mean else unused}")
    if (early := too_early(kind, log)) or (early := too_few(kind, curve, ENOUGH_FOR_TREND)):
        return early
    rate = setup.number("learning_rate", 0.0)
    fixes = [Fix(f"trainer.args.learning_rate={rounded(3 * rate)}", "larger steps")] if rate else []
    what = "nothing is ever clipped though rollouts are used again: the policy hardly moves"
    return finding(kind, "note", what, curve, fixes, shown=evidence(curve, on_average(curve)))


_MOSTLY = 0.8


def explained_variance(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the critic is worse than a constant in four of five rounds of the run's second half.

    Every critic is at first; one whose explained variance rises is learning.
    """
    kind = "explained_variance"
    if not setup.has_critic:
        return PassedCheck(kind, "there is no critic")
    curve = log.curve("ppo/explained_variance")
    if few := too_few(kind, curve, ENOUGH):
        return few
    late, line = curve.last(LATE), trend(curve)
    if float(np.median(late.values)) >= 0.0 or float((late.values < 0.0).mean()) < _MOSTLY:
        return passed(kind, curve)
    if early := too_early(kind, log):
        return early
    if line is not None and line.rises(SURE) and late.last(LATE).mean > late.first(LATE).mean:
        return passed(kind, curve, "; below 0, and rising")
    what = f"the critic foresees less than a constant would: explained variance {on_average(late)}"
    rate = log.largest("critic/learning_rate")
    faster = Fix(f"critic.learning_rate={rounded(3 * rate) if rate > 0 else '1e-4'}", "lets it learn faster")
    warmup = Fix("critic.warmup_steps=32", "lets it learn alone at first")
    return finding(kind, "warning", what, late, [faster, warmup], shown=evidence(curve, from_to(curve)))


_TWICE = 2.0
_MORE_THAN_RETURNS = 1.2


def value_loss(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the critic's loss doubled since its minimum, and outgrew the variance of the returns."""
    kind = "value_loss"
    if not setup.has_critic:
        return PassedCheck(kind, "there is no critic")
    curve, returns = log.curve("ppo/value_loss"), log.curve("ppo/returns_std")
    if few := too_few(kind, curve, ENOUGH_FOR_TREND):
        return few
    quarters = means(curve, 4)
    lowest = int(np.argmin(quarters[:3]))
    grown = quarters[-1] / max(quarters[lowest], 1e-12)
    line = trend(curve.last(1.0 - lowest / 4))
    if line is None:
        return SkippedCheck(kind, f"{curve.metric} wanders too much to tell growth from noise")
    with_returns = 1.0
    if len(returns) >= ENOUGH:
        variances = [float(part.mean()) for part in np.array_split(returns.values**2, 4)]
        with_returns = variances[-1] / max(variances[lowest], 1e-12)
    if grown < _TWICE or not line.rises(SURE) or grown < _MORE_THAN_RETURNS * with_returns:
        return passed(kind, curve)
    what = f"the critic's loss grows: {grown:.1f} times what it was, the returns' variance {with_returns:.1f} times"
    rate = log.largest("critic/learning_rate")
    smaller = [Fix(f"critic.learning_rate={rounded(rate / 3)}", "smaller steps")] if rate > 0 else []
    fixes = [*smaller, Fix("critic.max_grad_norm=0.5", "no step larger than that")]
    beside = [evidence(returns, from_to(returns))] if len(returns) else []
    return finding(kind, "warning", what, curve, fixes, beside=beside)
