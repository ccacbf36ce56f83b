"""Check values of TRL's arguments, the packages they need, and the arithmetic of batches."""

from __future__ import annotations

import importlib.util
import re
from itertools import product

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import AFRESH
from rlhf_cli.config.expand import primary_of
from rlhf_cli.config.origins import COMMAND_LINE
from rlhf_cli.config.schema.section import entries_of
from rlhf_cli.data.rows import describe_shared, prompt_keys, shared_prompts
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.plan.batches import BatchPlan, plan_batches, plan_stage
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, RewardFacts, Schedule, Subject
from rlhf_cli.plan.devices import runs_on_cpu
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.tables.trl_values import FOLLOW_EVALUATIONS, MAX_RELATIVE_KL_ERROR, RANGES, REFUSALS, UNREAD

_ARGS, _GENERATION = "trainer.args.", "generation_kwargs"
_OPTIMIZERS = {
    **{"8bit|paged|ademamix|bnb|lion": "bitsandbytes", "_torch_(4|8)bit$": "torchao", "galore": "galore_torch"},
    **{"apollo": "apollo_torch", "lomo": "lomo_optim", "grokadamw": "grokadamw", "schedule_free": "schedulefree"},
    **{"stable_adamw": "optimi", "anyprecision": "torchdistx", "_xla$": "torch_xla", "_npu_": "torch_npu"},
}
"""Part of an optimizer's name -> the package that transformers imports for it; the last match counts."""


def range_problems(subject: Subject) -> Findings:
    """Yield an error for every argument whose value is out of range, also of those for generation alone."""
    experiment = subject.experiment
    args, fields = experiment.trainer.args, trl_args.fields_of(experiment.trainer.trl)
    read = [(_ARGS, args, {*fields})]
    if isinstance(given := args.get(_GENERATION), dict):
        read.append((f"{_ARGS}{_GENERATION}.", given, {*given}))
    for bounds, (prefix, values, names) in product(RANGES, read):
        value, key = values.get(bounds.name), prefix + bounds.name
        if not isinstance(value, int | float) or isinstance(value, bool) or value == bounds.also or bounds.holds(value):
            continue
        if bounds.strategy is not None and experiment.trainer.setting(bounds.strategy) != "steps":
            continue
        if bounds.name == "top_k" and value == -1 and experiment.launch.rollout.startswith("vllm"):
            continue  # -1 means all tokens in vLLM
        if bounds.name in names:
            default = fields[bounds.name].default if prefix == _ARGS else None
            fits = isinstance(default, int | float) and bounds.holds(default)
            what, expected = f"{key} is out of its range", f"{bounds.in_words()}: {bounds.why}"
            hint = f"{key}={default}" if fits else f"'~{key}'"
            yield ConfigError(what, where=subject.where(key), got=value, expected=expected, hint=hint)


def contradictions(subject: Subject) -> Findings:
    """Yield an error for arguments that exclude each other; the libraries report these only when a run starts."""
    experiment = subject.experiment
    of, where, args = experiment.trainer.setting, subject.where, experiment.trainer.args
    if args.get("generation_batch_size") is not None and args.get("steps_per_generation") is not None:
        key, what = f"{_ARGS}generation_batch_size", "generation_batch_size and steps_per_generation exclude each other"
        yield ConfigError(what, where=where(key), expected="one of them", hint=f"'~{key}'")
    saved, evaluated = of("save_strategy"), of("eval_strategy")
    if of("lr_scheduler_type") in FOLLOW_EVALUATIONS and evaluated == "no":
        key, rows = f"{_ARGS}lr_scheduler_type", "" if experiment.data.eval is not None else " data.eval.fraction=0.1"
        hint = f"{_ARGS}eval_strategy=steps{rows}, or {key}=linear"
        yield ConfigError("this learning-rate schedule needs evaluations", where=where(key), hint=hint)
    if of("load_best_model_at_end") is True and saved != "best":
        every, save_every = of("eval_steps") or of("logging_steps"), of("save_steps")
        if saved != evaluated:
            key, fits = ("save_strategy", evaluated) if saved == "no" else ("eval_strategy", saved)
            got = f"eval_strategy={evaluated}, save_strategy={saved}"
        elif saved == "steps" and not _is_multiple(save_every, every):
            key, fits, got = "save_steps", every, f"save_steps={save_every}, eval_steps={every}"
        else:
            return
        what = "load_best_model_at_end needs an evaluation at every checkpoint"
        yield ConfigError(what, where=where(_ARGS + key), got=got, hint=f"{_ARGS}{key}={fits}")


