"""Describe a run's workload in lines: batch, steps, completions, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.plan.workload_counts import Checkpoints, Evaluations, Workload
from rlhf_cli.runs.disk_space import size

_WHEN_READ = "known when the data is read"


def workload_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (name, line) for the workload of a plan."""
    work = plan.workload
    if plan.stage is not None:
        yield "batch", plan.stage.describe()
        yield "steps", plan.stage.describe_steps()
        if work.rows is not None:
            yield "in all", _learned(work)
    if plan.batches is not None:
        batches = plan.batches
        yield "batch", batches.describe()
        yield "steps", _steps(work, f"{batches.accumulation} x {batches.per_device} completions a device each")
        if work.completions is not None:
            yield "in all", _generated(work)
    evaluations = plan.evaluations
    if evaluations is not None:
        yield "evaluation", _evaluated(evaluations)
    else:
        kept = f"; {plan.num_held_out} rows are held out, for `rlhf eval`" if plan.num_held_out else ""
        yield "evaluation", f"none in training{kept}"
    yield "checkpoints", "none, the model at the end alone" if plan.checkpoints is None else _saved(plan.checkpoints)


def _steps(work: Workload, each: str) -> str:
    """Return `320 = 20 rounds x 16, ...`: optimizer steps as rounds times steps per round."""
    assert work.steps_a_round is not None
    if work.steps is None or work.rounds is None:
        return f"{_WHEN_READ}, {_number(work.steps_a_round)} a round"
    if work.steps_a_round == 1:
        return f"{work.steps}, a round each; {each}"
    said = f"{work.steps} = {_count(work.rounds, 'round')} x {_number(work.steps_a_round)}; {each}"
    return said + ("" if work.rounds.is_integer() else "; the last round is not learned from whole")


def _generated(work: Workload) -> str:
    parts = [f"{work.completions} completions", f"{work.prompts} prompts"]
    said = " of ".join(parts)
    if work.epochs is not None:
        said += f" ({_number(work.epochs)} times the data)"
    if work.max_tokens is not None:
        said += f", {_tokens(work.max_tokens)} generated at most"
    if work.longest_prompt is not None:
        said += f"; the longest prompt has {_count(work.longest_prompt, 'token')}"
    return said


def _learned(work: Workload) -> str:
    said = f"{work.rows} rows"
    if work.max_tokens is not None:
        said += f", {_tokens(work.max_tokens)} at most"
    return said + (f"; the longest row has {_count(work.longest_row, 'token')}" if work.longest_row else "")


def _evaluated(found: Evaluations) -> str:
    said = found.every + _times(found.times)
    rows = f"{found.rows} rows" if found.rows is not None else "all held-out rows"
    return f"{said}: {rows}" + (f", {found.completions} completions" if found.completions is not None else "")


def _saved(found: Checkpoints) -> str:
    said = found.every + _times(found.times)
    if found.space is None:
        return said + "; how large is known when the model is here"
    at_once = f", at most {found.space.copies} at a time" if found.space.copies else ""
    return f"{said}: {size(found.space.checkpoint)} each{at_once}; the model at the end {size(found.space.model)}"


def _times(number: int | None) -> str:
    if number is None:
        return ""
    return ", once" if number == 1 else f", {number} times"


def _count(number: float, noun: str) -> str:
    return f"{_number(number)} {noun}{'' if number == 1 else 's'}"


def _number(number: float) -> str:
    return f"{number:.4g}" if number < 10000 else f"{number:.0f}"


def _tokens(number: int) -> str:
    """Return `61 thousand tokens`, rounded up, because it follows "at most"."""
    for unit, name in ((10**9, " thousand million"), (10**6, " million"), (10**3, " thousand")):
        if number >= 10 * unit:
            return f"{-(-number // unit)}{name} tokens"
    return f"{number} tokens"
