"""Check values of TRL's arguments, the packages they need, and the arithmetic of batches."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from itertools import product

from rlhf_cli.config import trl_args
from rlhf_cli.config.expand import primary_of
from rlhf_cli.config.origins import COMMAND_LINE
from rlhf_cli.config.schema.section import entries_of
from rlhf_cli.config.suggestions import as_typed
from rlhf_cli.data.learnt_columns import learnt_columns
from rlhf_cli.data.rows import describe_shared, prompt_keys, shared_prompts
from rlhf_cli.data.worlds import with_columns
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.plan.batches import AnyPlan, BatchPlan, plan_batches, plan_stage
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, RewardFacts, Subject
from rlhf_cli.plan.devices import runs_on_cpu
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.tables.trl_values import MAX_RELATIVE_KL_ERROR, RANGES, REFUSALS, SIZES, UNREAD

_ARGS, _GENERATION = "trainer.args.", "generation_kwargs"
_OPTIMIZERS = {
    **{"8bit|paged|ademamix|bnb|lion": "bitsandbytes", "_torch_(4|8)bit$": "torchao", "galore": "galore_torch"},
    **{"apollo": "apollo_torch", "lomo": "lomo_optim", "grokadamw": "grokadamw", "schedule_free": "schedulefree"},
    **{"stable_adamw": "optimi", "anyprecision": "torchdistx", "_xla$": "torch_xla", "_npu_": "torch_npu"},
}
"""Part of an optimizer's name -> the package that transformers imports for it; the last match counts."""
_OF_REWARDS = (
    ("trl.rewards.accuracy_rewards:", "math_verify", "'rlhf-cli[math]'"),
    ("rlhf_cli.rewards.reasoning_gym:", "reasoning_gym", "reasoning-gym==0.1.25"),
)
"""The beginning of a reward's `fn`, the package that it imports, and what to install."""
_NO_RATE, _NO_POLICY = "the learning rate never reaches its value", "the policy never learns"


def of_words(subject: Subject) -> tuple[Findings, ...]:
    """Return the checks of values that need no fact but the experiment."""
    checks = (range_problems, sampling_problems, contradictions, refused_combinations, order_problems)
    return tuple(check(subject) for check in (*checks, unread_arguments, repeated_words))


def range_problems(subject: Subject) -> Findings:
    """Yield an error for every argument whose value is out of range, also of those for generation alone."""
    experiment, trainer = subject.experiment, subject.experiment.trainer
    fields, given = trl_args.fields_of(trainer.trl), trainer.args.get(_GENERATION)
    own = {name: value for name, value in trainer.args.items() if name in fields}
    read = [(_ARGS, own), (f"{_ARGS}{_GENERATION}.", given if isinstance(given, dict) else {})]
    for bounds, (prefix, values) in product(RANGES, read):
        value, key = values.get(bounds.name), prefix + bounds.name
        if not isinstance(value, int | float) or isinstance(value, bool) or bounds.holds(value):
            continue
        if bounds.strategy is not None and trainer.setting(bounds.strategy) != "steps":
            continue
        is_vllm = experiment.launch.rollout.startswith("vllm")
        if value == -1 and (bounds.name == "max_steps" or (bounds.name == "top_k" and is_vllm)):
            continue  # it means "not given", and in vLLM all tokens
        default = fields[bounds.name].default if prefix == _ARGS else None
        fits = isinstance(default, int | float) and bounds.holds(default)
        what, expected = f"{key} is out of its range", f"{bounds.in_words()}: {bounds.why}"
        hint = f"{key}={default}" if fits else f"'~{key}'"
        yield ConfigError(what, where=subject.where(key), got=value, expected=expected, hint=hint)


def sampling_problems(subject: Subject) -> Findings:
    """Yield an error if answers are drawn otherwise than `temperature` says, by which TRL divides the scores in a loss.

    `generation_kwargs` goes to the sampling alone, so the ratios and the KL would be those of another policy.
    """
    trainer, given = subject.experiment.trainer, subject.experiment.trainer.args.get(_GENERATION)
    read = given if isinstance(given, dict) and trainer.row.generates else {}
    key, temperature, drawn = f"{_ARGS}{_GENERATION}", trainer.setting("temperature"), read.get("temperature")
    if drawn is not None and drawn != temperature:
        what, hint = "the loss would read another temperature than the sampling", f"'~{key}.temperature'"
        got, expected = f"{as_typed(drawn)}, and {_ARGS}temperature={temperature}", f"{_ARGS}temperature, for both"
        hint += f" {_ARGS}temperature={as_typed(drawn)}"
        yield ConfigError(what, where=subject.where(f"{key}.temperature"), got=got, expected=expected, hint=hint)
    if read.get("do_sample") is False:
        what, expected = "without sampling, all answers of a group are the same", "do_sample=true, its default"
        where = subject.where(f"{key}.do_sample")
        yield ConfigError(what, where=where, got="false", expected=expected, hint=f"'~{key}.do_sample'")