def _is_multiple(save_every: object, every: object) -> bool:
    """Return whether transformers accepts how often is saved and evaluated: numbers of steps, or shares (below 1)."""
    if not isinstance(save_every, int | float) or not isinstance(every, int | float) or every <= 0:
        return True  # reported by other checks
    if save_every < 1 and every < 1:
        save_every, every = save_every * 1_000_000, every * 1_000_000  # as in TrainingArguments.__post_init__
    return save_every % every == 0


def refused_combinations(subject: Subject) -> Findings:
    """Yield an error for every combination that a library refuses when it builds the trainer."""
    experiment = subject.experiment
    trainer, launch = experiment.trainer, experiment.launch
    given, weights, kl = trainer.setting("loss_type"), trainer.setting("loss_weights"), experiment.kl
    losses = given if isinstance(given, list) else [given]
    facts: dict[str, object] = {
        "losses": {*losses},
        "is_weighed_otherwise": isinstance(weights, list) and len(weights) != len(losses),
        "use_cpu": runs_on_cpu(launch),
        "uses_lora": experiment.model.lora is not None,
        "generates": trainer.row.generates,
        "beta": trainer.setting("beta") if kl is None else kl.coef,
    }
    fields = trl_args.fields_of(trainer.trl)
    for row in REFUSALS:
        if row.key in fields and row.holds(lambda name: facts[name] if name in facts else trainer.setting(name)):
            is_typed = row.key in trainer.args and row.key not in row.values
            key, got = _ARGS + row.key, repr(trainer.setting(row.key))
            what, hint = f"{trainer.trl} refuses {key}", _ARGS + row.instead + f", or '~{key}'" * is_typed
            yield ConfigError(what, where=subject.where(key), got=got, expected=row.why, hint=hint)


def order_problems(subject: Subject) -> Findings:
    """Yield an error for sorted rows that the trainer would shuffle, or a notice where the seed decides nothing."""
    data, trainer = subject.experiment.data, subject.experiment.trainer
    in_order = {"shuffle_dataset": False, "train_sampling_strategy": "sequential"}
    name = "shuffle_dataset" if trainer.row.reads_prompts else "train_sampling_strategy"
    key = next(
        (f"data.mix.{name}.sort" for name, part in (data.mix or {}).items() if part.sort is not None), "data.sort"
    )
    is_in_order = trainer.setting(name) == in_order[name]
    # The seed draws LoRA's first weights, a new reward head and the sampled completions.
    has_draws = (
        subject.experiment.model.lora is not None or trainer.row.reads_prompts or trainer.row.trains == "reward model"
    )
    if is_in_order and not has_draws and data.path is not None and data.fraction is None:
        text = f"the rows are learnt in the order of the file ({name}=sequential), so another seed changes nothing"
        yield Notice("seed", f"{text} in a model without dropout")
    if (data.sort is None and key == "data.sort") or is_in_order:
        return
    what, got = "the trainer would shuffle the sorted rows", f"{name}={trainer.setting(name)}".lower()
    expected, hint = "rows that stay in order", f"{_ARGS}{name}={str(in_order[name]).lower()}, or {key}=null"
    yield ConfigError(what, where=subject.where(key), got=got, expected=expected, hint=hint)


def typed_twice(subject: Subject) -> Findings:
    """Yield a notice for every key that was typed with different values; the last one counts."""
    values: dict[str, list[str]] = {}
    for override in subject.composed.overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and not override.startswith("~") and override not in AFRESH.values():
            values.setdefault(key, []).append(value)
    for key, typed in values.items():
        if len(set(typed)) > 1:
            yield Notice("typed", f"{key} is typed {len(typed)} times; the last one counts: {key}={typed[-1]}")


