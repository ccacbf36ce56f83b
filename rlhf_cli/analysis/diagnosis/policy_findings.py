"""Look at the policy and the critic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhf_cli.analysis.diagnosis.finding import (
    CheckResult,
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
    SURE,
    Log,
    evidence,
    from_to,
    means,
    on_average,
    rounded,
    steps_of,
    too_early,
    too_few,
    trend,
)

_FAR = 1.0
"""Nats per token: the policy gives each of its tokens e times the reference's probability. Runs of
docs/studies/overoptimisation.md that keep their gold reward stay below 0.6; runs that lose it end at 1 to 3.5.
"""
_FASTER = 2.0
"""The last of three thirds gains twice the previous level, and twice the gain of the second third. A KL that grows
linearly gains the same in each third; under a penalty, or as a random walk, it gains less and less.
"""
_NOT_NOTHING = 0.2


def kl(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield a finding if the per-token KL from the reference (kl/k1_policy_ref) is large or grows faster and faster."""
    kind = "kl"
    curve = log.first_of("kl/k1_policy_ref", "kl")
    if few := too_few(kind, curve, ENOUGH):
        yield few
        return
    late = curve.last(0.2)
    early, middle, end = means(curve, 3)
    parts = means(curve, 6)
    is_running = end - middle > _FASTER * max(middle - early, middle) and parts[-1] > parts[-2] > parts[-3]
    if late.mean >= _FAR:
        what = f"the policy is {late.mean:.2g} nats a token away from where it began"
    elif is_running and end >= _NOT_NOTHING and len(curve) >= ENOUGH_FOR_TREND:
        what = f"the policy leaves its reference faster and faster: {early:.2g}, {middle:.2g}, {end:.2g} nats a token"
    else:
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}")
        return
    yield Finding(
        kind, "", "warning", what, (evidence(curve, from_to(curve)),), *steps_of(curve), tuple(_nearer(log, setup))
    )


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
    logged = log.curve("learning_rate").values
    rate = setup.number("learning_rate", float(logged.max()) if len(logged) else 0.0)
    if rate > 0.0:
        yield Fix(f"trainer.args.learning_rate={rounded(rate / 3)}", "smaller steps")


_HALF, _NEARLY_ALL = 0.5, 0.9
_GROWTH, _WORTH_TELLING = 0.1, 0.15


def truncation(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield a finding if half of the completions are truncated, or more and more of them.

    Beyond 95 % the training itself warns once (launch/completion_ends.py), even if this check is off.
    """
    kind = "truncation"
    curve = log.first_of("rewards/truncation/fraction", "completions/clipped_ratio")
    if few := too_few(kind, curve, ENOUGH):
        yield few
        return
    late = curve.last(0.3)
    line = trend(curve.last(0.7)) if len(curve) >= ENOUGH_FOR_TREND else None
    grows = line is not None and line.rises(SURE) and line.change >= _GROWTH and late.mean >= _WORTH_TELLING
    if late.mean >= _HALF:
        what = f"{late.mean:.0%} of the completions are cut off at {setup.limit} tokens"
    elif grows and line is not None:
        what = f"more and more completions are cut off: {line.start:.0%} -> {line.end:.0%}"
    else:
        yield PassedCheck(kind, f"cut off: {from_to(curve)}")
        return
    severity: Severity = "serious" if late.mean >= _NEARLY_ALL else "warning"
    changes = [Fix(f"trainer.args.max_completion_length={2 * setup.limit}", "gives them room to end")]
    if setup.truncation == "none":
        changes.append(Fix("truncation=eos_penalty", "a completion that is cut off pays for it"))
    elif setup.truncation == "bootstrap":
        changes.append(Fix("truncation.mode=replace", "what is cut off is worth what the critic expects, no more"))
    yield Finding(kind, "", severity, what, (evidence(curve, from_to(curve)),), *steps_of(curve), tuple(changes))


_BY_HALF = 0.5
_EXCUSE = 0.15


def length(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield a finding if completions became much longer or shorter while no reward rose: an unrewarded drift."""
    kind = "length"
    curve = log.curve("completions/mean_length")
    if few := too_few(kind, curve, ENOUGH_FOR_TREND):
        yield few
        return
    line = trend(curve)
    if line is None:
        yield SkippedCheck(kind, f"{curve.metric} wanders too much to tell a drift from noise")
        return
    relative = line.change / max(line.start, 1e-9)
    moves = line.rises(SURE) or line.falls(SURE)
    if not moves or abs(relative) < _BY_HALF:
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}")
        return
    if risen := [name for name in log.rewards() if _rises(log, name)]:
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}; {' and '.join(risen)} rose with it")
        return
    what = (
        f"completions became {abs(relative):.0%} {'longer' if relative > 0 else 'shorter'}, and no reward rose with it"
    )
    changes = list(_nearer(log, setup))
    if relative > 0:
        changes.insert(0, Fix("truncation=soft_overlong", "the last tokens before the limit cost more and more"))
    yield Finding(kind, "", "warning", what, (evidence(curve, from_to(curve)),), *steps_of(curve), tuple(changes))


