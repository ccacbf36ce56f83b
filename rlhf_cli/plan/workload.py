"""Counts the totals of a run: rounds, prompts, completions, maximum tokens, evaluations, checkpoints."""

from __future__ import annotations

import math

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.plan.checkpoint_space import checkpoint_space
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.memory.estimate import RowLengths
from rlhf_cli.plan.run_plan import Checkpoints, Evaluations, Workload


def workload(experiment: Experiment, known: Known, lengths: RowLengths | None) -> Workload:
    """Return the totals of a run. A round whose last steps are not taken still counts as generated in full."""
    batches, stage, num_rows = known.batches, known.stage, known.num_rows
    longest = (lengths.prompt or None, lengths.row or None) if lengths is not None else (None, None)
    if batches is None:
        if stage is None:
            return Workload()
        rows = stage.rows
        limit = _whole(experiment, known, "max_length")
        is_packed = _value(experiment, known, "packing") is True
        row = limit if is_packed else min(filter(None, (longest[1], limit)), default=None)
        tokens = rows * row if rows is not None and row is not None else None
        return Workload(
            stage.steps,
            num_rows,
            rows=rows,
            epochs=stage.epochs,
            max_tokens=tokens,
            longest_prompt=None,
            longest_row=row,
        )
    steps_a_round = batches.steps_per_generation * batches.num_iterations / batches.accumulation
    if batches.steps is None:
        return Workload(None, steps_a_round=steps_a_round, longest_prompt=longest[0])
    rounds = batches.steps / steps_a_round
    begun = math.ceil(rounds)
    completions, prompts = begun * batches.completions_a_round, begun * batches.prompts_a_round
    answer = _whole(experiment, known, "max_completion_length")
    return Workload(
        batches.steps,
        rounds=rounds,
        steps_a_round=steps_a_round,
        prompts=prompts,
        completions=completions,
        epochs=prompts / num_rows if num_rows else None,
        max_tokens=completions * answer if answer is not None else None,
        longest_prompt=longest[0],
    )


def evaluations(experiment: Experiment, known: Known) -> Evaluations | None:
    """Return how often and on how many rows a run is evaluated; None if it is not evaluated."""
    strategy, on_start = _value(experiment, known, "eval_strategy"), _value(experiment, known, "eval_on_start")
    if strategy in (None, "no", False):
        return None
    every, times = _how_often(experiment, known, str(strategy), "eval_steps")
    delay = _value(experiment, known, "eval_delay")
    if isinstance(delay, int | float) and delay > 0:
        every += f", from {'epoch' if strategy == 'epoch' else 'step'} {delay:g} on"
    if times is not None and on_start is True:
        times += 1
    rows, completions = known.num_held_out, None
    if rows is not None and experiment.trainer.row.generates:
        sampled = _whole(experiment, known, "num_generations_eval") or _whole(experiment, known, "num_generations") or 1
        completions = rows * (1 + sampled)  # one greedy, the others sampled as in training
    return Evaluations(every + (" and at the start" if on_start is True else ""), times, rows, completions)


def checkpoints(experiment: Experiment, known: Known) -> Checkpoints | None:
    """Return how often checkpoints are saved and their size; None if only the final model is saved."""
    strategy = str(_value(experiment, known, "save_strategy"))
    if strategy == "no":
        return None
    every, times = _how_often(experiment, known, strategy, "save_steps")
    return Checkpoints(every, times, checkpoint_space(experiment, known.steps))


def _how_often(experiment: Experiment, known: Known, strategy: str, key: str) -> tuple[str, int | None]:
    steps = known.steps
    if strategy == "epoch":
        epochs = known.stage.epochs if known.stage is not None else _epochs_of_rounds(experiment, known)
        if epochs is None:
            return "every epoch", None
        delay = _value(experiment, known, "eval_delay") if key == "eval_steps" else 0
        least = delay if isinstance(delay, int | float) else 0
        return "every epoch", sum(end >= least for end in [*range(1, math.ceil(epochs)), epochs])
    if strategy != "steps":
        return f"when it is {strategy}", None
    asked = _value(experiment, known, key)
    if key == "eval_steps" and not asked:
        asked = _value(experiment, known, "logging_steps")  # transformers' default
    if not isinstance(asked, int | float) or asked <= 0:
        return "every so many steps", None
    if asked < 1 and steps is None:
        return f"every {asked:.0%} of the run", math.ceil(1 / asked)
    interval = int(asked) if asked >= 1 else math.ceil((steps or 0) * asked)
    every = "every step" if interval == 1 else f"every {interval} steps and after the last"
    if steps is None:
        return every, None
    delay = _value(experiment, known, "eval_delay") if key == "eval_steps" else 0
    least = delay if isinstance(delay, int | float) else 0
    # The last step always counts (transformers' DefaultFlowCallback.on_step_end).
    at = {*range(interval, steps + 1, interval), steps}
    return every, sum(step >= least for step in at)


def _epochs_of_rounds(experiment: Experiment, known: Known) -> float | None:
    """Return the configured epochs of a trainer that generates, or None if `max_steps` ends the run."""
    max_steps, epochs = _whole(experiment, known, "max_steps"), _value(experiment, known, "num_train_epochs")
    return float(epochs) if not (max_steps and max_steps > 0) and isinstance(epochs, int | float) else None


def _value(experiment: Experiment, known: Known, name: str) -> object:
    return trl_args.setting(known.trainer, experiment.trainer.args, name)


def _whole(experiment: Experiment, known: Known, name: str) -> int | None:
    value = _value(experiment, known, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
