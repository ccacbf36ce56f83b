"""Call every reward function on one row before torch is loaded, in a fork that can be killed."""

from __future__ import annotations

import inspect
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.errors import RewardError, RlhfError, UserError, with_causes
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.reward_components import KEEP_TIME, StateOfTrainer, component, timeout_of
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.process import die_with
from rlhf_cli.rewards.stack.reward_functions import resolve, source_file
from rlhf_cli.rewards.stack.reward_stack import RewardStack

_TRIAL_S = 20.0
_LATE = "no answer within"
_ANSWERS = ("answer", "solution", "ground_truth", "target")
_passed: set[str] = set()
"""The calls that passed in this process: the jobs of a sweep make the same ones."""


def trial_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield what each function does wrong with the first row; only note one that is late or may fail (`on_error`).

    It gets a group of completions, at least two: the row's answer, or "1", as text or as a message. Their token ids are
    the text's bytes.
    Reward models and functions that ask a server or run code are not called, nor are those with `trial: false`.
    """
    rows, torch = context.sources[0].rows if context.sources else None, sys.modules.get("torch")
    if not rows or "prompt" not in rows.column_names or (torch is not None and torch.cuda.is_initialized()):
        return
    row = dict(rows[0])
    text = next((str(row[name]) for name in _ANSWERS if isinstance(row.get(name), str | int | float)), "1")
    told = text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
    columns = {name: one for name, one in row.items() if name not in ("prompt", "completion")}
    columns |= {"prompts": row["prompt"], "completions": told, "completion_ids": list(text.encode())}
    num_rows = max(2, experiment.trainer.whole("num_generations") or 0)  # a reward may compare those of a group
    for name, reward in experiment.rewards.items():
        called = repr((reward.fn, reward.args, reward.isolate, columns))
        if not reward.trial or reward.fn is None or reward.fn.startswith(KEEP_TIME) or called in _passed:
            continue
        limit_s = min(timeout_of(reward) or _TRIAL_S, _TRIAL_S)
        if (failure := _in_fork(name, reward, columns, num_rows, limit_s)) is None:
            _passed.add(called)
            continue
        (got, place), what = failure, f"the reward {name!r} did not score the first row of the data"
        is_late = got.startswith(_LATE) and limit_s == _TRIAL_S
        if is_late or reward.on_error != "raise" or experiment.launch.slurm is not None:
            context.notices.append(Notice("rewards", f"{what}, with the completion {text!r:.40}: {got}{place}"))
            continue
        yield RewardError(
            what,
            where=composed.origins.where(f"rewards.{name}.fn") + place,
            got=got,
            expected=f"a number or None for each completion; they are {text!r:.60} here",
            advice=f"rewards.{name}.trial=false leaves this call out, if it is possible in the run only",
        )


def _in_fork(
    name: str, reward: Reward, columns: dict[str, object], num_rows: int, limit_s: float
) -> tuple[str, str] | None:
    """Return the failure of the call and its place in the user's file, None if it passed; it prints nothing."""
    from rlhf_cli.rewards.stack import calling  # noqa: F401  imported once, and not by each fork

    parent, (receive, send) = os.getpid(), os.pipe()
    if (pid := os.fork()) == 0:
        with suppress(BaseException):
            os.setsid()
            die_with(parent)
            for stream in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            os.write(send, json.dumps(_failure(name, reward, columns, num_rows, limit_s)).encode())
        os._exit(0)
    os.close(send)
    try:
        is_said = select.select([receive], [], [], limit_s + 2)[0]
        said = os.read(receive, 1 << 16) if is_said else json.dumps([f"{_LATE} {limit_s:g} s", ""])
    finally:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # with the processes that it has started
        os.waitpid(pid, 0)
        os.close(receive)
    return tuple(found) if (found := json.loads(said or '["its process died", ""]')) else None


def _failure(
    name: str, reward: Reward, columns: dict[str, object], num_rows: int, limit_s: float
) -> tuple[str, str] | None:
    function = resolve(str(reward.fn), reward.args, where="fn")
    stack = RewardStack([replace(component(name, reward, function), gates=(), on_error="raise", timeout_s=limit_s)])
    stack.decode = lambda ids, **_: bytes(ids).decode(errors="replace")
    batch: dict[str, object] = {column: [one] * (1 if reward.isolate else num_rows) for column, one in columns.items()}
    if not reward.isolate:
        batch |= {"log_extra": lambda column, values: None, "log_metric": lambda name, value: None}
        batch["trainer_state"] = StateOfTrainer(0, 1)
    try:
        stack.evaluate(**batch)
    except RlhfError as error:
        file, own = source_file(str(reward.fn)), inspect.unwrap(getattr(function, "func", function))
        frames = [frame for one in with_causes(error) for frame in traceback.extract_tb(one.__traceback__)]
        lines = [frame.lineno for frame in frames if file is not None and frame.filename == str(file)]
        code = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
        line = lines[-1] if lines else getattr(code, "co_firstlineno", 1)
        got = f"{error.what}: {error.got}" if isinstance(error, RewardError) else str(error.got)
        return f"{got:.300}", f" ({file.name}:{line})" if file is not None else ""
    return None
