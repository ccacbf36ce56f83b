"""Check the section `trainer`, that it uses the sections that are set, the model's adapter, and the keys of PPO.

`wrong_arguments` needs no valid experiment: its facts are reported together with the schema's. Classes of the user's
are read in the file that defines them; what it takes from other files is checked after its import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from rlhf_cli.config import trl_args
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.config.schema.trainer_sections import Critic, PpoArgs
from rlhf_cli.errors import ConfigError, ModelError, UserError, pydantic_words
from rlhf_cli.models.tokenizer_files import JINJA_FILES, chat_template_text
from rlhf_cli.tables.trl_trainers import CLIPPED_PPO_LOSSES, POLICY_LOSSES, READ_BY_ALGORITHMS, TRAINERS, UNSUPPORTED
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.regular_files import parse_python
from rlhf_cli.text.suggest import nearest
from rlhf_cli.user_files import class_file


def wrong_arguments(trainer: JsonTree, args: JsonTree) -> Iterator[trl_args.WrongArgument]:
    """Yield what is wrong in the section `trainer` of a composed tree and in its `args`."""
    trl = trainer.get("trl")
    if not isinstance(trl, str):
        return  # the schema reports it
    if trl not in TRAINERS:
        yield trl_args.WrongArgument("trainer", value=trl)
        return
    fields = trl_args.fields_of(trl)
    has_critic = trainer.get("baseline", "group") != "group"  # the schema reports a misspelt value
    reserved = trl_args.RESERVED_WITH_A_CRITIC if has_critic else trl_args.RESERVED_ARGS
    for name, value in args.items():
        if name in reserved:
            yield trl_args.WrongArgument("reserved", name, value, reserved[name])
        elif has_critic and name in PpoArgs.model_fields:
            try:
                PpoArgs.model_validate({name: value})
            except ValidationError as error:
                yield trl_args.WrongArgument("wrong", name, value, pydantic_words(error.errors()[0]["msg"]))
        elif name not in fields:
            yield trl_args.WrongArgument("unknown", name, value)
        elif (expected := trl_args.expected_instead(fields[name], value)) is not None:
            yield trl_args.WrongArgument("wrong", name, value, expected)
        elif name.endswith(("_args", "_config", "_kwargs")):
            yield from trl_args.wrong_inside(name, trl, args)


_OF_A_CRITIC, _CALLED = {"critic", "kl"}, {"tools", "environment", "rollout"}
_USER = {"rewards": "grpo", "reward_model": "reward", "critic": "ppo", "kl": "ppo", "teacher": "distillation"}
_USER |= dict.fromkeys(sorted(_CALLED), "grpo")
"""Section -> a trainer that uses it."""
_NEEDED = {
    "rewards": ("+exp=quickstart, or reward@rewards.short=brevity", "entries with `fn`, `model` or `environment`"),
    "teacher": ("teacher.path=FOLDER_OR_HUB_ID", "a language model with the policy's tokens"),
    "critic": ("trainer=ppo, or critic.init=policy", "PPO's value model"),
    "kl": ("trainer=ppo, or kl.where=none", "PPO's penalty"),
}
"""Section that a trainer lacks if it uses it -> what to type, what it is."""
_INSTEAD = {"kl": "beta", "teacher": "teacher_model_kind"}
"""Section -> the argument that another trainer has instead."""


def section_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each section that is set and the trainer does not use, or that it needs and is not set."""
    trainer, launch, row = experiment.trainer, experiment.launch, experiment.trainer.row
    used = row.sections - _OF_A_CRITIC
    used |= (_OF_A_CRITIC if trainer.has_critic else set()) | (_CALLED if row.has_tools else set())
    for name, user in _USER.items():
        what, argument = f"trainer={trainer.name} does not use the section `{name}`", _INSTEAD.get(name)
        if getattr(experiment, name) and name not in used:
            expected = f"trainer.args.{argument}" if argument in trl_args.fields_of(trainer.trl) else None
            yield origins.error(name, what, hint=f"trainer={user}, or '~{name}'", expected=expected)
        elif name in used and name in _NEEDED and not getattr(experiment, name):
            what, (hint, expected) = f"trainer={trainer.name} needs the section `{name}`", _NEEDED[name]
            yield origins.error(name, what, hint=hint, expected=expected)
    settings = [  # a key, its value, the usual one, and whether the trainer reads it
        ("truncation", experiment.truncation.policy, "none", "truncation" in used),
        ("sampling.keep_groups", experiment.sampling.keep_groups or "null", "null", row.generates),
        ("data.overlong_prompts", experiment.data.overlong_prompts, "error", row.reads_prompts),
        ("launch.rollout", launch.rollout, "hf", row.generates),
        ("launch.rollout_gpus", launch.rollout_gpus, 0, row.generates),
        ("launch.vllm.args", launch.vllm.args, {}, row.generates),
    ]
    for key, value, usual, is_read in settings:
        if value != usual and not is_read:
            hint = f"{key}={usual}" if usual != {} else f"'~{key}'"
            yield origins.error(key, f"trainer={trainer.name} does not use {key}", value, hint)