def contradictions(subject: Subject) -> Findings:
    """Yield an error for a best model that is not evaluated where it is saved."""
    of = subject.experiment.trainer.setting
    saved, evaluated = of("save_strategy"), of("eval_strategy")
    if of("load_best_model_at_end") is not True or saved == "best":
        return
    every, save_every = of("eval_steps") or of("logging_steps"), of("save_steps")
    if saved != evaluated:
        key, fits = ("save_strategy", evaluated) if saved == "no" else ("eval_strategy", saved)
        got = f"eval_strategy={evaluated}, save_strategy={saved}"
    elif saved == "steps" and not _is_multiple(save_every, every):
        key, fits, got = "save_steps", every, f"save_steps={save_every}, eval_steps={every}"
    else:
        return
    what = "load_best_model_at_end needs an evaluation at every checkpoint"
    yield ConfigError(what, where=subject.where(_ARGS + key), got=got, hint=f"{_ARGS}{key}={fits}")


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
    limit, answer = map(trainer.whole, ("max_length", "max_completion_length"))
    facts: dict[str, object] = {
        "trainer": trainer.row.name,
        "fills_rows": trainer.row.name in ("GOLDTrainer", "IWOPDTrainer") and (answer or 0) >= (limit or math.inf),
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
    data, trainer, row = subject.experiment.data, subject.experiment.trainer, subject.experiment.trainer.row
    name, in_order = ("shuffle_dataset", False) if row.reads_prompts else ("train_sampling_strategy", "sequential")
    parts = [f"data.mix.{name}" for name, part in (data.mix or {}).items() if part.sort is not None]
    parts += ["data"] * (data.sort is not None)
    if trainer.setting(name) == in_order:
        # The seed draws LoRA's first weights, a new reward head and the sampled completions.
        has_draws = subject.experiment.model.lora is not None or row.reads_prompts or row.trains == "reward model"
        if not has_draws and data.path is not None and data.fraction is None:
            text = f"the rows are learnt in the order of the file ({name}=sequential), so another seed changes nothing"
            yield Notice("seed", f"{text} in a model without dropout")
    elif parts:
        what, got = "the trainer would shuffle the sorted rows", f"{name}={as_typed(trainer.setting(name))}"
        key, hint = f"{parts[0]}.sort", f"{_ARGS}{name}={as_typed(in_order)}, or {parts[0]}.sort=null"
        yield ConfigError(what, where=subject.where(key), got=got, expected="rows that stay in order", hint=hint)


def unread_arguments(subject: Subject) -> Findings:
    """Yield a notice for every argument that the user gave and no one reads, because another one decides."""
    experiment, origins, unread = subject.experiment, subject.composed.origins, dict[str, str]()
    trainer, track, kl, launch = experiment.trainer, experiment.track, experiment.kl, experiment.launch
    args, of = trainer.args, trainer.setting

    def is_typed(key: str) -> bool:
        return str(origins.of(key)) == COMMAND_LINE

    for given, decides, values in UNREAD:
        name, choice = given.removeprefix(f"{trainer.row.config_class}."), of(decides)
        if not args.get(name) or not {*values}.isdisjoint(choice if isinstance(choice, list) else [choice]):
            continue
        key, other = _ARGS + name, _ARGS + decides
        files = {origin and origin.file for origin in (origins.of(key), origins.of(other))}
        are_beside = decides.endswith("_type") and len(files) == 1  # a switch that is off was meant to be
        if is_typed(key) > is_typed(other) or decides not in args or are_beside:
            now = f"{decides}={as_typed(choice)}" if choice is not None else f"the default {decides}"
            unread[key] = f"{now}; {other}={as_typed(values[0])}"
    for prefix, rollout in (("vllm_", "vllm"), ("transformers_continuous_", "continuous")):
        if not launch.rollout.startswith(rollout):
            keys = [_ARGS + name for name in args if name.startswith(prefix) and is_typed(_ARGS + name)]
            unread |= dict.fromkeys(keys, f"launch.rollout={launch.rollout}; launch.rollout={rollout}")
    of_wandb, is_wandb = "track.entity track.completions_every", track.tracker == "wandb"
    of_rollouts = "guards.no_signal guards.max_error_share guards.error_window run.keep_completions.last"
    of_rollouts += " run.keep_completions.every trainer.passes trainer.generation trainer.dense aggregate"
    for keys_read, is_unread, with_what in (
        (f"track.project track.tags track.notes {of_wandb}", track.mode == "none", "track=none; track=wandb_offline"),
        (of_wandb, track.mode != "none" and not is_wandb, f"track={track.tracker}; track=wandb_offline"),
        ("kl.coef kl.controller", kl is not None and kl.where == "none", "kl.where=none; kl.where=reward"),
        (of_rollouts, not trainer.row.generates, f"trainer={trainer.name}; trainer=grpo"),
        (f"{_ARGS}label_smoothing_factor", trainer.trl != "SFTTrainer", f"trainer={trainer.name}; trainer=sft"),
        (f"{_ARGS}train_sampling_strategy", trainer.row.reads_prompts, f"trainer={trainer.name}; trainer=sft"),
        ("guards.error_window", experiment.guards.max_error_share == 1, "guards.max_error_share=1; any less"),
        ("model.revision", experiment.model.build is not None, "model.build; model=local"),
    ):
        unread |= {key: with_what for key in keys_read.split() if is_unread and is_typed(key)}
    for key, with_what in unread.items():
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
    experiment, needed = subject.experiment, list[tuple[str, str, str]]()  # package, key, hint
    args, model, launch, track = experiment.trainer.args, experiment.model, experiment.launch, experiment.track
    optim = str(args.get("optim", ""))
    for own in [package for pattern, package in _OPTIMIZERS.items() if re.search(pattern, optim)][-1:]:
        project = {"optimi": "torch-optimi", "torchdistx": "git+https://github.com/pytorch/torchdistx"}.get(own, own)
        needed.append((own, f"{_ARGS}optim", f"pip install {project}, or {_ARGS}optim=adamw_torch"))
    if (package := STRATEGIES[launch.strategy].package) is not None:
        instead = "ddp" if runs_on_cpu(launch) else "fsdp2"
        needed.append((package, "launch.strategy", f"pip install {package}, or launch.strategy={instead}"))
    if model.quantize is not None:
        needed.append(("bitsandbytes", "model.quantize", "pip install bitsandbytes, or model.quantize=null"))
    if model.lora is not None:
        needed.append(("peft", "model.lora", "pip install peft, or model.lora=null"))
    if args.get("use_liger_kernel") is True:
        needed.append(("liger_kernel", f"{_ARGS}use_liger_kernel", f"{_ARGS}use_liger_kernel=false"))
    for name, reward in experiment.rewards.items():
        for module, package, project in _OF_REWARDS:
            if str(reward.fn).startswith(module):
                needed.append((package, f"rewards.{name}.fn", f"pip install {project}"))
    if track.mode != "none" and track.tracker != "wandb":
        hint = f"pip install 'rlhf-cli[{track.tracker}]', or track=wandb_offline, or track=none"
        needed.append((track.tracker, "track.tracker", hint))
    for package, key, hint in needed:
        if importlib.util.find_spec(package) is None:
            what = f"{key} needs the package {package}, which is not installed"
            yield ConfigError(what, where=subject.where(key), hint=hint)


def step_problems(subject: Subject, data: DataFacts, rewards: RewardFacts) -> Check[AnyPlan | None]:
    """Plan the batches and steps of the run; yield an error if there are none, or if the data lacks a column that is
    trained on, and what `_round_findings` yields. Raise the errors of `plan_batches` and `plan_stage`.
    """
    trainer, origins, num_rows = subject.experiment.trainer, subject.composed.origins, data.num_rows
    plan: AnyPlan
    if any(size is not None and size < 1 for size in map(trainer.whole, SIZES)):
        return None  # out of range
    if trainer.row.generates:
        plan = plan_batches(trainer, processes=subject.processes, num_rows=num_rows, origins=origins)
        yield from _round_findings(subject, plan, rewards)
    else:
        used: Sequence[str] = ()
        if data.columns:
            try:
                rows = data.training[0].rows if data.training else None
                first = rows[0] if rows is not None else None
                used = learnt_columns(trainer.row, data.columns, text_field=trainer.text_field, first=first)
            except DataError as error:
                if subject.experiment.data.world is not None:
                    error.hint = ", or ".join(f"data={world}" for world in with_columns(trainer.row.learns_from))
                yield data.training[0].source.with_file(error)
        if trainer.row.splits_pairs and "chosen" in used and num_rows is not None:
            num_rows *= 2
        plan = plan_stage(trainer, processes=subject.processes, num_rows=num_rows, origins=origins)
    if plan.steps is not None and plan.steps <= 0:
        key, got = f"{_ARGS}num_train_epochs", f"{trainer.setting('num_train_epochs')} epochs without max_steps"
        what, hint = "the run would have no steps", f"{key}=1, or {_ARGS}max_steps=100"
        yield ConfigError(what, where=subject.where(key), got=got, expected="more than 0 of either", hint=hint)
    return plan


def _round_findings(subject: Subject, batches: BatchPlan, rewards: RewardFacts) -> Findings:
    """Yield an error if a process would have part of a group, which `sampling.keep_groups` or a reward compares, and if
    one round could make an adaptive KL coefficient negative; yield a notice for a filter by the total.
    """
    experiment, trainer, group = subject.experiment, subject.experiment.trainer, batches.num_generations
    keep, key, comparing = experiment.sampling.keep_groups, "sampling.keep_groups", rewards.comparing
    users = [f"rewards.{name}" for name in comparing if experiment.rewards[name].when != "eval"]
    of_rank = batches.per_device * batches.steps_per_generation
    sizes = [("train", of_rank, group, [key] * (keep is not None) + users)]
    if trainer.evaluates:
        of_rank, each = trainer.whole("per_device_eval_batch_size") or 0, trainer.whole("num_generations_eval") or group
        sizes.append(("eval", of_rank, each, [f"rewards.{name}" for name in comparing]))
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
    kl, rows = experiment.kl, batches.completions_a_round
    if kl is not None and kl.controller != "fixed" and kl.controller.horizon <= MAX_RELATIVE_KL_ERROR * rows:
        what = "the horizon of the KL controller is shorter than a round, which could make the coefficient negative"
        got, hint = f"{kl.controller.horizon} completions; a round has {rows}", f"kl.controller.horizon={20 * rows}"
        expected = f"more than {MAX_RELATIVE_KL_ERROR * rows:g}; 20 rounds or more adapt smoothly"
        yield ConfigError(what, where=subject.where("kl.controller.horizon"), got=got, expected=expected, hint=hint)


def length_notices(subject: Subject, steps: int | None) -> Findings:
    """Yield a notice for a warm-up or a weight that lasts longer than the run, and an expectation of a later step."""
    experiment, critic = subject.experiment, subject.experiment.critic
    if steps is None or steps <= 0:
        return
    lasting: list[tuple[str, str, object, str, object]] = [  # kind, key, its value, what follows, what to type
        ("warm-up", f"{_ARGS}warmup_steps", experiment.trainer.args.get("warmup_steps"), _NO_RATE, steps // 10)
    ]
    if critic is not None:
        lasting.append(("warm-up", "critic.warmup_steps", critic.warmup_steps, _NO_POLICY, steps // 10))
    for name, reward in experiment.rewards.items():
        length = None if isinstance(reward.weight, float) else reward.weight.steps
        lasting.append(("weight", f"rewards.{name}.weight.steps", length, "it never reaches its end", steps))
    for name, target in entries_of(experiment.expect).items():
        key = ".".join(part for part in ("expect", name, "at") if part)
        lasting.append(("expect", key, target.at, "no row is there", "end"))
    for kind, key, value, effect, instead in lasting:
        if isinstance(value, int | float) and value >= steps + (kind != "warm-up"):
            text = f"{subject.where(key)} is {value:g}, but the run ends after {steps} steps: {effect}"
            is_listed = kind == "expect" and isinstance(experiment.expect, list)  # it has no key of its own
            yield Notice(kind, text if is_listed else f"{text}; {key}={instead}")


def repeated_words(subject: Subject) -> Findings:
    """Yield a notice for every key that is typed with several values: Hydra takes the last one."""
    values: dict[str, list[str]] = {}
    for word in subject.composed.typed:
        key, equals, value = word.lstrip("+").partition("=")
        if equals:
            values.setdefault(key, []).append(value)
    for key, typed in values.items():
        if len(set(typed)) > 1:
            yield Notice(key, f"typed {len(typed)} times; the last one counts: {key}={typed[-1]}")


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
