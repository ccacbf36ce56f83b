"""Check values of TRL's arguments and the packages they need."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.overrides import EXPECT_AFRESH
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.tables.trl_values import RANGES

_ARGS = "trainer.args."


def range_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for every argument whose value is out of range."""
    args, generates = experiment.trainer.args, experiment.trainer.row.generates
    for bounds in RANGES:
        value, key = args.get(bounds.name), _ARGS + bounds.name
        if not isinstance(value, int | float) or isinstance(value, bool) or bounds.holds(value):
            continue
        if bounds.strategy is not None and context.setting(bounds.strategy) != "steps":
            continue
        if bounds.name == "top_k" and value == -1 and experiment.launch.rollout.startswith("vllm"):
            continue  # -1 means all tokens in vLLM
        if bounds.name in context.trainer.fields and (generates or bounds.name != "temperature"):
            default = context.trainer.fields[bounds.name].default
            fits = isinstance(default, int | float) and bounds.holds(default)
            yield ConfigError(
                f"{key} is out of its range",
                where=composed.origins.where(key),
                got=value,
                expected=f"{bounds.in_words()}: {bounds.why}",
                hint=f"{key}={default}" if fits else f"~{key}",
            )


def repeated_notice(_: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Note every key that was typed with two different values; the last one counts."""
    yield from ()
    values: dict[str, list[str]] = {}
    for override in composed.overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and not override.startswith("~") and override != EXPECT_AFRESH:
            values.setdefault(key, []).append(value)
    for key, typed in values.items():
        if len(set(typed)) > 1:
            text = f"{key} is typed {len(typed)} times, and the last counts: {key}={typed[-1]}"
            context.notices.append(Notice("typed", text))


def no_step_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if the run would have no step."""
    if context.steps is not None and context.steps <= 0:
        key = f"{_ARGS}num_train_epochs"
        yield ConfigError(
            "the run would have no step",
            where=composed.origins.where(key),
            got=f"{context.setting('num_train_epochs')} epochs, and no max_steps",
            expected="more than 0 of either",
            hint=f"{key}=1, or {_ARGS}max_steps=100",
        )


def best_model_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if the best checkpoint cannot be determined: saves and evaluations have different steps."""
    of, origins = context.setting, composed.origins
    if of("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy") and of("eval_strategy") == "no":
        key, name = f"{_ARGS}lr_scheduler_type", of("lr_scheduler_type")
        rows = "" if experiment.data.eval is not None else " data.eval.fraction=0.1"
        yield ConfigError(
            f"{name} looks at evaluations, and there are none",
            where=origins.where(key),
            got=f"{name}, eval_strategy=no",
            hint=f"{_ARGS}eval_strategy=steps{rows}, or {key}=linear",
        )
    if of("load_best_model_at_end") is not True or of("save_strategy") == "best":
        return
    saved, evaluated = of("save_strategy"), of("eval_strategy")
    if saved != evaluated:
        key = f"{_ARGS}eval_strategy"
        yield ConfigError(
            "the best checkpoint is looked for among those that were evaluated when they were saved",
            where=origins.where(key),
            got=f"eval_strategy={evaluated}, save_strategy={saved}, load_best_model_at_end=true",
            expected="the same for both",
            hint=f"{key}={saved}" if saved != "no" else f"{_ARGS}save_strategy={evaluated}",
        )
        return
    every, save_every = of("eval_steps") or of("logging_steps"), of("save_steps")
    if saved != "steps" or not isinstance(every, int) or not isinstance(save_every, int) or every < 1:
        return  # transformers checks fractions of all steps
    if save_every % every:
        key = f"{_ARGS}save_steps"
        yield ConfigError(
            "a checkpoint would be saved at a step that is not evaluated, and could not be the best",
            where=origins.where(key),
            got=f"save_steps={save_every}, eval_steps={every}, load_best_model_at_end=true",
            expected="a multiple of eval_steps",
            hint=f"{key}={max(1, round(save_every / every)) * every}",
        )


_OPTIMIZERS = (
    (re.compile(r"8bit|paged|ademamix|bnb"), "bitsandbytes"),
    (re.compile(r"galore"), "galore_torch"),
    (re.compile(r"apollo"), "apollo_torch"),
    (re.compile(r"lomo"), "lomo_optim"),
    (re.compile(r"grokadamw"), "grokadamw"),
    (re.compile(r"schedule_free"), "schedulefree"),
    (re.compile(r"_torch_(4|8)bit$"), "torchao"),
    (re.compile(r"apex"), "apex"),
)
"""The package that transformers' Trainer imports for an optimizer whose name matches; the last match counts."""


def package_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for every required package that is not installed."""
    args, needed = experiment.trainer.args, list[tuple[str, str, str, str]]()  # package, key, got, hint
    optimizer = str(args.get("optim", ""))
    for package in [package for pattern, package in _OPTIMIZERS if pattern.search(optimizer)][-1:]:
        hint = f"pip install {package.replace('_', '-')}, or trainer.args.optim=adamw_torch"
        needed.append((package, "trainer.args.optim", optimizer, hint))
    if args.get("use_liger_kernel") is True:
        key = "trainer.args.use_liger_kernel"
        needed.append(("liger_kernel", key, f"{key}=true, which TRL deprecates", f"{key}=false"))
    for name, reward in experiment.rewards.items():
        if str(reward.fn).startswith("trl.rewards.accuracy_rewards:"):
            needed.append(("math_verify", f"rewards.{name}.fn", str(reward.fn), "pip install 'rlhf-cli[math]'"))
    for package, key, got, hint in needed:
        if importlib.util.find_spec(package) is None:
            what = f"{key} needs {package}, which is not installed"
            yield ConfigError(what, where=composed.origins.where(key), got=got, hint=hint)
