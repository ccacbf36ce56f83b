"""Check values of TRL's arguments, the packages they need, and the arithmetic of batches."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import EXPECT_AFRESH, Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.rows import describe_shared, prompt_keys, shared_prompts
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import ConfigError, DataError, UserError
from rlhf_cli.plan.batches import plan_batches, plan_stage
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.devices import runs_on_cpu
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.tables.trl_refusals import REFUSALS
from rlhf_cli.tables.trl_values import MAX_RELATIVE_KL_ERROR, RANGES

_ARGS = "trainer.args."
_OPTIMIZERS = ((re.compile(r"8bit|paged|ademamix|bnb"), "bitsandbytes"), (re.compile(r"_torch_(4|8)bit$"), "torchao"))
"""The package that transformers' Trainer imports for an optimizer whose name matches; the last match counts."""


def range_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for every argument whose value is out of range."""
    args, generates = experiment.trainer.args, experiment.trainer.row.generates
    fields = trl_args.fields_of(experiment.trainer.trl)
    for bounds in RANGES:
        value, key = args.get(bounds.name), _ARGS + bounds.name
        if not isinstance(value, int | float) or isinstance(value, bool) or value == bounds.also or bounds.holds(value):
            continue
        if bounds.strategy is not None and experiment.trainer.setting(bounds.strategy) != "steps":
            continue
        if bounds.name == "top_k" and value == -1 and experiment.launch.rollout.startswith("vllm"):
            continue  # -1 means all tokens in vLLM
        if bounds.name in fields and (generates or bounds.name != "temperature"):
            default = fields[bounds.name].default
            fits = isinstance(default, int | float) and bounds.holds(default)
            yield ConfigError(
                f"{key} is out of its range",
                where=composed.origins.where(key),
                got=value,
                expected=f"{bounds.in_words()}: {bounds.why}",
                hint=f"{key}={default}" if fits else f"~{key}",
            )


def contradictions(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for arguments that exclude each other: their libraries say so only when a run begins."""
    of, where, args = experiment.trainer.setting, composed.origins.where, experiment.trainer.args
    if args.get("generation_batch_size") is not None and args.get("steps_per_generation") is not None:
        key, what = f"{_ARGS}generation_batch_size", "generation_batch_size and steps_per_generation say the same thing"
        yield ConfigError(what, where=where(key), expected="one of them", hint=f"'~{key}'")
    saved, evaluated = of("save_strategy"), of("eval_strategy")
    if of("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy") and evaluated == "no":
        key, rows = f"{_ARGS}lr_scheduler_type", "" if experiment.data.eval is not None else " data.eval.fraction=0.1"
        hint = f"{_ARGS}eval_strategy=steps{rows}, or {key}=linear"
        yield ConfigError("this schedule looks at evaluations, and there are none", where=where(key), hint=hint)
    if of("load_best_model_at_end") is True and saved != "best":
        every, save_every = of("eval_steps") or of("logging_steps"), of("save_steps")
        if saved != evaluated:
            key, fits = ("save_strategy", evaluated) if saved == "no" else ("eval_strategy", saved)
            got = f"eval_strategy={evaluated}, save_strategy={saved}"
        elif saved == "steps" and isinstance(every, int) and isinstance(save_every, int) and save_every % max(every, 1):
            key, fits, got = "save_steps", every, f"saved every {save_every} steps, evaluated every {every}"
        else:
            return
        what = "the best checkpoint is looked for among those that were evaluated when they were saved"
        yield ConfigError(what, where=where(_ARGS + key), got=got, hint=f"{_ARGS}{key}={fits}")


