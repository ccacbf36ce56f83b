"""Check where the time went: whether a phase takes so long that a cheaper setting is worth it."""

from __future__ import annotations

from collections.abc import Iterator
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
_LIMITS = {"generation": 0.7, "saving": 0.1, "logging": 0.1, "evaluation": 0.3, "waiting": 0.2, "rest": 0.3}
"""Map phase -> the share of the time above which it is a finding."""
_RARER = {"saving": ("save_steps", 100), "logging": ("logging_steps", 1), "evaluation": ("eval_steps", 1)}
"""Map phase -> the argument that says how often it happens, and its default."""


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
        limit, suggested = _LIMITS[key], _fixes(key, share, setup)
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


def _fixes(key: str, share: float, setup: RunSetup) -> Iterator[Fix]:
    """Yield what makes a phase shorter or rarer; `key` is the phase, or a reward's name."""
    if key in _RARER:
        argument, default = _RARER[key]
        now = setup.number(argument, default if key != "evaluation" else setup.number("logging_steps", default))
        if now >= 1:  # below that it is a share of the steps
            yield Fix(f"trainer.args.{argument}={int(now) * ceil(share / _AIM)}", f"so that it takes about {_AIM:.0%}")
    elif key == "generation":
        if setup.may_use_vllm:
            yield Fix("launch.rollout=vllm", "on a GPU generates several times as fast")
        yield Fix(f"trainer.args.max_completion_length={max(1, setup.limit // 2)}", "the longest row ends a batch")
    else:
        yield Fix("profile=trace", "a trace of a few steps shows what it is")


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
    reason = (
        "in a process of its own, beside the other rewards; written as `async def` it waits for all its rows at once"
    )
    yield Fix(f"rewards.{name}.isolate=true", reason)