def unread_arguments(subject: Subject) -> Findings:
    """Yield a notice for every argument that the user gave and no one reads, because another one decides."""
    experiment, origins, texts = subject.experiment, subject.composed.origins, dict[str, str]()
    args, of = experiment.trainer.args, experiment.trainer.setting

    def is_typed(name: str) -> bool:
        return str(origins.of(_ARGS + name)) == COMMAND_LINE

    def chosen(name: str, values: tuple[object, ...]) -> bool:
        given = of(name)  # DPO has a list of losses
        return any(value in values for value in (given if isinstance(given, list) else [given]))

    named = {row[0]: row[0].removeprefix(f"{experiment.trainer.row.config_class}.") for row in UNREAD}
    rows = [(named[row[0]], *row[1:]) for row in UNREAD if args.get(named[row[0]]) and not chosen(row[1], row[2])]
    if isinstance(steps := args.get("max_steps"), int) and steps > 0 and is_typed("num_train_epochs"):
        rows.append(("num_train_epochs", "max_steps", (-1,)))
    for name, decides, values in rows:
        files = {origin and origin.file for origin in (origins.of(_ARGS + name), origins.of(_ARGS + decides))}
        are_beside = decides.endswith("_type") and len(files) == 1  # a switch that is off was meant to be
        if is_typed(name) > is_typed(decides) or decides not in args or are_beside:
            now = f"{decides}={of(decides)}" if of(decides) is not None else f"the default {decides}"
            with_what = f"{now}; {_ARGS}{decides}={values[0]}".replace("=True", "=true")
            texts[name] = with_what.replace("=False", "=false")
    for of_rollout, rollout in (("vllm_", "vllm"), ("transformers_continuous_", "continuous")):
        if not experiment.launch.rollout.startswith(rollout):
            with_what = f"launch.rollout={experiment.launch.rollout}; launch.rollout={rollout}"
            texts |= dict.fromkeys([name for name in args if name.startswith(of_rollout) and is_typed(name)], with_what)
    for name, with_what in texts.items():
        yield Notice("no effect", f"{subject.where(_ARGS + name)} is not read with {with_what} reads it")
    track, trainer, kl = experiment.track, experiment.trainer, experiment.kl
    of_trackers, of_wandb = "track.project track.tags track.notes", "track.entity track.completions_every"
    of_rollouts = "guards.no_signal guards.max_error_share guards.error_window run.keep_completions.last"
    of_labels, of_order = f"{_ARGS}label_smoothing_factor", f"{_ARGS}train_sampling_strategy"
    of_rollouts += " run.keep_completions.every trainer.passes trainer.generation trainer.dense aggregate"
    for keys, is_unread, with_what in (
        (f"{of_trackers} {of_wandb}", track.mode == "none", "track=none; track=wandb_offline"),
        (of_wandb, track.mode != "none" and track.tracker != "wandb", f"track={track.tracker}; track=wandb_offline"),
        ("kl.coef kl.controller", kl is not None and kl.where == "none", "kl.where=none; kl.where=reward"),
        (of_rollouts, not trainer.row.generates, f"trainer={trainer.name}; trainer=grpo"),
        (of_labels, trainer.row.name != "SFTTrainer", f"trainer={trainer.name}; trainer=sft"),
        (of_order, trainer.row.reads_prompts, f"trainer={trainer.name}; trainer=sft"),
        ("guards.error_window", experiment.guards.max_error_share == 1, "guards.max_error_share=1; any less"),
        ("model.revision", experiment.model.build is not None, "model.build; model=local"),
    ):
        for key in keys.split() if is_unread else ():
            if str(origins.of(key)) == COMMAND_LINE:
                yield Notice("no effect", f"{subject.where(key)} is not read with {with_what} reads it")
    if (rewards := experiment.rewards) and all(reward.weight == 0 for reward in rewards.values()):
        yield Notice("no effect", f"the weights of all rewards are 0: {', '.join(rewards)} teach nothing")
    cap = of("epsilon") if of("epsilon_high") is None else of("epsilon_high")
    if of("loss_type") == "cispo" and isinstance(cap, int | float) and cap <= 1:
        what = f"loss_type=cispo multiplies every token by its ratio, at most {cap:g}, and ratios are near 1"
        yield Notice("cispo", f"{what}: all get the same weight. Usual is {_ARGS}epsilon_high=5")
    if isinstance(rate := of("learning_rate"), int | float) and rate >= 1:
        yield Notice("learning rate", f"{subject.where(_ARGS + 'learning_rate')} is {rate:g}; usual are 1e-6 to 1e-3")