def _rises(log: Log, name: str) -> bool:
    """Return whether a reward's mean rose by more than a seventh of its rows' deviation. It excuses a drift."""
    curve, spread = log.curve(f"rewards/{name}/mean"), log.curve(f"rewards/{name}/std")
    thirds = means(curve, 3)
    return len(thirds) == 3 and len(spread) > 0 and thirds[-1] - thirds[0] > _EXCUSE * spread.mean > 0.0


_COLLAPSED = 0.1
_LITTLE = 0.05


def entropy(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield a finding if the entropy fell to a tenth and the total did not rise: the policy is certain but wrong."""
    kind = "entropy"
    curve = log.first_of("ppo/entropy", "entropy")
    if few := too_few(kind, curve, ENOUGH_FOR_TREND):
        yield few
        return
    start, end = curve.first(0.1).mean, curve.last(0.1).mean
    total = log.total()
    if end > _COLLAPSED * start:
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}")
        return
    if len(total) < ENOUGH:
        yield SkippedCheck(
            kind, f"{curve.metric} fell to {end:.2g}, and no total is logged that could have risen with it"
        )
        return
    spread = log.curve("reward_std")
    scale = spread.first(0.2).mean if len(spread) else 0.0
    gain = total.last(0.2).mean - total.first(0.2).mean
    line = trend(total)
    if gain > max(_LITTLE, 0.2 * scale) or (line is not None and line.rises(SURE) and gain > 0.1 * scale):
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}; the total rose with it")
        return
    what = f"the entropy fell from {start:.2g} to {end:.2g} nats a token, and the total did not rise with it"
    changes = [Fix("trainer.args.temperature=1.2", "samples more widely")] if setup.trainer != "ppo" else []
    seen = (evidence(curve, from_to(curve)), evidence(total, from_to(total)))
    yield Finding(kind, "", "serious", what, seen, *steps_of(curve), (*changes, *_nearer(log, setup)))


_TOO_MUCH = 0.3
"""Above the usual 0.1 to 0.2 of PPO's papers and implementations: a third of the tokens have no gradient."""


def clipping(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield a finding if many updates are clipped, or none ever is although rollouts are reused."""
    kind = "clipping"
    curve = log.first_of("ppo/clip_fraction", "clip_ratio/region_mean")
    if few := too_few(kind, curve, ENOUGH):
        yield few
        return
    late = curve.last(LATE)
    if late.mean > _TOO_MUCH:
        what = f"{late.mean:.0%} of the tokens are outside the clip range: their gradient is thrown away"
        fewer = (
            [Fix("trainer.args.num_iterations=1", "uses a rollout once")]
            if setup.number("num_iterations", 1) > 1
            else []
        )
        changes = (*slower(log, setup), *fewer)
        yield Finding(kind, "", "warning", what, (evidence(curve, on_average(late)),), *steps_of(late), changes)
        return
    reuses = setup.number("num_iterations", 1.0) > 1.0
    if float(curve.values.max()) > 0.0 or not reuses:
        said = on_average(late) if reuses or late.mean else "no rollout is used twice, so that nothing is to be clipped"
        yield PassedCheck(kind, f"{curve.metric}: {said}")
        return
    if (early := too_early(kind, log)) or (early := too_few(kind, curve, ENOUGH_FOR_TREND)):
        yield early
        return
    rate = setup.number("learning_rate", 0.0)
    changes = (Fix(f"trainer.args.learning_rate={rounded(3 * rate)}", "larger steps"),) if rate else ()
    what = "nothing is ever clipped though rollouts are used again: the policy hardly moves"
    yield Finding(kind, "", "note", what, (evidence(curve, on_average(curve)),), *steps_of(curve), changes)


_MOSTLY = 0.8


def explained_variance(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield a finding if the critic is worse than a constant in four of five rounds of the run's second half.

    Every critic is at first; one whose explained variance rises is learning.
    """
    kind = "explained_variance"
    if not setup.has_critic:
        yield PassedCheck(kind, "there is no critic")
        return
    curve = log.curve("ppo/explained_variance")
    if few := too_few(kind, curve, ENOUGH):
        yield few
        return
    late, line = curve.last(LATE), trend(curve)
    share = float((late.values < 0.0).mean())
    if float(np.median(late.values)) >= 0.0 or share < _MOSTLY:
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}")
        return
    if early := too_early(kind, log):
        yield early
        return
    if line is not None and line.rises(SURE) and late.last(LATE).mean > late.first(LATE).mean:
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}; below 0, and rising")
        return
    what = f"the critic foresees less than a constant would: explained variance {on_average(late)}"
    changes = (
        Fix("critic.learning_rate=" + _faster(log), "lets it learn faster"),
        Fix("critic.warmup_steps=32", "lets it learn alone at first"),
    )
    yield Finding(kind, "", "warning", what, (evidence(curve, from_to(curve)),), *steps_of(late), changes)