_LORA = "model.lora"
_INIT = "init_lora_weights"
_NO_CHANGE = (True, "gaussian", "orthogonal", "mica")
"""The values of init_lora_weights with which the adapter adds 0 at first, and the weights below it stay."""
_READS_DATA = ("eva", "corda", "lora_ga")
_UNTRIED = {
    **dict.fromkeys(("megatron_config", "megatron_core"), "rlhf does not shard by Megatron"),
    **dict.fromkeys(("eva_config", "corda_config", "lora_ga_config"), "it reads data before training"),
    "layer_replication": "it adds layers that the memory plan, the critic and exports do not know",
    "alora_invocation_tokens": "its adapter begins in the middle of a row, which packed rows do not keep apart",
    **dict.fromkeys(
        ("arrow_config", "use_bdlora", "kasa_config", "monteclora_config", "velora_config", "runtime_config"),
        "it was never tried with the passes, the critic and the exports of rlhf",
    ),
}
"""Fields that are refused -> why."""


def own_fields() -> dict[str, trl_args.TrlField]:
    """Return the fields of peft's that `model.lora` takes beside those of the schema."""
    known = {*Lora.model_fields, *_UNTRIED}
    return {name: field for name, field in trl_args.lora_fields().items() if name not in known}


def adapter_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each field that peft does not have, or that does not work here."""
    lora = experiment.model.lora
    if lora is None:
        return
    fields, known, given = trl_args.lora_fields(), {*Lora.model_fields, *own_fields()}, lora.model_extra or {}
    for name, value in given.items():
        key = f"{_LORA}.{name}"
        if name in _UNTRIED:
            yield origins.error(key, f"rlhf does not take {key}", hint=f"'~{key}'", expected=_UNTRIED[name])
        elif name not in known:
            close = "r" if name == "rank" else f"lora_{name}" if f"lora_{name}" in known else nearest(name, known)
            hint, valid = f"{_LORA}.{close}" if close else "rlhf list keys lora", f"one of {', '.join(sorted(known))}"
            yield origins.error(key, f"unknown key {key!r}", hint=hint, expected=valid)
        elif not str(value).startswith("pissa_niter_") and (expected := trl_args.expected_instead(fields[name], value)):
            yield origins.error(key, f"wrong value for {key}", repr(value), f"'~{key}'", expected=expected)
    yield from _initial_problems(experiment, given.get(_INIT, True), origins)
    layers = [name for name in ("layers_to_transform", "layers_pattern") if given.get(name) is not None]
    for key, name in ((f"{_LORA}.{name}", name) for name in layers):
        if isinstance(lora.target_modules, str):  # which peft takes for a pattern of full names
            got, hint = f"target_modules={lora.target_modules}", f"{_LORA}.target_modules=[q_proj,v_proj]"
            yield origins.error(key, f"{name} needs a list of modules", got, hint)
        elif layers == ["layers_pattern"]:
            hint = f"{_LORA}.layers_to_transform=[0]"
            yield origins.error(key, f"{name} needs the numbers of the layers", "no layers_to_transform", hint)


def _initial_problems(experiment: Experiment, initial: object, origins: Origins) -> Iterator[UserError]:
    """Yield an error for an initialisation that reads data, or whose model without adapter is not the first policy."""
    key, problem = f"{_LORA}.{_INIT}", ""
    shares = experiment.critic is not None and experiment.critic.share == "lora"
    if initial in _READS_DATA:
        problem = f"{initial} reads data before training, which no key names"
    elif initial not in _NO_CHANGE and (experiment.has_reference or shares):
        user = "the KL compares the policy with" if experiment.has_reference else "critic.share=lora starts from"
        problem = f"{user} the model without its adapter, which with {initial} is not the initial policy"
    if problem:
        why_not = ", or kl.where=none" if experiment.kl is not None and experiment.has_reference else ""
        expected = f"one of true, {', '.join(str(value) for value in _NO_CHANGE[1:])}"
        what, hint = f"{key}={initial} does not work here", f"'~{key}'{why_not}"
        yield origins.error(key, what, problem, hint, expected=expected)


def quantize_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `model.quantize`."""
    model = experiment.model
    if model.quantize is not None and model.lora is None:
        what, hint = "quantised weights cannot be trained without an adapter", "model.lora.r=16, or model.quantize=null"
        yield origins.error("model.quantize", what, f"{model.quantize} without model.lora", hint)
    if model.quantize is not None and experiment.launch.precision == "fp16":
        what = "an adapter on quantised weights is in bfloat16, which fp16 training cannot scale"
        yield origins.error("launch.precision", what, "fp16", "launch.precision=bf16")