def package_problems(subject: Subject) -> Findings:
    """Yield an error for every required package that is not installed."""
    experiment = subject.experiment
    args, needed = experiment.trainer.args, list[tuple[str, str, str]]()  # package, key, hint
    optim = str(args.get("optim", ""))
    for own in [package for pattern, package in _OPTIMIZERS.items() if re.search(pattern, optim)][-1:]:
        project = {"optimi": "torch-optimi", "torchdistx": "git+https://github.com/pytorch/torchdistx"}.get(own, own)
        needed.append((own, "trainer.args.optim", f"pip install {project}, or trainer.args.optim=adamw_torch"))
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
            what = f"{key} needs the package {package}, which is not installed"
            yield ConfigError(what, where=subject.where(key), hint=hint)


def round_problems(subject: Subject, data: DataFacts, rewards: RewardFacts) -> Check[Schedule]:
    """Plan the rounds of a trainer that generates, with a notice if their split depends on the number of processes.

    Yield an error if one round could change an adaptive KL coefficient by more than 100%, and so make it negative.
    Raise the errors of `plan_batches`.
    """
    experiment, processes = subject.experiment, subject.processes
    if not experiment.trainer.row.generates:
        return Schedule()
    origins = subject.composed.origins
    batches = plan_batches(experiment.trainer, processes=processes, num_rows=data.num_rows, origins=origins)
    if processes > 1 and batches.accumulation < batches.steps_per_generation:
        text = f"each of the {processes} processes shuffles its own rows of a round into minibatches (as in TRL), so"
        yield Notice("minibatches", f"{text} the weights depend slightly on the number of processes")
    yield from _group_findings(subject, batches, rewards)
    kl, rows = experiment.kl, batches.completions_a_round
    if kl is not None and kl.controller != "fixed" and kl.controller.horizon <= MAX_RELATIVE_KL_ERROR * rows:
        what = "the horizon of the KL controller is shorter than a round, which could make the coefficient negative"
        got, hint = f"{kl.controller.horizon} completions; a round has {rows}", f"kl.controller.horizon={20 * rows}"
        expected = f"more than {MAX_RELATIVE_KL_ERROR * rows:g}; 20 rounds or more adapt smoothly"
        yield ConfigError(what, where=subject.where("kl.controller.horizon"), got=got, expected=expected, hint=hint)
    return Schedule(batches, None, batches.steps)


def _group_findings(subject: Subject, batches: BatchPlan, rewards: RewardFacts) -> Findings:
    """Yield an error where a process would have part of a group, which `sampling.keep_groups` or a reward compares.

    Yield a notice for a filter by the total.
    """
    experiment, trainer, group = subject.experiment, subject.experiment.trainer, batches.num_generations
    keep, key = experiment.sampling.keep_groups, "sampling.keep_groups"
    comparing = {name: f"rewards.{name}" for name in rewards.comparing}
    users = [key] * (keep is not None) + [comparing[one] for one in comparing if experiment.rewards[one].when != "eval"]
    sizes = [("train", batches.per_device * batches.steps_per_generation, group, users)]
    if trainer.evaluates:
        of_rank, each = trainer.whole("per_device_eval_batch_size") or 0, trainer.whole("num_generations_eval") or group
        sizes.append(("eval", of_rank, each, [*comparing.values()]))
    for kind, of_rank, each, users in sizes:
        if users and of_rank % each:
            size = f"{_ARGS}per_device_{kind}_batch_size"
            what, hint = f"{' and '.join(users)} needs whole groups in every process", f"{size}={each}"
            got = f"{of_rank} completions a process and round, {each} to a group"
            expected = f"a multiple of {each}, the number of generations"
            hint += f", or {key}=null" if users == [key] else ""
            yield ConfigError(what, where=subject.where(size), got=got, expected=expected, hint=hint)
    if keep is not None and keep.by == "total" and experiment.rewards:
        named = primary_of(experiment.rewards) or next(iter(experiment.rewards))
        yield Notice("sampling", f"by the total keeps groups in which any reward differs; or {key}.by={named}")


