"""Check the arithmetic of batches and what evaluations cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.rows import describe_shared, prompt_keys, shared_prompts
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import ConfigError, DataError, UserError
from rlhf_cli.plan.batches import plan_batches, plan_stage
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.workload import evaluations, workload
from rlhf_cli.tables.kl_forms import MAX_RELATIVE_ERROR


def round_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Plan the rounds of a trainer that generates, and note if their split depends on the number of processes.

    Yield an error if one round could change an adaptive KL coefficient by more than 100%, and so make it negative.
    Raises the errors of `plan_batches`.
    """
    if not experiment.trainer.row.generates:
        return
    context.batches = batches = plan_batches(
        context.trainer,
        experiment.trainer.args,
        processes=context.processes,
        num_rows=context.num_rows,
        origins=composed.origins,
        baseline=experiment.trainer.baseline,
    )
    if context.processes > 1 and batches.accumulation < batches.steps_per_generation:
        text = (
            f"each of the {context.processes} processes shuffles its own rows of a round into minibatches (TRL's way), "
            "so another number of processes ends in slightly other weights"
        )
        context.notices.append(Notice("minibatches", text))
    kl, rows = experiment.kl, batches.completions_a_round
    if kl is not None and kl.controller != "fixed" and kl.controller.horizon <= MAX_RELATIVE_ERROR * rows:
        yield ConfigError(
            "the horizon of the KL controller is shorter than a round: one could make the coefficient negative",
            where=composed.origins.where("kl.controller.horizon"),
            got=f"{kl.controller.horizon} completions, and a round has {rows}",
            expected=f"more than {MAX_RELATIVE_ERROR * rows:g}; 20 rounds or more steer smoothly",
            hint=f"kl.controller.horizon={20 * rows}",
        )


def stage_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Plan the steps of a trainer that trains on its rows, and yield what is wrong with its columns."""
    row, num_rows, used = experiment.trainer.row, context.num_rows, tuple[str, ...]()
    if not row.learns_from:
        return
    if context.columns:
        from rlhf_cli.data.learnt_columns import learnt_columns

        try:
            used = learnt_columns(row, context.columns, text_field=str(context.setting("dataset_text_field") or "text"))
        except DataError as error:
            if experiment.data.world is not None:
                error.hint = " or ".join(f"data={world}" for world in with_columns(row.learns_from))
            yield error
    if row.splits_pairs and "chosen" in used and num_rows is not None:
        num_rows *= 2
    processes, origins = context.processes, composed.origins
    args = experiment.trainer.args
    context.stage = plan_stage(context.trainer, args, processes=processes, num_rows=num_rows, origins=origins)


def shared_prompt_notice(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note how many evaluation rows have a prompt that is also trained on, among the rows that were read."""
    training = [read.rows for read in context.sources if read not in context.held_out and read.rows is not None]
    for read in context.held_out:
        if read.rows is None:
            continue
        trained_on = shared_prompts(read.rows, training)
        if shared := sum(key in trained_on for key in prompt_keys(read.rows)):
            text = describe_shared(shared, len(read.rows))
            context.notices.append(Notice("data.eval", f"{text}; data.eval.fraction=0.1 in its place shares none"))


def evaluation_cost(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note if evaluations generate more completions than training does. That is allowed, but may be a mistake."""
    batches, planned = context.batches, evaluations(context)
    if batches is None or not batches.steps or planned is None or not planned.times or not planned.rows:
        return
    each = (planned.completions or 0) // planned.rows
    evaluated, trained = planned.times * planned.rows * each, workload(context, None).completions or 0
    if evaluated <= trained:
        return
    cheaper = ["trainer.args.num_generations_eval=1"] if each > 2 else []
    every = context.setting("eval_steps") or context.setting("logging_steps")  # below 1 a fraction of all steps
    if planned.times > 1 and context.setting("eval_strategy") == "steps" and isinstance(every, int | float):
        steps = math.ceil(every * batches.steps) if every < 1 else int(every)
        cheaper.insert(0, f"trainer.args.eval_steps={math.ceil(steps * evaluated / trained)}")
    text = f"{evaluated} completions ({planned.times} x {planned.rows} prompts x {each}), and training {trained}: "
    context.notices.append(Notice("evaluation", text + ", ".join([*cheaper, "or fewer held-out rows"])))