_ARGS = "trainer.args."


def template_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for a chat template that cannot be read, and for two templates."""
    key, of_trl = "model.chat_template", f"{_ARGS}chat_template_path"
    path = experiment.trainer.args.get("chat_template_path")
    named = {key: experiment.model.chat_template, of_trl: str(path or "") or None}
    if None not in named.values():
        hint = f"'~{of_trl}', or {key}=null"
        yield origins.error(of_trl, "there are two chat templates", f"{path}, and {key}", hint)
    for where, template in named.items():
        if template is not None and (where == key or template.endswith(JINJA_FILES)):
            try:
                chat_template_text(template, where=origins.where(where))
            except ModelError as problem:
                yield problem


def name_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for the name of another shipped trainer: the name is a label and chooses nothing."""
    key, name, origin, trainer = "trainer.name", experiment.trainer.name, origins.of("trainer.name"), experiment.trainer
    is_given = origin is not None and (origin.file is None or origin.file.parent.name == "exp")
    is_same = f"{name.replace('_', '')}trainer" == trainer.trl.lower() or (name == "ppo" and trainer.has_critic)
    if is_given and not is_same and name in groups()["trainer"]:
        what, got = f"{key} is a label and chooses no trainer", f"{name}, with trainer.trl={trainer.trl}"
        yield origins.error(key, what, got, f"trainer={name}")


def ppo_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with a critic."""
    trainer, critic = experiment.trainer, experiment.critic
    if not trainer.has_critic:
        return
    if not trainer.row.can_have_critic:
        able = [row.name for row in TRAINERS.values() if row.can_have_critic]
        hint, expected = f"trainer.trl={able[0]}, or trainer.baseline=group", f"trainer.trl={' or '.join(able)}"
        yield origins.error("trainer.baseline", f"PPO does not run on {trainer.trl}", hint=hint, expected=expected)
    conflicts = [*_critic_conflicts(experiment)]
    if critic is not None and critic.share == "lora":
        conflicts += _shared_body_conflicts(experiment, critic)
    yield from (origins.error(*conflict) for conflict in conflicts)


def advantage_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for each setting that makes advantages as well, or that needs those of TRL's formula."""
    trainer, section, origin = experiment.trainer, experiment.advantages, origins.of("advantages.fn")
    if section is None:
        return
    # Hydra's ~ takes back a choice of the group, advantages=maxrl, and leaves a section that was written out.
    is_chosen = "/advantages/" in f"/{origin}"
    off, advice = (["'~advantages'"], None) if is_chosen else ([], f"leave out advantages.fn ({origin})")
    has_kl = trainer.row.kl_in_reward and bool(trainer.setting("beta"))
    is_z_scored = experiment.aggregate == "normalize_then_sum"
    problems = [  # whether it applies, its key, what is wrong, what to type instead
        (not trainer.row.generates, "advantages", f"trainer={trainer.name} uses no advantages", off),
        (trainer.has_critic, "advantages", "PPO's critic makes the advantages", ["trainer=grpo", *off]),
        (trainer.dense, "trainer.dense", "trainer.dense makes the advantages", ["trainer.dense=false", *off]),
        (is_z_scored, "aggregate", "normalize_then_sum is part of another formula", ["aggregate=sum", *off]),
        (has_kl, f"{_ARGS}beta", "the function replaces advantages that hold the KL", [f"{_ARGS}beta=0"]),
    ]
    for name in READ_BY_ALGORITHMS:
        what = f"{name} has no effect on the advantages of a function"
        problems.append((name in trainer.args, _ARGS + name, what, [f"'~{_ARGS}{name}'"]))
    for applies, key, what, ways in problems:
        if applies:
            got, hint = f"advantages.fn={section.fn}", ", or ".join(ways) or None
            yield origins.error(key, what, got, hint, advice=advice)


