"""Check where the time went: whether a phase takes so long that a cheaper setting is worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from rlhf_cli.analysis.diagnosis.finding import CheckResult, Finding, Fix, PassedCheck, RunSetup, SkippedCheck
from rlhf_cli.analysis.diagnosis.logged import Log, evidence, finding, too_few
from rlhf_cli.runs.phase_clock import TimeShares, phase_label, time_shares
from rlhf_cli.tables.metrics import ELAPSED, OF_REWARD, SHARE, SLOTS_PER_TOKEN
from rlhf_cli.text.json_values import section

_KIND = "time"
_WORTH_S = 60.0
"""Ignore phases shorter than this, whatever their share."""
_ENOUGH = 3
"""Minimum number of log events: the first step warms up caches."""
_AIM = 0.05
"""Target share after saving, evaluating or logging less often."""
_MOST_PADDING = 1.5


_Fixes = Callable[[TimeShares, RunSetup], Iterator[Fix]]


def time_spent(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield the phases that take too much of the time, and padding; only notes, because it may be intended."""
    shares = time_shares(log.names(SHARE), lambda name: [float(value) for value in log.curve(name).values])
    if shares is None:
        yield SkippedCheck(_KIND, f"{ELAPSED} is not logged: profile=off")
        return
    if few := too_few(_KIND, log.curve(ELAPSED), _ENOUGH):
        yield few
        return
    slow = [*(_slow_phase(key, shares, log, setup) for key in shares.shares), _padding(shares, log, setup)]
    if not any(slow):
        key, share = next(iter(shares.shares.items()))
        yield PassedCheck(_KIND, f"{phase_label(key)} takes most of the time: {share:.0%} of {shares.elapsed_s:.0f} s")
    yield from (one for one in slow if one is not None)


def _slow_phase(key: str, shares: TimeShares, log: Log, setup: RunSetup) -> Finding | None:
    name = key.removeprefix(OF_REWARD.removeprefix(SHARE))
    share, seconds = shares.shares[key], shares.seconds(key)
    if key in _LIMITS:
        limit, fixes = _LIMITS[key]
        suggested = fixes(shares, setup)
    elif name != key:
        limit, suggested = 0.3, _quicker_reward(name, setup)
    else:
        return None  # the purpose of the run
    if share < limit or seconds < _WORTH_S:
        return None
    calls = log.curve(f"rewards/{name}/seconds")
    beside = [evidence(calls, f"{calls.mean:.2g} s a call")] if name != key and len(calls) else []
    what = f"{phase_label(key)} takes {share:.0%} of the time"
    curve = log.curve(f"{SHARE}{key}")
    shown = evidence(curve, f"{share:.0%} of {shares.elapsed_s:.0f} s")
    return finding(_KIND, "note", what, curve, suggested, subject=key, shown=shown, beside=beside)


def _padding(shares: TimeShares, log: Log, setup: RunSetup) -> Finding | None:
    """Return a finding if much of the forward and backward passes is padding and they take most of the time."""
    of_passes = sum(shares.shares.get(key, 0.0) for key in ("forward", "backward", "old_logps", "reference_logps"))
    ratio = shares.slots_per_token
    if ratio is None or ratio < _MOST_PADDING or of_passes < 0.5 or of_passes * shares.elapsed_s < _WORTH_S:
        return None
    curve = log.curve(SLOTS_PER_TOKEN)
    what = f"{1 - 1 / ratio:.0%} of the token slots of the model's passes are padding"
    says = f"{ratio:.2f} slots for each real token, in passes that take {of_passes:.0%} of the time"
    fixes = [Fix("trainer.args.packing=true", "several short rows in one")] if setup.trainer == "sft" else []
    return finding(_KIND, "note", what, curve, fixes, subject="padding", shown=evidence(curve, says))


def _quicker_reward(name: str, setup: RunSetup) -> Iterator[Fix]:
    """Yield changes that reduce waiting for a reward: larger batches, more concurrency, its own process."""
    reward = setup.rewards.get(name, {})
    at_once = section(reward, "args").get("max_concurrency")
    if reward.get("model") is not None:
        size = reward.get("batch_size")
        rows = 4 * size if isinstance(size, int) else 64
        yield Fix(f"rewards.{name}.batch_size={rows}", "more rows a pass of the reward model")
        yield Fix(f"rewards.{name}.dtype=bfloat16", "half the bytes; where the device computes in it")
        return
    if isinstance(at_once, int):
        yield Fix(f"rewards.{name}.args.max_concurrency={4 * at_once}", "more requests under way at once")
    yield Fix(
        f"rewards.{name}.isolate=true",
        "in a process of its own, beside the other rewards; written as `async def` it waits for all its rows at once",
    )


def _shorter_generation(shares: TimeShares, setup: RunSetup) -> Iterator[Fix]:
    if setup.may_use_vllm:
        yield Fix("launch.rollout=vllm", "on a GPU generates several times as fast")
    yield Fix(f"trainer.args.max_completion_length={max(1, setup.limit // 2)}", "the longest row ends a batch")


def _rarer(argument: str, key: str, default: int) -> _Fixes:
    def changes(shares: TimeShares, setup: RunSetup) -> Iterator[Fix]:
        now = setup.number(argument, default)
        if now >= 1:  # below that it is a share of the steps
            rarer = int(now) * ceil(shares.shares[key] / _AIM)
            yield Fix(f"trainer.args.{argument}={rarer}", f"so that it takes about {_AIM:.0%}")

    return changes


def _fewer_rows(shares: TimeShares, setup: RunSetup) -> Iterator[Fix]:
    yield from _rarer("eval_steps", "evaluation", int(setup.number("logging_steps", 1)))(shares, setup)


def _look_closer(shares: TimeShares, setup: RunSetup) -> Iterator[Fix]:
    yield Fix("profile=trace", "a trace of a few steps shows what it is")


_LIMITS: dict[str, tuple[float, _Fixes]] = {
    "generation": (0.7, _shorter_generation),
    "saving": (0.1, _rarer("save_steps", "saving", 100)),
    "logging": (0.1, _rarer("logging_steps", "logging", 1)),
    "evaluation": (0.3, _fewer_rows),
    "waiting": (0.2, _look_closer),
    "rest": (0.3, _look_closer),
}
"""Map phase -> (the share of the time above which it is a finding, what to suggest)."""
