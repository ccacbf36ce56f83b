"""Check the policy and the critic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhf_cli.analysis.diagnosis.logged import (
    ENOUGH,
    ENOUGH_FOR_TREND,
    LATE,
    SURE,
    CheckResult,
    Fix,
    Log,
    PassedCheck,
    RunSetup,
    Severity,
    SkippedCheck,
    rounded,
)
from rlhf_cli.truncation import policy_named

_FAR = 1.0
"""Nats per token: the policy gives each of its tokens e times the reference's probability. Runs of
docs/reference/studies.md that keep their gold reward stay below 0.6; runs that lose it end at 1
to 3.5.
"""
_FASTER = 2.0
"""The last of three thirds gains twice the previous level, and twice the gain of the second third. A KL that grows
linearly gains the same in each third; under a penalty, or as a random walk, it gains less and less.
"""
_NOT_NOTHING = 0.2


def kl(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the per-token KL from the reference is large or grows faster and faster."""
    curve = log.first_of("kl/k1_policy_ref", "kl")
    if few := curve.too_few(ENOUGH):
        return few
    late = curve.last(0.2)
    early, middle, end = curve.means(3)
    parts = curve.means(6)
    is_running = end - middle > _FASTER * max(middle - early, middle) and parts[-1] > parts[-2] > parts[-3]
    if late.mean >= _FAR:
        what = f"the policy is far from its reference: {late.mean:.2g} nats per token"
    elif is_running and end >= _NOT_NOTHING and len(curve) >= ENOUGH_FOR_TREND:
        what = f"the policy leaves its reference faster and faster: {early:.2g}, {middle:.2g}, {end:.2g} nats per token"
    else:
        return curve.passed()
    return curve.finding("warning", what, _closer_and_slower(log, setup))


def _closer_and_slower(log: Log, setup: RunSetup) -> list[Fix]:
    return [*closer(setup, kl_coef=0.05, beta=0.04), *slower(log, setup)]


def closer(setup: RunSetup, *, kl_coef: float, beta: float) -> Iterator[Fix]:
    """Yield three times the KL penalty, at least `kl_coef` for a critic or `beta` for a group baseline."""
    reason = "a larger KL penalty keeps the policy closer to the reference"
    if setup.has_critic:
        yield Fix(f"kl.coef={rounded(max(kl_coef, 3.0 * (setup.kl_coef or 0.0)))}", reason)
    elif setup.trainer in ("grpo", "rloo"):
        yield Fix(f"trainer.args.beta={rounded(max(beta, 3.0 * setup.number('beta', 0.0)))}", reason)


def slower(log: Log, setup: RunSetup) -> Iterator[Fix]:
    """Yield a third of the learning rate, if it was configured or logged."""
    rate = setup.number("learning_rate", log.largest("learning_rate"))
    if rate > 0.0:
        yield Fix(f"trainer.args.learning_rate={rounded(rate / 3)}", "takes smaller steps")


def faster(log: Log, setup: RunSetup) -> Iterator[Fix]:
    """Yield three times the learning rate, if it was configured or logged."""
    rate = setup.number("learning_rate", log.largest("learning_rate"))
    if rate > 0.0:
        yield Fix(f"trainer.args.learning_rate={rounded(3 * rate)}", "takes larger steps")


def warmer(setup: RunSetup, reason: str) -> Fix:
    """Return a temperature that is a fifth higher."""
    return Fix(f"trainer.args.temperature={rounded(1.2 * setup.number('temperature', 1.0))}", reason)


_HALF, _NEARLY_ALL = 0.5, 0.9
_GROWTH, _WORTH_TELLING = 0.1, 0.15