Conflict = tuple[str, str, object, str]
"""A key, what is wrong with it, its value or the reason, and what to type instead."""


def _critic_conflicts(experiment: Experiment) -> Iterator[Conflict]:
    """Yield each setting that PPO cannot use: sequence-level losses, group scales, fp16."""
    args, kl = experiment.trainer.args, experiment.kl

    def argument(name: str, what: str, got: object, also: str = "") -> Conflict:
        return _ARGS + name, what, got, f"'~{_ARGS}{name}'" + also

    loss = args.get("loss_type")
    if experiment.trainer.row.can_have_critic and loss in POLICY_LOSSES and loss not in CLIPPED_PPO_LOSSES:
        yield argument("loss_type", f"loss_type={loss} is not PPO's clipped loss", loss)
    if args.get("importance_sampling_level") == "sequence":
        what = "PPO has one ratio per token, not per sequence"
        yield argument("importance_sampling_level", what, "one ratio for all tokens of a row")
    if args.get("off_policy_mask_threshold") is not None:
        yield argument("off_policy_mask_threshold", "PPO cannot use an off-policy mask", "the mask is per sequence")
    no_groups = "PPO has a critic instead of groups"
    if "scale_rewards" in args:
        yield argument("scale_rewards", "scale_rewards has no effect under PPO", no_groups)
    if experiment.aggregate == "normalize_then_sum":
        yield "aggregate", "normalize_then_sum has no effect under PPO", no_groups, "aggregate=sum"
    generations = experiment.trainer.setting("num_generations")
    if isinstance(generations, int) and generations < 2:
        for name in [name for name, reward in experiment.rewards.items() if reward.normalize == "group"]:
            key, what = f"rewards.{name}.normalize", "a group of one completion has no standard deviation"
            yield key, what, f"normalize=group with {_ARGS}num_generations={generations}", f"{key}=running"
    if experiment.launch.precision == "fp16":
        got = "one gradient scaler cannot serve two optimizers, the policy's and the critic's"
        yield "launch.precision", "PPO does not run in fp16", got, "launch.precision=bf16"
    if kl is not None and kl.where != "none" and kl.coef == 0:
        what = "a KL penalty with coefficient 0 still needs a reference model"
        yield "kl.coef", what, f"kl.where={kl.where}", "kl.where=none"
    if kl is not None and args.get("use_bias_correction_kl") and kl.where != "loss":
        what = "use_bias_correction_kl needs the KL in the loss"
        yield argument("use_bias_correction_kl", what, f"kl.where={kl.where}", ", or kl.where=loss")


def _shared_body_conflicts(experiment: Experiment, critic: Critic) -> Iterator[Conflict]:
    """Yield each setting that a critic cannot use which is an adapter on the policy's body."""
    args, own_body = experiment.trainer.args, "critic.share=none"
    if experiment.model.lora is None:
        what, got = "critic.share=lora needs a LoRA adapter on the policy as well", "no model.lora"
        yield "critic.share", what, got, "+model.lora.r=16"
    # TRL's default is on; transformers reads the other name first.
    is_on = {"gradient": args.get("gradient_checkpointing") is not False}
    is_on["activation"] = bool(args.get("activation_checkpointing"))
    for kind in filter(is_on.get, is_on):
        key, what = f"{_ARGS}{kind}_checkpointing", f"{kind} checkpointing does not work with critic.share=lora"
        off = f"{key}=false" if kind == "gradient" else f"'~{key}'"
        got = "activations are recomputed under the other adapter, and gradients are silently wrong"
        yield key, what, got, f"{off}, or {own_body}"
    if args.get("ddp_find_unused_parameters"):
        key, what = f"{_ARGS}ddp_find_unused_parameters", "DDP counts the critic's unused parameters twice and crashes"
        yield key, what, True, f"'~{key}'"
    if critic.init != "policy":
        what = "a critic with critic.share=lora starts from the policy"
        yield "critic.init", what, critic.init, f"critic.init=policy, or {own_body}"


_CLASS, _CALLBACKS = "trainer.class", "trainer.callbacks"
_FORM = "./file.py:Class, or package.module:Class"
_GIVEN = {"self", "model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config"}
"""The arguments of a constructor that rlhf gives, or leaves out if the experiment does not set them."""


@dataclass(frozen=True)
class _Source:
    """The classes that a file defines, and the other names in it -> their names where they are imported from."""

    classes: dict[str, ast.ClassDef]
    others: dict[str, str]


