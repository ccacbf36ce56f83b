"""Check the arithmetic of batches and what evaluations cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import real_number, setting, whole_number_or_none
from rlhf_cli.data.rows import describe_shared, prompt_keys, shared_prompts
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.plan.batches import BatchPlan, check_stage, plan_batches
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.workload import evaluations
from rlhf_cli.tables.modes import MAX_RELATIVE_ERROR


def check_kl_controller(experiment: Experiment, batches: BatchPlan, origins: Origins) -> list[ConfigError]:
    """Return an error if one round could change the coefficient by more than 100%, and so make it negative.

    The list is empty if the horizon is long enough or the coefficient is fixed.
    """
    kl = experiment.kl
    if kl is None or kl.controller == "fixed":
        return []
    rows = batches.completions_a_round
    if kl.controller.horizon > MAX_RELATIVE_ERROR * rows:
        return []
    return [
        ConfigError(
            "the horizon of the KL controller is shorter than a round: one could make the coefficient negative",
            where=origins.where("kl.controller.horizon"),
            got=f"{kl.controller.horizon} completions, and a round has {rows}",
            expected=f"more than {MAX_RELATIVE_ERROR * rows:g}; 20 rounds or more steer smoothly",
            hint=f"kl.controller.horizon={20 * rows}",
        )
    ]


def round_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Plan the rounds of a trainer that generates, and note if their split depends on the number of processes.

    Raises the errors of `plan_batches`.
    """
    if not experiment.trainer.row.generates:
        return
    known.batches = plan_batches(
        known.trainer,
        experiment.trainer.args,
        processes=known.processes,
        num_rows=known.num_rows,
        origins=composed.origins,
        baseline=experiment.trainer.baseline,
    )
    if known.processes > 1 and known.batches.accumulation < known.batches.steps_per_generation:
        text = (
            f"each of the {known.processes} processes shuffles its own rows of a round into minibatches (TRL's way), "
            "so another number of processes ends in slightly other weights"
        )
        known.notices.append(Notice("minibatches", text))
    yield from check_kl_controller(experiment, known.batches, composed.origins)


def stage_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Plan the steps of a trainer that trains on its rows, and yield what is wrong with them."""
    known.stage, problems = check_stage(
        experiment,
        known.trainer,
        known.columns,
        processes=known.processes,
        num_rows=known.num_rows,
        origins=composed.origins,
    )
    yield from problems


def shared_prompt_notice(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Note how many evaluation rows have a prompt that is also trained on, among the rows that were read."""
    yield from ()
    training = [seen.rows for seen in known.sources if seen not in known.held_out and seen.rows is not None]
    for seen in known.held_out:
        if seen.rows is None:
            continue
        trained_on = shared_prompts(seen.rows, training)
        if shared := sum(key in trained_on for key in prompt_keys(seen.rows)):
            text = describe_shared(shared, len(seen.rows))
            known.notices.append(Notice("data.eval", f"{text}; data.eval.fraction=0.1 in its place shares none"))


def evaluation_cost(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Note if evaluations generate more completions than training does. That is allowed, but may be a mistake."""
    yield from ()
    batches, rows = known.batches, known.num_held_out
    if batches is None or batches.steps is None or rows is None:
        return
    planned = evaluations(experiment, known)
    if planned is None or planned.times is None:
        return
    times = planned.times
    args = experiment.trainer.args
    sampled = whole_number_or_none(known.trainer, args, "num_generations_eval") or batches.num_generations
    evaluated = times * rows * (1 + sampled)  # one greedy, the others sampled as in training
    micro_batches = batches.steps_per_generation * batches.num_iterations
    rounds = math.ceil(batches.steps * batches.accumulation / micro_batches)
    trained = rounds * batches.completions_a_round
    if evaluated <= trained:
        return
    rarer = math.ceil(_every(experiment, known, batches.steps) * evaluated / trained)
    cheaper = [f"trainer.args.eval_steps={rarer}"] if times > 1 and _strategy(experiment, known) == "steps" else []
    cheaper += ["trainer.args.num_generations_eval=1"] if sampled > 1 else []
    text = f"{evaluated} completions ({times} x {rows} prompts x {1 + sampled}), and training {trained}: " + ", ".join(
        [*cheaper, "or fewer held-out rows"]
    )
    known.notices.append(Notice("evaluation", text))


def _every(experiment: Experiment, known: Known, steps: int) -> int:
    """Return the number of steps between evaluations. As in transformers, a number below 1 is a fraction of all steps,
    and the default is `logging_steps`.
    """
    args = experiment.trainer.args
    name = "logging_steps" if setting(known.trainer, args, "eval_steps") is None else "eval_steps"
    every = real_number(known.trainer, args, name)
    return max(1, math.ceil(every * steps) if every < 1 else int(every))


def _strategy(experiment: Experiment, known: Known) -> str:
    return str(setting(known.trainer, experiment.trainer.args, "eval_strategy"))
