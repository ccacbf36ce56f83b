"""Check the outcome of a run, its policy and its critic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhf_cli.analysis.diagnosis.logged import (
    ENOUGH,
    ENOUGH_FOR_TREND,
    LATE,
    SURE,
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
from rlhf_cli.runs.metric_arrays import Window
from rlhf_cli.runs.metrics_file import TOTAL, evaluation_sets
from rlhf_cli.runs.run_folder import GREEDY, SAMPLED
from rlhf_cli.truncation import policy_named

_ALWAYS_NUMBERS = ("loss", "ppo/policy_loss", "ppo/value_loss", "kl", "kl/k1_policy_ref", "entropy")
_SKIPPED_STEPS = 0.05
"""Under fp16 overflowing gradients are normal: the scaler skips the step. More than one in twenty is too many."""


def non_finite(log: Log, setup: RunSetup) -> CheckResult:
    """Check for losses and gradients that were NaN or infinite, which metrics.jsonl stores as null."""
    bad = {name: log.nulls(name) for name in _ALWAYS_NUMBERS if log.nulls(name)}
    if log.nulls("grad_norm") > _SKIPPED_STEPS * max(1, log.num_events):
        bad["grad_norm"] = log.nulls("grad_norm")
    if bad:
        evidence = tuple(Evidence(name, f"null in {nulls} of {log.num_events} events") for name, nulls in bad.items())
        what = f"{' and '.join(bad)} {'were' if len(bad) > 1 else 'was'} NaN or infinite: such steps ruin the weights"
        norm = rounded(setup.number("max_grad_norm", 1.0) / 2 or 0.5)  # 0 is no limit
        fixes = (*_rate(log, setup, 1 / 3), Fix(f"trainer.args.max_grad_norm={norm}", "limits the size of a step"))
        return Finding("", "serious", what, evidence, 0, log.step, fixes)
    if not log.num_events:
        return SkippedCheck("the run has no log events")
    return PassedCheck(f"losses and gradients were finite in {log.num_events} log events")


_HALF, _NEARLY_ALL = 0.5, 0.9
_PENALTY = Fix("truncation=eos_penalty", "a truncated completion pays a penalty")


def _roomier(setup: RunSetup) -> Fix:
    return Fix(f"trainer.args.max_completion_length={2 * setup.limit}", "gives completions room to end")


def no_deviation(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether in most groups all completions have the same total, which gives no gradient."""
    curve = log.curve("frac_reward_zero_std")
    if not len(curve) and setup.has_critic:
        # It logs exactly 0 for a round all of whose advantages were rounding errors.
        spread, mean = log.curve("ppo/advantages_std"), log.curve("ppo/advantages_mean")
        if few := spread.too_few(1):
            return few
        is_dead = (spread.values == 0.0) & (mean.values[: len(spread)] == 0.0)
        share = float(is_dead.mean())
        if not share:
            return PassedCheck(f"each of {len(spread)} rounds had advantages")
        severity: Severity = "serious" if share >= _NEARLY_ALL else "warning" if share >= _HALF else "note"
        what = f"in {int(is_dead.sum())} of {len(spread)} rounds every advantage was 0, so they taught nothing"
        cut = log.curve("rewards/truncation/fraction")
        fixes: list[Fix] = []
        policy = policy_named(setup.truncation)
        if (policy.needs_critic or policy.excludes) and cut.first(share).mean == 1.0:
            what += "; every completion was truncated, and the scores of truncated completions do not count"
            fixes = [_roomier(setup), _PENALTY]
        return spread.finding(severity, what, fixes, spread.evidence(), *([cut.evidence()] if fixes else []))
    if few := curve.too_few(ENOUGH):
        return few
    late = curve.last(LATE)
    if late.mean < _HALF:
        return PassedCheck(f"groups without deviation: {late.on_average()}")
    total, spread = log.curve(TOTAL), log.curve("reward_std")
    can_tell = len(total) >= ENOUGH and len(spread) > 0
    rose = can_tell and total.last(0.2).mean > total.first(0.2).mean + spread.first(0.2).mean
    severity = "note" if rose else "serious" if late.mean >= _NEARLY_ALL else "warning"
    what = f"in {late.mean:.0%} of the groups all completions have the same total, so they teach the policy nothing"
    what += "; the total rose before, so the task may be learned" if rose else ""
    fixes = [_warmer(setup, "makes completions differ more")]
    group, evaluates = int(setup.number("num_generations", 8)), setup.args.get("eval_strategy", "no") != "no"
    batches = ("train", "eval") if evaluates and not setup.args.get("num_generations_eval") else ("train",)
    if all(setup.number(f"per_device_{batch}_batch_size", 8) % (2 * group) == 0 for batch in batches):
        fixes.insert(0, Fix(f"trainer.args.num_generations={2 * group}", "larger groups are less often all equal"))
    beside = [total.evidence()] if len(total) else []
    return late.finding(severity, what, fixes, curve.evidence(late.on_average()), *beside)