def trainer_class_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error if the class does not exist, or if it inherits from another TRL trainer."""
    named, trl = experiment.trainer.own_class, experiment.trainer.trl
    if named is None:
        return
    source, name = _source(named, _CLASS, origins.where(_CLASS)), named.rpartition(":")[2]
    if named.startswith("trl") and name in UNSUPPORTED:
        source = _Source({}, {name: name})  # in whichever of TRL's modules it is
    if isinstance(source, ConfigError):
        yield source
        return
    base = _trl_base(name, source)
    what = f"{name} inherits from {base}" if name != base else f"this is TRL's {base}"
    if base in UNSUPPORTED:
        refused = UNSUPPORTED[base]
        what = f"rlhf does not run {base}: {refused.why}"
        yield origins.error(_CLASS, what, name, f"'~{_CLASS}'", advice=refused.instead)
    elif base is not None and base != trl:
        what, hint = f"{what}, but trainer.trl is {trl}", f"trainer.trl={base}"
        yield origins.error(_CLASS, what, f"trainer.trl={trl}", hint, expected=f"a subclass of {trl}")
    given = _GIVEN | ({"teacher_model"} if experiment.teacher is not None else set())
    yield from _constructor_problems(name, source, given, origins.where(_CLASS))


def callback_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each callback that does not exist, has no base, or whose constructor needs an argument."""
    for number, named in enumerate(experiment.trainer.callbacks):
        where, name = origins.where(f"{_CALLBACKS}.{number}"), named.rpartition(":")[2]
        source = _source(named, _CALLBACKS, where)
        if isinstance(source, ConfigError):
            yield source
        elif name in source.classes and not source.classes[name].bases:
            expected = f"class {name}(transformers.TrainerCallback)"
            yield ConfigError("this is no callback", where=where, got=f"class {name}", expected=expected)
        else:
            yield from _constructor_problems(name, source, {"self"}, where)


def _source(named: str, key: str, where: str) -> _Source | ConfigError:
    """Return the file of the class that `key` names, or an error that says what is missing."""
    module, colon, name = named.rpartition(":")
    file = class_file(named)
    if not colon or not name.isidentifier():
        return ConfigError("this is not the name of a class", where=where, got=named, expected=_FORM)
    if file is None or not file.is_file():
        return ConfigError("the file or module does not exist", where=where, got=module, expected=_FORM)
    try:
        nodes = [*ast.walk(parse_python(file.read_bytes()))]  # also below `if` and `try`
    except SyntaxError as error:
        return ConfigError(f"{file.name} cannot be read as Python", where=where, got=str(error))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    others = {alias.asname or alias.name: alias.name for node in imports for alias in node.names}
    others |= {ast.unparse(target): "" for node in nodes if isinstance(node, ast.Assign) for target in node.targets}
    source = _Source({node.name: node for node in nodes if isinstance(node, ast.ClassDef)}, others)
    if name in {*source.classes, *others}:
        return source
    close, value = nearest(name, source.classes), "{}" if key == _CLASS else "'[{}]'"
    expected = "one of " + ", ".join(source.classes) if source.classes else "a class defined in that file"
    hint = f"{key}={value.format(f'{module}:{close}')}" if close else None
    return ConfigError(f"{file.name} has no class {name!r}", where=where, got=named, expected=expected, hint=hint)


def _trl_base(name: str, source: _Source) -> str | None:
    """Return the first of TRL's trainers among a class and its bases, as far as the file shows them."""
    waiting = [name]
    for known in waiting:  # which grows
        called = source.others.get(known) or known
        if called in TRAINERS or called in UNSUPPORTED:
            return called
        bases = map(ast.unparse, source.classes[known].bases if known in source.classes else ())
        waiting += [base for base in (base.rpartition(".")[2] for base in bases) if base not in waiting]
    return None


def _constructor_problems(name: str, source: _Source, given: set[str], where: str) -> Iterator[UserError]:
    """Yield an error if a class's own `__init__` needs an argument that no key sets."""
    body = source.classes[name].body if name in source.classes else []
    for function in (item for item in body if isinstance(item, ast.FunctionDef) and item.name == "__init__"):
        args = function.args
        positional = [*args.posonlyargs, *args.args]
        needed = positional[: len(positional) - len(args.defaults)]
        needed += [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
        if unknown := [arg.arg for arg in needed if arg.arg not in given]:
            what = f"{name} needs an argument {unknown[0]!r} that no key sets"
            expected = "arguments of TRL's class, and others with a default"
            got = f"__init__({', '.join(arg.arg for arg in positional)})"
            yield ConfigError(what, where=where, got=got, expected=expected)