def _faster(log: Log) -> str:
    rates = log.curve("critic/learning_rate").values
    return rounded(3 * float(rates.max())) if len(rates) and rates.max() > 0 else "1e-4"


_TWICE = 2.0
_MORE_THAN_RETURNS = 1.2


def value_loss(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield a finding if the critic's loss doubled since its minimum, and outgrew the variance of the returns."""
    kind = "value_loss"
    if not setup.has_critic:
        yield PassedCheck(kind, "there is no critic")
        return
    curve, returns = log.curve("ppo/value_loss"), log.curve("ppo/returns_std")
    if few := too_few(kind, curve, ENOUGH_FOR_TREND):
        yield few
        return
    parts = np.array_split(curve.values, 4)
    lowest = int(np.argmin([part.mean() for part in parts[:3]]))
    grown = float(parts[-1].mean()) / max(float(parts[lowest].mean()), 1e-12)
    line = trend(curve.last(1.0 - lowest / 4))
    if line is None:
        yield SkippedCheck(kind, f"{curve.metric} wanders too much to tell growth from noise")
        return
    spread = np.array_split(returns.values**2, 4) if len(returns) >= ENOUGH else []
    with_returns = float(spread[-1].mean()) / max(float(spread[lowest].mean()), 1e-12) if spread else 1.0
    if grown < _TWICE or not line.rises(SURE) or grown < _MORE_THAN_RETURNS * with_returns:
        yield PassedCheck(kind, f"{curve.metric}: {from_to(curve)}")
        return
    what = f"the critic's loss grows: {grown:.1f} times what it was, the returns' variance {with_returns:.1f} times"
    rates = log.curve("critic/learning_rate").values
    slower = (Fix(f"critic.learning_rate={rounded(float(rates.max()) / 3)}", "smaller steps"),) if len(rates) else ()
    seen = (evidence(curve, from_to(curve)), *((evidence(returns, from_to(returns)),) if len(returns) else ()))
    tamer = Fix("critic.max_grad_norm=0.5", "no step larger than that")
    yield Finding(kind, "", "warning", what, seen, *steps_of(curve), (*slower, tamer))