def stage_problems(subject: Subject, data: DataFacts, schedule: Schedule) -> Check[Schedule]:
    """Plan the steps of a trainer that trains on its rows; yield an error for a missing column, or no steps."""
    experiment = subject.experiment
    row, num_rows, used = experiment.trainer.row, data.num_rows, tuple[str, ...]()
    if row.learns_from:
        if data.columns:
            from rlhf_cli.data.learnt_columns import learnt_columns

            try:
                field = str(experiment.trainer.setting("dataset_text_field") or "text")
                rows = data.training[0].rows if data.training else None
                first = rows[0] if rows is not None else None
                used = learnt_columns(row, data.columns, text_field=field, first=first)
            except DataError as error:
                if experiment.data.world is not None:
                    error.hint = ", or ".join(f"data={world}" for world in with_columns(row.learns_from))
                yield data.training[0].source.with_file(error)
        if row.splits_pairs and "chosen" in used and num_rows is not None:
            num_rows *= 2
        origins = subject.composed.origins
        stage = plan_stage(experiment.trainer, processes=subject.processes, num_rows=num_rows, origins=origins)
        schedule = Schedule(None, stage, stage.steps)
    if schedule.steps is not None and schedule.steps <= 0:
        key = f"{_ARGS}num_train_epochs"
        what, expected = "the run would have no steps", "more than 0 of either"
        got, hint = f"{experiment.trainer.setting('num_train_epochs')} epochs without max_steps", f"{key}=1"
        hint += f", or {_ARGS}max_steps=100"
        yield ConfigError(what, where=subject.where(key), got=got, expected=expected, hint=hint)
    return schedule


def warmup_notice(subject: Subject, steps: int | None) -> Findings:
    """Yield a notice for a warm-up or a weight that lasts longer than the run, and an expectation of a later step."""
    experiment, args = subject.experiment, subject.experiment.trainer.args
    warmups = {f"{_ARGS}warmup_steps": (args.get("warmup_steps"), "the learning rate never reaches its value")}
    if experiment.critic is not None:
        warmups["critic.warmup_steps"] = experiment.critic.warmup_steps, "the policy never learns"
    for key, (value, effect) in warmups.items():
        if isinstance(value, int | float) and steps is not None and value >= steps > 0:
            what = f"{subject.where(key)} is {value:g}, but the run ends after {steps} steps: {effect}"
            yield Notice("warm-up", f"{what}; {key}={steps // 10}")
    for name, reward in experiment.rewards.items():
        length = None if isinstance(reward.weight, float) else reward.weight.steps
        if length is not None and steps is not None and length > steps > 0:
            key, what = f"rewards.{name}.weight.steps", f"but the run ends after {steps} steps"
            yield Notice("weight", f"{subject.where(key)} is {length}, {what}: {key}={steps} reaches the end")
    for name, target in entries_of(experiment.expect).items():
        if isinstance(target.at, int) and steps is not None and target.at > steps > 0:
            key = ".".join(part for part in ("expect", name, "at") if part)
            what = f"{subject.where(key)} is {target.at}, but the run ends after {steps} steps"
            yield Notice("expect", what if isinstance(experiment.expect, list) else f"{what}; {key}=end")


def shared_prompt_notice(data: DataFacts) -> Findings:
    """Yield a notice with the number of evaluation rows, among those read, whose prompt is also trained on."""
    training = [read.rows for read in data.training if read.rows is not None]
    for read in data.held_out:
        if read.rows is None:
            continue
        trained_on = shared_prompts(read.rows, training)
        if shared := sum(key in trained_on for key in prompt_keys(read.rows)):
            text = describe_shared(shared, len(read.rows))
            yield Notice(read.source.name, f"{text}; data.eval.fraction=0.1 instead shares none")