def truncation(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether half of the completions are truncated, more and more of them, or all are empty (EOS alone)."""
    curve = log.first_of("rewards/truncation/fraction", "completions/clipped_ratio")
    if few := curve.too_few(ENOUGH):
        return few
    longest = log.curve("completions/max_length")
    if len(longest) and max(longest.last(0.3).values) <= 1:
        return longest.finding("serious", "every completion is empty: the policy ends its answer at once", [])
    late = curve.last(0.3)
    line = curve.last(0.7).trend() if len(curve) >= ENOUGH_FOR_TREND else None
    grows = line is not None and line.rises(SURE) and line.change >= _GROWTH and late.mean >= _WORTH_TELLING
    if late.mean >= _HALF:
        what = f"{late.mean:.0%} of the completions are truncated at {setup.limit} tokens"
    elif grows and line is not None:
        what = f"more and more completions are truncated: {line.start:.0%} -> {line.end:.0%}"
    else:
        return PassedCheck(f"truncated: {curve.from_to()}")
    severity: Severity = "serious" if late.mean >= _NEARLY_ALL else "warning"
    fixes = [Fix(f"trainer.args.max_completion_length={2 * setup.limit}", "gives completions room to end")]
    if setup.truncation == "none":
        fixes.append(Fix("truncation=eos_penalty", "a truncated completion pays a penalty"))
    elif policy_named(setup.truncation).needs_critic:
        fixes.append(Fix("truncation.mode=replace", "a truncated completion then gets only the critic's value"))
    return curve.finding(severity, what, fixes)


_BY_HALF = 0.5
_EXCUSE = 0.15


def length(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether completions became much longer or shorter while no reward rose: an unrewarded drift."""
    curve = log.curve("completions/mean_length")
    if few := curve.too_few(ENOUGH_FOR_TREND):
        return few
    line = curve.trend()
    if line is None:
        return SkippedCheck(f"{curve.metric} is too noisy to show a trend")
    relative = line.change / max(line.start, 1.0)  # the line of a bent curve may start below a token
    if not (line.rises(SURE) or line.falls(SURE)) or abs(relative) < _BY_HALF:
        return curve.passed()
    if risen := [name for name in log.rewards() if _rises(log, name)]:
        return curve.passed(f"; {' and '.join(risen)} rose meanwhile")
    direction = "longer" if relative > 0 else "shorter"
    what = f"completions became {abs(relative):.0%} {direction}, but no reward rose meanwhile"
    overlong = Fix("truncation=soft_overlong", "makes the last tokens before the limit cost more and more")
    return curve.finding("warning", what, [*([overlong] if relative > 0 else []), *_closer_and_slower(log, setup)])


def _rises(log: Log, name: str) -> bool:
    """Return whether a reward's mean rose by more than a seventh of its rows' deviation. It excuses a drift."""
    curve, spread = log.curve(f"rewards/{name}/mean"), log.curve(f"rewards/{name}/std")
    thirds = curve.means(3)
    return len(thirds) == 3 and len(spread) > 0 and thirds[-1] - thirds[0] > _EXCUSE * spread.mean > 0.0


_COLLAPSED = 0.1
_LITTLE = 0.05


def entropy(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the entropy fell to a tenth and the total did not rise: the policy is certain but wrong."""
    curve = log.first_of("ppo/entropy", "entropy")
    if few := curve.too_few(ENOUGH_FOR_TREND):
        return few
    start, end = curve.first(0.1).mean, curve.last(0.1).mean
    total = log.total()
    if end > _COLLAPSED * start:
        return curve.passed()
    if len(total) < ENOUGH:
        return SkippedCheck(f"{curve.metric} fell to {end:.2g}, but no total is logged to compare it with")
    spread = log.curve("reward_std")
    scale = spread.first(0.2).mean if len(spread) else 0.0
    gain = total.last(0.2).mean - total.first(0.2).mean
    line = total.trend()
    if gain > max(_LITTLE, 0.2 * scale) or (line is not None and line.rises(SURE) and gain > 0.1 * scale):
        return curve.passed("; the total rose meanwhile")
    what = f"the policy stopped exploring: its entropy fell from {start:.2g} to {end:.2g}, but the total did not rise"
    varied = [warmer(setup, "samples more varied completions")] if setup.trainer != "ppo" else []
    beside = [total.evidence()]
    return curve.finding("serious", what, [*varied, *_closer_and_slower(log, setup)], beside=beside)


_TOO_MUCH = 0.3
"""Above the usual 0.1 to 0.2 of PPO's papers and implementations: a third of the tokens have no gradient."""


def clipping(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether many updates are clipped, or none ever is although rollouts are reused."""
    curve = log.first_of("ppo/clip_fraction", "clip_ratio/region_mean")
    if few := curve.too_few(ENOUGH):
        return few
    late = curve.last(LATE)
    reuses = setup.number("num_iterations", 1.0) > 1.0
    if late.mean > _TOO_MUCH:
        what = f"{late.mean:.0%} of the tokens are outside the clip range and give no gradient"
        once = [Fix("trainer.args.num_iterations=1", "uses every rollout once")] if reuses else []
        fixes = [*slower(log, setup), *once]
        return late.finding("warning", what, fixes, shown=curve.evidence(late.on_average()))
    if float(curve.values.max()) > 0.0 or not reuses:
        return PassedCheck(f"{curve.metric}: {late.on_average()}")
    if (early := log.too_early()) or (early := curve.too_few(ENOUGH_FOR_TREND)):
        return early
    what = "no update is clipped although rollouts are reused: the policy hardly changes"
    return curve.finding("note", what, faster(log, setup), shown=curve.evidence(curve.on_average()))


_MOSTLY = 0.8


def explained_variance(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the critic is worse than a constant in four of five rounds of the run's second half.

    Every critic is at first; one whose explained variance rises is learning.
    """
    if not setup.has_critic:
        return PassedCheck("there is no critic")
    curve = log.curve("ppo/explained_variance")
    if few := curve.too_few(ENOUGH):
        return few
    late, line = curve.last(LATE), curve.trend()
    if float(np.median(late.values)) >= 0.0 or float((late.values < 0.0).mean()) < _MOSTLY:
        return curve.passed()
    if early := log.too_early():
        return early
    if line is not None and line.rises(SURE) and late.last(LATE).mean > late.first(LATE).mean:
        return curve.passed("; below 0, and rising")
    what = f"the critic predicts returns worse than a constant would: explained variance {late.on_average()}"
    rate = log.largest("critic/learning_rate")
    faster = Fix(f"critic.learning_rate={rounded(3 * rate) if rate > 0 else '1e-4'}", "lets the critic learn faster")
    steps = max(32, round(2 * setup.number("critic.warmup_steps", 0)))
    warmup = Fix(f"critic.warmup_steps={steps}", "trains the critic alone at first")
    return late.finding("warning", what, [faster, warmup], shown=curve.evidence())


_TWICE = 2.0
_MORE_THAN_RETURNS = 1.2


def value_loss(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the critic's loss doubled since its minimum, and outgrew the variance of the returns."""
    if not setup.has_critic:
        return PassedCheck("there is no critic")
    curve, returns = log.curve("ppo/value_loss"), log.curve("ppo/returns_std")
    if few := curve.too_few(ENOUGH_FOR_TREND):
        return few
    quarters = curve.means(4)
    lowest = int(np.argmin(quarters[:3]))
    grown = quarters[-1] / max(quarters[lowest], 1e-12)
    line = curve.last(1.0 - lowest / 4).trend()
    if line is None:
        return SkippedCheck(f"{curve.metric} is too noisy to show a trend")
    with_returns = 1.0
    if len(returns) >= ENOUGH:
        variances = [float(part.mean()) for part in np.array_split(returns.values**2, 4)]
        with_returns = variances[-1] / max(variances[lowest], 1e-12)
    if grown < _TWICE or not line.rises(SURE) or grown < _MORE_THAN_RETURNS * with_returns:
        return curve.passed()
    what = f"the critic's loss grew {grown:.1f} times, the variance of the returns only {with_returns:.1f} times"
    rate = log.largest("critic/learning_rate")
    smaller = [Fix(f"critic.learning_rate={rounded(rate / 3)}", "takes smaller steps")] if rate > 0 else []
    norm = rounded(setup.number("critic.max_grad_norm", 1.0) / 2)
    fixes = [*smaller, Fix(f"critic.max_grad_norm={norm}", "limits the size of a step")]
    beside = [returns.evidence()] if len(returns) else []
    return curve.finding("warning", what, fixes, beside=beside)
