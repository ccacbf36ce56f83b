"""Counts the totals of a run: rounds, prompts, completions, maximum tokens, evaluations, checkpoints."""

from __future__ import annotations

import math

from rlhf_cli.plan.checkpoint_space import checkpoint_space
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.memory.estimate import RowLengths
from rlhf_cli.plan.run_plan import Checkpoints, Evaluations, Workload


def workload(context: CheckContext, lengths: RowLengths | None) -> Workload:
    """Return the totals of a run. A round whose last steps are not taken still counts as generated in full."""
    batches, stage, num_rows = context.batches, context.stage, context.num_rows
    prompt, row = (lengths.prompt or None, lengths.row or None) if lengths is not None else (None, None)
    if stage is not None:
        limit = context.whole("max_length")
        is_packed = context.setting("packing") is True
        row = limit if is_packed else min(filter(None, (row, limit)), default=None)
        tokens = stage.rows * row if stage.rows is not None and row is not None else None
        return Workload(stage.steps, rows=stage.rows, epochs=stage.epochs, max_tokens=tokens, longest_row=row)
    if batches is None:
        return Workload()
    steps_a_round = batches.steps_per_generation * batches.num_iterations / batches.accumulation
    if batches.steps is None:
        return Workload(None, steps_a_round=steps_a_round, longest_prompt=prompt)
    rounds = batches.steps / steps_a_round
    begun = math.ceil(rounds)
    completions, prompts = begun * batches.completions_a_round, begun * batches.prompts_a_round
    answer = context.whole("max_completion_length")
    return Workload(
        batches.steps,
        rounds=rounds,
        steps_a_round=steps_a_round,
        prompts=prompts,
        completions=completions,
        epochs=prompts / num_rows if num_rows else None,
        max_tokens=completions * answer if answer is not None else None,
        longest_prompt=prompt,
    )


def evaluations(context: CheckContext) -> Evaluations | None:
    """Return how often and on how many rows a run is evaluated; None if it is not evaluated."""
    strategy, on_start = context.setting("eval_strategy"), context.setting("eval_on_start")
    if strategy in (None, "no", False):
        return None
    every, times = _how_often(context, str(strategy), "eval_steps")
    delay = context.setting("eval_delay")
    if isinstance(delay, int | float) and delay > 0:
        every += f", from {'epoch' if strategy == 'epoch' else 'step'} {delay:g} on"
    if times is not None and on_start is True:
        times += 1
    rows, completions = context.num_held_out, None
    if rows is not None and context.experiment.trainer.row.generates:
        sampled = context.whole("num_generations_eval") or context.whole("num_generations") or 1
        completions = rows * (1 + sampled)  # one greedy, the others sampled as in training
    return Evaluations(every + (" and at the start" if on_start is True else ""), times, rows, completions)


def checkpoints(context: CheckContext) -> Checkpoints | None:
    """Return how often checkpoints are saved and their size; None if only the final model is saved."""
    strategy = str(context.setting("save_strategy"))
    if strategy == "no":
        return None
    every, times = _how_often(context, strategy, "save_steps")
    space = checkpoint_space(context.experiment, context.steps)
    if space is None:
        return Checkpoints(every, times)
    return Checkpoints(every, times, space.checkpoint, space.copies, space.model, space.total)


def _how_often(context: CheckContext, strategy: str, key: str) -> tuple[str, int | None]:
    """Return when something happens, in words, and how often; None if the data decides."""
    steps = context.steps
    delay = context.setting("eval_delay") if key == "eval_steps" else 0
    least = delay if isinstance(delay, int | float) else 0
    if strategy == "epoch":
        epochs = context.stage.epochs if context.stage is not None else _epochs_of_rounds(context)
        if epochs is None:
            return "every epoch", None
        return "every epoch", sum(end >= least for end in [*range(1, math.ceil(epochs)), epochs])
    if strategy != "steps":
        return f"when it is {strategy}", None
    asked = context.setting(key)
    if key == "eval_steps" and not asked:
        asked = context.setting("logging_steps")  # transformers' default
    if not isinstance(asked, int | float) or asked <= 0:
        return "every so many steps", None
    if asked < 1 and steps is None:
        return f"every {asked:.0%} of the run", math.ceil(1 / asked)
    interval = int(asked) if asked >= 1 else math.ceil((steps or 0) * asked)
    every = "every step" if interval == 1 else f"every {interval} steps and after the last"
    if steps is None:
        return every, None
    # The last step always counts (transformers' DefaultFlowCallback.on_step_end).
    return every, sum(step >= least for step in {*range(interval, steps + 1, interval), steps})


def _epochs_of_rounds(context: CheckContext) -> float | None:
    """Return the configured epochs of a trainer that generates, or None if `max_steps` ends the run."""
    max_steps, epochs = context.whole("max_steps"), context.setting("num_train_epochs")
    return float(epochs) if not (max_steps and max_steps > 0) and isinstance(epochs, int | float) else None