def refused_combinations(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for every combination that a library refuses when it builds the trainer."""
    trainer, launch = experiment.trainer, experiment.launch
    losses, kl = trainer.setting("loss_type"), experiment.kl
    facts: dict[str, object] = {
        "losses": set(losses) if isinstance(losses, list) else {losses},
        "use_cpu": runs_on_cpu(launch),
        "uses_lora": experiment.model.lora is not None,
        "generates": trainer.row.generates,
        "beta": trainer.setting("beta") if kl is None else kl.coef,
    }
    fields = trl_args.fields_of(trainer.trl)
    for one in REFUSALS:
        if one.key in fields and one.holds(lambda name: facts[name] if name in facts else trainer.setting(name)):
            is_typed = one.key in trainer.args and one.key not in one.values
            yield ConfigError(
                f"{trainer.trl} refuses {_ARGS}{one.key}",
                where=composed.origins.where(_ARGS + one.key),
                got=repr(trainer.setting(one.key)),
                expected=one.why,
                hint=_ARGS + one.instead + f", or '~{_ARGS}{one.key}'" * is_typed,
            )


def typed_twice(_: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note every key that was typed with two different values; the last one counts."""
    values: dict[str, list[str]] = {}
    for override in composed.overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and not override.startswith("~") and override != EXPECT_AFRESH:
            values.setdefault(key, []).append(value)
    for key, typed in values.items():
        if len(set(typed)) > 1:
            text = f"{key} is typed {len(typed)} times, and the last counts: {key}={typed[-1]}"
            context.notices.append(Notice("typed", text))


def package_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for every required package that is not installed."""
    args, needed = experiment.trainer.args, list[tuple[str, str, str]]()  # package, key, hint
    for own in [package for pattern, package in _OPTIMIZERS if pattern.search(str(args.get("optim", "")))][-1:]:
        needed.append((own, "trainer.args.optim", f"pip install {own}, or trainer.args.optim=adamw_torch"))
    model, launch = experiment.model, experiment.launch
    if model.quantize is not None:
        needed.append(("bitsandbytes", "model.quantize", "pip install bitsandbytes, or model.quantize=null"))
    if model.lora is not None:
        needed.append(("peft", "model.lora", "pip install peft, or model.lora=null"))
    if (package := STRATEGIES[launch.strategy].package) is not None:
        instead = "ddp" if runs_on_cpu(launch) else "fsdp2"
        needed.append((package, "launch.strategy", f"pip install {package}, or launch.strategy={instead}"))
    if args.get("use_liger_kernel") is True:
        needed.append(("liger_kernel", "trainer.args.use_liger_kernel", "trainer.args.use_liger_kernel=false"))
    for name, reward in experiment.rewards.items():
        if str(reward.fn).startswith("trl.rewards.accuracy_rewards:"):
            needed.append(("math_verify", f"rewards.{name}.fn", "pip install 'rlhf-cli[math]'"))
        if str(reward.fn).startswith("rlhf_cli.rewards.reasoning_gym:"):
            needed.append(("reasoning_gym", f"rewards.{name}.fn", "pip install reasoning-gym==0.1.25"))
    if (track := experiment.track).mode != "none" and track.tracker != "wandb":
        hint = f"pip install 'rlhf-cli[{track.tracker}]', or track=wandb_offline, or track=none"
        needed.append((track.tracker, "track.tracker", hint))
    for package, key, hint in needed:
        if importlib.util.find_spec(package) is None:
            what = f"{key} needs {package}, which is not installed"
            yield ConfigError(what, where=composed.origins.where(key), hint=hint)


def round_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Plan the rounds of a trainer that generates, and note if their split depends on the number of processes.

    Yield an error if one round could change an adaptive KL coefficient by more than 100%, and so make it negative.
    Raises the errors of `plan_batches`.
    """
    context.batches = batches = plan_batches(
        experiment.trainer, processes=context.processes, num_rows=context.num_rows, origins=composed.origins
    )
    context.steps = batches.steps
    if context.processes > 1 and batches.accumulation < batches.steps_per_generation:
        text = (
            f"each of the {context.processes} processes shuffles its own rows of a round into minibatches (TRL's way), "
            "so another number of processes ends in slightly other weights"
        )
        context.notices.append(Notice("minibatches", text))
    kl, rows = experiment.kl, batches.completions_a_round
    if kl is not None and kl.controller != "fixed" and kl.controller.horizon <= MAX_RELATIVE_KL_ERROR * rows:
        yield ConfigError(
            "the horizon of the KL controller is shorter than a round: one could make the coefficient negative",
            where=composed.origins.where("kl.controller.horizon"),
            got=f"{kl.controller.horizon} completions, and a round has {rows}",
            expected=f"more than {MAX_RELATIVE_KL_ERROR * rows:g}; 20 rounds or more steer smoothly",
            hint=f"kl.controller.horizon={20 * rows}",
        )


def stage_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Plan the steps of a trainer that trains on its rows, and yield what is wrong with its columns and steps."""
    row, num_rows, used = experiment.trainer.row, context.num_rows, tuple[str, ...]()
    if row.learns_from:
        if context.columns:
            from rlhf_cli.data.learnt_columns import learnt_columns

            try:
                field = str(experiment.trainer.setting("dataset_text_field") or "text")
                used = learnt_columns(row, context.columns, text_field=field)
            except DataError as error:
                if experiment.data.world is not None:
                    error.hint = " or ".join(f"data={world}" for world in with_columns(row.learns_from))
                yield error
        if row.splits_pairs and "chosen" in used and num_rows is not None:
            num_rows *= 2
        context.stage = plan_stage(
            experiment.trainer, processes=context.processes, num_rows=num_rows, origins=composed.origins
        )
        context.steps = context.stage.steps
    if context.steps is not None and context.steps <= 0:
        key = f"{_ARGS}num_train_epochs"
        yield ConfigError(
            "the run would have no step",
            where=composed.origins.where(key),
            got=f"{experiment.trainer.setting('num_train_epochs')} epochs, and no max_steps",
            expected="more than 0 of either",
            hint=f"{key}=1, or {_ARGS}max_steps=100",
        )


def warmup_notice(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note a warm-up that lasts longer than the run: the learning rate never gets there, or the policy never learns."""
    warmups = {
        f"{_ARGS}warmup_steps": (
            experiment.trainer.args.get("warmup_steps"),
            "the learning rate never gets to its value",
        )
    }
    if experiment.critic is not None:
        warmups["critic.warmup_steps"] = experiment.critic.warmup_steps, "the policy never learns"
    for key, (value, effect) in warmups.items():
        if isinstance(value, int | float) and context.steps is not None and value >= context.steps > 0:
            what = f"{composed.origins.where(key)} is {value:g}, and the run ends after {context.steps} steps: {effect}"
            context.notices.append(Notice("warm-up", f"{what}; {key}={context.steps // 10}"))


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
