"""Count the totals of a run: rounds, prompts, completions, maximum tokens, evaluations, checkpoints, bytes on disk.

The bytes leave out what is small beside the weights (tokenizer, rollouts, logs), so they are a lower bound. If not even
one checkpoint and the model fit, the run would fail midway, so it is refused.
"""

from __future__ import annotations

import math
from pathlib import Path

from rich.filesize import decimal as size

from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import RunError
from rlhf_cli.models.weight_shapes import DTYPE_BYTES, WeightShape, is_target, stored_shapes, tiny_shapes
from rlhf_cli.plan.batches import AnyPlan, RowLengths, StagePlan
from rlhf_cli.plan.checks.facts import DataFacts, Findings, Subject
from rlhf_cli.plan.run_plan import Checkpoints, Evaluations, Notice, Workload
from rlhf_cli.runs.checkpoint_folders import bytes_below, free_bytes

_ADAMS = ("None", "adamw_torch", "adamw_torch_fused", "adamw_anyprecision", "adamw_apex_fused")
_NOT_LINEAR = ("embed", "wte", "wpe", "lm_head", "norm", "score")
_ADAPTER_BYTES = 4  # PEFT trains adapters in float32, for every dtype of the model


def workload(trainer: Trainer, plan: AnyPlan, num_rows: int | None, lengths: RowLengths | None) -> Workload:
    """Return the totals of a run. A round whose last steps are not taken still counts as generated in full."""
    prompt, row = (lengths.prompt or None, lengths.row or None) if lengths is not None else (None, None)
    if isinstance(plan, StagePlan):
        limit = trainer.whole("max_length")
        row = limit if trainer.setting("packing") is True else min(filter(None, (row, limit)), default=None)
        own = trainer.whole(str(trainer.row.answers_up_to)) or 0  # tokens of an answer that it generates itself
        tokens = plan.rows * (row + own) if plan.rows is not None and row is not None else None
        return Workload(plan.steps, rows=plan.rows, epochs=plan.epochs, max_tokens=tokens, longest_row=row)
    steps_a_round = plan.steps_per_generation * plan.num_iterations / plan.accumulation
    if plan.steps is None:
        return Workload(None, steps_a_round=steps_a_round, longest_prompt=prompt)
    rounds = plan.steps / steps_a_round
    begun = math.ceil(rounds)
    completions, prompts = begun * plan.completions_a_round, begun * plan.prompts_a_round
    answer = trainer.whole("max_completion_length")
    return Workload(
        plan.steps,
        rounds=rounds,
        steps_a_round=steps_a_round,
        prompts=prompts,
        completions=completions,
        epochs=prompts / num_rows if num_rows else None,
        max_tokens=completions * answer if answer is not None else None,
        longest_prompt=prompt,
    )


def evaluations(trainer: Trainer, plan: AnyPlan, num_held_out: int | None) -> Evaluations | None:
    """Return how often and on how many rows a run is evaluated; None if it is not evaluated."""
    if not trainer.evaluates:
        return None
    strategy = trainer.setting("eval_strategy")
    is_repeated = strategy not in (None, "no", False)
    every, times = _how_often(trainer, plan, "eval") if is_repeated else ("", 0)
    if trainer.setting("eval_on_start") is True:
        every, times = f"{every}{' and ' * is_repeated}at the start", None if times is None else times + 1
    completions = None
    if num_held_out is not None and trainer.row.generates:
        sampled = trainer.whole("num_generations_eval") or trainer.whole("num_generations") or 1
        completions = num_held_out * (1 + sampled)  # one greedy, the others sampled as in training
    return Evaluations(every, times, num_held_out, completions)


def evaluation_notice(subject: Subject, plan: AnyPlan | None, data: DataFacts) -> Findings:
    """Yield a notice if the evaluations of a run generate more completions than its training."""
    trainer = subject.experiment.trainer
    if plan is None or (found := evaluations(trainer, plan, data.num_held_out)) is None:
        return
    trained, evaluated = workload(trainer, plan, data.num_rows, None).completions, found.completions
    if trained and evaluated and found.times and (total := found.times * evaluated) > trained:
        text = f"{total:,} completions in all, {total / trained:.1f} times the {trained:,} of training"
        fewer = "fewer rows (data.eval), trainer.args.eval_steps or trainer.args.num_generations_eval"
        yield Notice("evaluation", f"{text}; {fewer} make it shorter")


def checkpoints(subject: Subject, plan: AnyPlan) -> Checkpoints | None:
    """Return how often checkpoints are saved and their size; None if only the final model is saved."""
    trainer = subject.experiment.trainer
    if trainer.setting("save_strategy") == "no":
        return None
    every, times = _how_often(trainer, plan, "save")
    return Checkpoints(every, times, **checkpoint_space(subject, plan.steps))


def _how_often(trainer: Trainer, plan: AnyPlan, event: str) -> tuple[str, int | None]:
    """Return when a run is saved or evaluated, in words, and how often; None if the data or `eval_delay` decides."""
    steps, strategy = plan.steps, str(trainer.setting(f"{event}_strategy"))
    is_delayed = event == "eval" and bool(trainer.setting("eval_delay"))
    if strategy == "epoch":
        epochs: object = None  # max_steps ends the run
        if isinstance(plan, StagePlan):
            epochs = plan.epochs
        elif (trainer.whole("max_steps") or 0) <= 0:
            epochs = trainer.setting("num_train_epochs")
        return "every epoch", math.ceil(epochs) if isinstance(epochs, int | float) and not is_delayed else None
    asked = trainer.setting(f"{event}_steps")
    if event == "eval" and not asked:
        asked = trainer.setting("logging_steps")  # transformers' default
    if strategy != "steps" or not isinstance(asked, int | float) or asked <= 0:
        return f"when it is {strategy}", None
    if asked < 1 and steps is None:
        return f"every {100 * asked:g}% of the run", math.ceil(1 / asked)
    interval = int(asked) if asked >= 1 else math.ceil((steps or 0) * asked)
    every = "every step" if interval == 1 else f"every {interval} steps and after the last"
    if steps is None or is_delayed:
        return every, None
    # The last step always counts (transformers' DefaultFlowCallback.on_step_end).
    return every, len({*range(interval, steps + 1, interval), steps})