_WINDOWS = (1.0, 0.75, 0.5)
"""The final shares of a run that are searched for a decline, because its beginning is unknown."""
_WORTH = 0.1
"""In standard deviations of the rows: a smaller decline may be real but does not matter."""


def overoptimised(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Check whether a metric that is only watched falls while the trained one rises.

    It watches a reward of weight 0, an evaluation's total, the loss on held-out rows (Gao et al., arXiv 2210.10760).
    """
    total = log.curve(TOTAL)
    weightless = [name for name in log.rewards() if log.weight(name) == 0.0]
    pairs = [(log.curve(f"rewards/{name}/mean"), total, 1.0) for name in weightless]
    for prefix in evaluation_sets(log.names()).values():
        held_out = log.curve(f"{prefix}{SAMPLED}/total", f"{prefix}{GREEDY}/total", f"{prefix}reward")
        if len(held_out):
            pairs.append((held_out, total, 1.0))
        elif len(loss := log.curve(f"{prefix}loss")):
            pairs.append((loss, log.curve("loss"), -1.0))
    if not pairs:
        yield SkippedCheck("the run watches no metric: it has no reward of weight 0 and no evaluation")
    for watched, trained, sign in pairs:
        if few := watched.too_few(ENOUGH_FOR_TREND if sign > 0 and "eval_" not in watched.metric else ENOUGH):
            yield few
            continue
        # The deviation of single rows in the watched metric if logged; for a loss, its own size.
        name = watched.metric.removesuffix("/mean")
        spread = log.curve(f"{name}/std", "reward_std") if sign > 0 else watched
        fall = _fall(watched, trained, sign, spread.mean if len(spread) else 0.0)
        if fall is None:
            yield watched.passed()
            continue
        verb, other = ("falls", "rises") if sign > 0 else ("rises", "falls")
        first, _ = fall.first_and_last
        what = f"{watched.metric} {verb} from step {first} on while {trained.metric}, which is trained on, {other}"
        _, best_step = Window().best(watched, more_is_better=sign > 0)
        stop = Fix(f"trainer.args.max_steps={max(1, int(best_step))}", "ends the run at its best step")
        fixes = _closer_and_slower(log, setup, stop, kl_coef=0.1)
        evidence = watched.evidence(fall.from_to()), trained.evidence()
        yield fall.finding("serious", what, fixes, *evidence, subject=watched.metric)


def _fall(watched: Curve, trained: Curve, sign: float, scale: float) -> Curve | None:
    """Return the longest final part of a curve that got worse while the trained metric did not, or None."""
    for share in _WINDOWS:
        part = watched.last(share)
        line = part.times(sign).trend()
        if line is None or not line.falls(SURE / len(_WINDOWS)) or -line.change < _WORTH * scale:
            continue
        is_inside = trained.steps >= part.steps[0]
        beside = Curve(trained.steps[is_inside], trained.values[is_inside], trained.metric).times(sign)
        if len(beside) >= ENOUGH and beside.last(0.3).mean > beside.first(0.3).mean:
            return part
    return None


_LITTLE = 0.2
"""In standard deviations of the rows: a total whose whole interval is below this has not been learned."""
_FLAT = 0.05
_LITTLE_LOSS = 0.02
_SIGMAS = 5.0  # in standard errors from sampling alone, which exclude the policy's own fluctuation


def learning(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the total rose (the loss fell), as far as the noise lets one say."""
    has_rewards = bool(log.rewards())
    curve, sign = (log.curve(TOTAL), 1.0) if has_rewards else (log.curve("loss"), -1.0)
    if early := curve.too_few(ENOUGH_FOR_TREND) or log.too_early():
        return early
    if has_rewards and any(log.weight(name) is None for name in log.rewards()):
        return SkippedCheck("a reward's weight changes in the run, so the total does not show what is learned")
    spread = log.curve("reward_std")
    scale = (spread.mean if len(spread) else 0.0) if has_rewards else abs(curve.first(0.1).mean)
    little = (_LITTLE if has_rewards else _LITTLE_LOSS) * scale
    line = curve.times(sign).trend()
    thirds = curve.means(3)
    gain = sign * (thirds[-1] - thirds[0])
    clear = max(1.5 * little, _SIGMAS * scale * _error_of_sampling(log, len(curve)))
    # The curve may bend too much for a line, and a fast rise within the first third is no scatter.
    if gain > max(little, _SIGMAS * _error_of_thirds(curve)) or (has_rewards and gain > clear):
        return curve.passed()
    if has_rewards and gain < -clear:
        return curve.finding("serious", f"the total gets worse: {curve.from_to()}", _rate(log, setup, 1 / 3))
    if line is None:
        return SkippedCheck(f"{curve.metric}: {curve.from_to()}; it is too noisy to show a trend")
    low, high = line.interval(_FLAT)
    name, better = ("the total", "rise") if sign > 0 else ("the loss", "fall")
    bounds = sorted((sign * low, sign * high))
    shown = curve.evidence(f"{curve.from_to()}; the change is between {bounds[0]:.2g} and {bounds[1]:.2g}")
    if line.falls(SURE) and -line.change > little:
        what = f"{name} gets worse: {curve.from_to()}"
        return curve.finding("serious", what, _rate(log, setup, 1 / 3), shown)
    if low > 0.0:
        return curve.passed()
    if high < little:
        what = f"{name} does not {better}: {curve.from_to()}; the change is smaller than {little:.2g}"
        debug = "overfit" if has_rewards else "overfit_rows"
        single = Fix(f"debug={debug}", "shows whether the model can learn a single batch")
        return curve.finding("serious", what, [*_rate(log, setup, 3.0), single], shown)
    return SkippedCheck(f"{curve.metric}: {curve.from_to()}; the change may be noise")


def _error_of_thirds(curve: Curve) -> float:
    """Return the standard error of the difference of the last and the first third's means, by their own scatter."""
    last, first = curve.last(1 / 3).values, curve.first(1 / 3).values
    return float(np.sqrt(last.var() / len(last) + first.var() / len(first)))


def _error_of_sampling(log: Log, num_events: int) -> float:
    """Return the standard error of the difference of two thirds' means from sampling, in deviations of a row."""
    calls = [log.curve(f"rewards/{name}/{what}") for name in log.rewards() for what in ("calls", "calls_saved")]
    rows = max((curve.mean for curve in calls if len(curve)), default=1.0)
    return float(np.sqrt(2.0 / max(1.0, rows * num_events / 3)))


_FAR = 1.0
"""Nats per token: the policy gives each of its tokens e times the reference's probability. Runs of
docs/reference/studies.md that keep their gold reward stay below 0.6; runs that lose it end at 1 to 3.5.
"""
_FASTER = 2.0
"""The last of three thirds gains twice the previous level, and twice the gain of the second third. A KL that grows
linearly gains the same in each third; under a penalty, or as a random walk, it gains less and less.
"""
_NOT_NOTHING = 0.2


def kl(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the per-token KL from the reference is large or grows faster and faster."""
    curve = log.curve("kl/k1_policy_ref", "kl")
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


def _closer_and_slower(log: Log, setup: RunSetup, *between: Fix, kl_coef: float = 0.05) -> list[Fix]:
    """Return a KL penalty three times as large (or `kl_coef`; 0.04 for a group), `between`, and a third of the rate."""
    reason, closer = "a larger KL penalty keeps the policy closer to the reference", list[Fix]()
    if setup.has_critic:
        closer = [Fix(f"kl.coef={rounded(max(kl_coef, 3.0 * setup.number('kl.coef', 0.0)))}", reason)]
    elif setup.trainer in ("grpo", "rloo"):
        closer = [Fix(f"trainer.args.beta={rounded(max(0.04, 3.0 * setup.number('beta', 0.0)))}", reason)]
    return [*closer, *between, *_rate(log, setup, 1 / 3)]


def _rate(log: Log, setup: RunSetup, factor: float) -> list[Fix]:
    """Return a multiple of the learning rate, if it was configured or logged."""
    rate = factor * setup.number("learning_rate", log.largest("learning_rate"))
    reason = f"takes {'smaller' if factor < 1 else 'larger'} steps"
    return [Fix(f"trainer.args.learning_rate={rounded(rate)}", reason)] if rate > 0.0 else []


def _warmer(setup: RunSetup, reason: str) -> Fix:
    """Return a temperature that is a fifth higher."""
    return Fix(f"trainer.args.temperature={rounded(1.2 * setup.number('temperature', 1.0))}", reason)


_GROWTH, _WORTH_TELLING = 0.1, 0.15


def truncation(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether half of the completions are truncated, more and more of them, or all are empty (EOS alone)."""
    curve = log.curve("rewards/truncation/fraction", "completions/clipped_ratio")
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
        what = f"more and more completions are truncated: {line.start:.0%} -> {line.start + line.change:.0%}"
    else:
        return PassedCheck(f"truncated: {curve.from_to()}")
    severity: Severity = "serious" if late.mean >= _NEARLY_ALL else "warning"
    fixes = [_roomier(setup)]
    if setup.truncation == "none":
        fixes.append(_PENALTY)
    elif policy_named(setup.truncation).needs_critic:
        fixes.append(Fix("truncation.mode=replace", "a truncated completion then gets only the critic's value"))
    return curve.finding(severity, what, fixes)


_BY_HALF = 0.5
_EXCUSE = 0.15  # of the deviation of a reward's rows: a rise of its mean by more excuses a drift


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
    risen = []
    for name in log.rewards():
        thirds, spread = log.curve(f"rewards/{name}/mean").means(3), log.curve(f"rewards/{name}/std")
        if len(thirds) == 3 and len(spread) > 0 and thirds[-1] - thirds[0] > _EXCUSE * spread.mean > 0.0:
            risen.append(name)
    if risen:
        return curve.passed(f"; {' and '.join(risen)} rose meanwhile")
    direction = "longer" if relative > 0 else "shorter"
    what = f"completions became {abs(relative):.0%} {direction}, but no reward rose meanwhile"
    overlong = Fix("truncation=soft_overlong", "makes the last tokens before the limit cost more and more")
    return curve.finding("warning", what, [*([overlong] if relative > 0 else []), *_closer_and_slower(log, setup)])


_COLLAPSED = 0.1
_HARDLY = 0.05


def entropy(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the entropy fell to a tenth and the total did not rise: the policy is certain but wrong."""
    curve = log.curve("ppo/entropy", "entropy")
    if few := curve.too_few(ENOUGH_FOR_TREND):
        return few
    start, end = curve.first(0.1).mean, curve.last(0.1).mean
    total = log.curve(TOTAL)
    if end > _COLLAPSED * start:
        return curve.passed()
    if len(total) < ENOUGH:
        return SkippedCheck(f"{curve.metric} fell to {end:.2g}, but no total is logged to compare it with")
    spread = log.curve("reward_std")
    scale = spread.first(0.2).mean if len(spread) else 0.0
    gain = total.last(0.2).mean - total.first(0.2).mean
    line = total.trend()
    if gain > max(_HARDLY, 0.2 * scale) or (line is not None and line.rises(SURE) and gain > 0.1 * scale):
        return curve.passed("; the total rose meanwhile")
    what = f"the policy stopped exploring: its entropy fell from {start:.2g} to {end:.2g}, but the total did not rise"
    varied = [_warmer(setup, "samples more varied completions")] if setup.trainer != "ppo" else []
    fixes = [*varied, *_closer_and_slower(log, setup)]
    return curve.finding("serious", what, fixes, curve.evidence(), total.evidence())


_TOO_MUCH = 0.3
"""Above the usual 0.1 to 0.2 of PPO's papers and implementations: a third of the tokens have no gradient."""


def clipping(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether many updates are clipped, or none ever is although rollouts are reused."""
    curve = log.curve("ppo/clip_fraction", "clip_ratio/region_mean")
    if few := curve.too_few(ENOUGH):
        return few
    late = curve.last(LATE)
    reuses = setup.number("num_iterations", 1.0) > 1.0
    if late.mean > _TOO_MUCH:
        what = f"{late.mean:.0%} of the tokens are outside the clip range and give no gradient"
        once = [Fix("trainer.args.num_iterations=1", "uses every rollout once")] if reuses else []
        fixes = [*_rate(log, setup, 1 / 3), *once]
        return late.finding("warning", what, fixes, curve.evidence(late.on_average()))
    if float(curve.values.max()) > 0.0 or not reuses:
        return PassedCheck(f"{curve.metric}: {late.on_average()}")
    if (early := log.too_early()) or (early := curve.too_few(ENOUGH_FOR_TREND)):
        return early
    what = "no update is clipped although rollouts are reused: the policy hardly changes"
    return curve.finding("note", what, _rate(log, setup, 3.0), curve.evidence(curve.on_average()))


_MOSTLY = 0.8


def explained_variance(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the critic is worse than a constant in four of five rounds of the run's second half.

    Every critic is at first; one whose explained variance rises is learning.
    """
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
    larger = Fix(f"critic.learning_rate={rounded(3 * rate) if rate > 0 else '1e-4'}", "lets the critic learn faster")
    steps = max(32, round(2 * setup.number("critic.warmup_steps", 0)))
    warmup = Fix(f"critic.warmup_steps={steps}", "trains the critic alone at first")
    return late.finding("warning", what, [larger, warmup], curve.evidence())


_TWICE = 2.0
_MORE_THAN_RETURNS = 1.2


def value_loss(log: Log, setup: RunSetup) -> CheckResult:
    """Check whether the critic's loss doubled since its minimum, and outgrew the variance of the returns."""
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
    return curve.finding("warning", what, fixes, curve.evidence(), *beside)