def checkpoint_space(subject: Subject, steps: int | None) -> dict[str, int]:
    """Return what a run of `steps` optimizer steps (None if the data decides) will write, as in Checkpoints. The result
    is empty if the size of the model is unknown: it is a hub id that is not on this machine.
    """
    experiment = subject.experiment
    model, critic, setting = experiment.model, experiment.critic, experiment.trainer.setting
    folder = subject.folder_below(model.path)
    shapes = stored_shapes(folder) if folder is not None else None
    if model.build is not None:
        shapes = tiny_shapes(model.build.hidden_size, model.build.num_layers)
    if shapes is None:
        return {}
    saved = weights = _bytes_of(shapes, DTYPE_BYTES.get(model.dtype if model.build is None else "auto"))
    if (lora := model.lora) is not None:  # two matrices per layer, (r, in) and (out, r) (arXiv 2106.09685)
        linear = [shape for shape in shapes if len(shape.shape) == 2]
        linear = [shape for shape in linear if not any(word in shape.name for word in _NOT_LINEAR)]
        if lora.target_modules != "all-linear":
            linear = [shape for shape in linear if is_target(shape.name.removesuffix(".weight"), lora.target_modules)]
        saved = float(_ADAPTER_BYTES * lora.r * sum(sum(shape.shape) for shape in linear))
    # Adam keeps two numbers for every trained weight, in the weight's dtype (arXiv 1412.6980, m and v).
    states = 2 if str(setting("optim")) in _ADAMS else 0
    checkpoint = saved if setting("save_only_model") else saved * (1 + states)
    if critic is not None and critic.share == "none":
        body = weights
        folder = subject.folder_below(critic.init) if critic.init != "policy" else None
        if folder is not None and (stored := stored_shapes(folder)) is not None:
            body = _bytes_of(stored)
        checkpoint += body * (1 + states)  # the critic's optimizer state is always written
        saved += body
    if setting("sync_ref_model"):
        checkpoint += weights
    # At once there are the checkpoints that are kept, the best and the newest among them, and the one that is written.
    least = 2 if setting("load_best_model_at_end") is True or setting("metric_for_best_model") is not None else 1
    strategy, limit, every = str(setting("save_strategy")), setting("save_total_limit"), setting("save_steps")
    numbers = [max(limit, least) + 1] if isinstance(limit, int) and limit > 0 else []
    if strategy == "steps" and steps and isinstance(every, int | float) and every > 0:
        numbers.append(math.ceil(steps / (every if every >= 1 else math.ceil(steps * every))))
    at_once = 0 if strategy == "no" else min(numbers, default=1)
    each, model_bytes = math.ceil(checkpoint), math.ceil(saved)
    found = {"checkpoint_bytes": each, "at_once": at_once, "model_bytes": model_bytes}
    return found | {"total_bytes": each * at_once + model_bytes}


def _bytes_of(shapes: list[WeightShape], number: float | None = None) -> float:
    """Return the bytes of weights, of `number` bytes each, or as they are stored."""
    return sum(math.prod(shape.shape) * (number or shape.element_bytes) for shape in shapes)


def space_problems(subject: Subject, steps: int | None) -> Findings:
    """Yield an error if the disk is too small, or a notice if the run fits only after freeing space.

    The checkpoints and models in the folder of a resumed run make room for new ones, so they count as free space. What
    to type instead is only what leads out: a resumed run stays on its disk, and one checkpoint has to fit anyway.
    """
    experiment, run, space = subject.experiment, subject.folder, checkpoint_space(subject, steps)
    if not space:
        return
    each, at_once, model, total = space.values()
    place = run or Path(experiment.run.root).expanduser().resolve()
    free = free_bytes(place)
    if run is not None:
        free += bytes_below(run / "checkpoints") + bytes_below(run / "model") + bytes_below(run / "critic")
    least = each * min(at_once, 1) + model
    checkpoints = "a checkpoint" if at_once == 1 else f"{at_once} checkpoints"
    parts = f"{checkpoints} of {size(each)} and the model, {size(model)}"
    ways = [] if run is not None else ["run.root=A_LARGER_DISK"]
    limit = experiment.trainer.setting("save_total_limit")
    if free >= least and at_once > 2 and limit != 1:  # one that is kept and one that is being written
        ways.append("trainer.args.save_total_limit=1")
    if at_once and not experiment.trainer.setting("save_only_model"):
        ways.append("trainer.args.save_only_model=true")
    if free < least:
        what, got = "the disk has no room for one checkpoint and the trained model", f"{free} bytes ({size(free)}) free"
        expected = f"at least {least} bytes ({size(least)}); {size(total)} for {parts}"
        yield RunError(what, where=str(place), got=got, expected=expected, hint=", or ".join(ways) or None)
    elif free < total:
        text = f"{size(free)} free at {place}, but {parts} need {size(total)}"
        yield Notice("disk", f"{text}: {', or '.join(ways) or 'make room'}")
