"""Check the section `trainer`, a trainer class of the user's, quantised weights, and the keys of PPO.

`wrong_arguments` needs no valid experiment: its facts are reported together with the schema's.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import WrongArgument
from rlhf_cli.errors import ConfigError, ModelError, UserError
from rlhf_cli.models.tokenizer_files import JINJA_FILES, chat_template_text
from rlhf_cli.tables.algorithms import READ_BY_ALGORITHMS
from rlhf_cli.tables.trl_trainers import CLIPPED_PPO_LOSSES, POLICY_LOSSES, TRAINERS
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.suggest import nearest


def wrong_arguments(trainer: JsonTree, args: JsonTree) -> Iterator[WrongArgument]:
    """Yield what is wrong in the section `trainer` of a composed tree and in its `args`."""
    trl = trainer.get("trl")
    if not isinstance(trl, str):
        return  # the schema reports it
    if trl not in TRAINERS:
        yield WrongArgument("trainer", value=trl)
        return
    fields = trl_args.fields_of(trl)
    has_critic = trainer.get("baseline", "group") != "group"  # the schema reports a misspelt value
    reserved = trl_args.RESERVED_WITH_A_CRITIC if has_critic else trl_args.RESERVED_ARGS
    for name, value in args.items():
        if name in reserved:
            yield WrongArgument("reserved", name, value, reserved[name])
        elif has_critic and name in PpoArgs.model_fields:
            try:
                PpoArgs.model_validate({name: value})
            except ValidationError as error:
                yield WrongArgument("wrong", name, value, trl_args.pydantic_words(error.errors()[0]["msg"]))
        elif name not in fields:
            yield WrongArgument("unknown", name, value)
        elif (expected := trl_args.expected_instead(fields[name], value)) is not None:
            yield WrongArgument("wrong", name, value, expected)


_KEY = "trainer.class"
_FORM = "./file.py:Class, or package.module:Class"


def trainer_class_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error if the class does not exist, or if it inherits from another TRL trainer.

    If the source does not show all bases, the class is checked after its import.
    """
    named = experiment.trainer.own_class
    assert named is not None
    where = origins.where(_KEY)
    module, colon, name = named.rpartition(":")
    file = class_file(named)
    if not colon or not name.isidentifier():
        yield ConfigError("this is not the name of a class", where=where, got=named, expected=_FORM)
    elif file is None or not file.is_file():
        yield ConfigError("the file or module does not exist", where=where, got=module, expected=_FORM)
    else:
        try:
            body = ast.parse(file.read_text(encoding="utf-8")).body
        except (SyntaxError, UnicodeDecodeError) as error:
            yield ConfigError(f"{file.name} cannot be read as Python", where=where, got=str(error))
            return
        classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        imported = {
            name.asname or name.name for node in body if isinstance(node, ast.ImportFrom) for name in node.names
        }
        if name not in {*classes, *imported}:
            close = nearest(name, classes)
            yield ConfigError(
                f"{file.name} has no class {name!r}",
                where=where,
                got=named,
                expected="one of " + ", ".join(classes) if classes else "a class defined in that file",
                hint=f"{_KEY}={module}:{close}" if close else None,
            )
        else:
            yield from _base_problems(module, _all_bases(name, classes), experiment.trainer.trl, where)
            yield from _constructor_problems(classes.get(name), where)


_GIVEN = {"self", "model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config"}
"""The arguments of a constructor that rlhf gives, or leaves out if the experiment does not set them."""


def _constructor_problems(node: ast.ClassDef | None, where: str) -> Iterator[UserError]:
    """Yield an error if a class's own `__init__` needs an argument that no key sets, such as a teacher."""
    for function in [item for item in (node.body if node else ()) if isinstance(item, ast.FunctionDef)]:
        args = function.args
        positional = [*args.posonlyargs, *args.args]
        needed = positional[: len(positional) - len(args.defaults)]
        needed += [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
        unknown = [arg.arg for arg in needed if arg.arg not in _GIVEN]
        if function.name == "__init__" and node is not None and unknown:
            yield ConfigError(
                f"{node.name} needs an argument {unknown[0]!r} that no key sets",
                where=where,
                got=f"__init__({', '.join(arg.arg for arg in positional)})",
                expected="arguments of TRL's class, and others with a default",
            )


def _base_problems(module: str, bases: list[str], trl: str, where: str) -> Iterator[UserError]:
    """Yield an error for a class whose source names another TRL trainer than `trainer.trl`."""
    of_trl = module.partition(".")[0] == "trl"
    other = next((base for base in bases if base in TRAINERS or (of_trl and base.endswith("Trainer"))), None)
    if trl in bases or other is None:
        return
    if other in TRAINERS:
        what, expected = f"{bases[0]} inherits from {other}, but trainer.trl is {trl}", f"a subclass of {trl}"
        hint = f"trainer.trl={other}"
    else:
        what = f"{bases[0]} inherits from TRL's {other}, which rlhf cannot run"
        expected, hint = f"a subclass of one of {', '.join(TRAINERS)}", "rlhf list trainer"
    yield ConfigError(what, where=where, got=f"trainer.trl={trl}", expected=expected, hint=hint)


def _all_bases(name: str, classes: Mapping[str, ast.ClassDef]) -> list[str]:
    """Return the class's own name and those of all bases that the source shows."""
    bases = [name]
    for known in bases:  # which grows
        for base in classes[known].bases if known in classes else ():
            called = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else None
            if called is not None and called not in bases:
                bases.append(called)
    return bases


def class_file(named: str) -> Path | None:
    """Return the file that defines `./file.py:Class` or `package.module:Class`, without importing it."""
    module = named.rpartition(":")[0]
    if module.endswith(".py"):
        return Path(module).expanduser()
    top, *below = module.split(".")
    folders = [Path.cwd()]
    spec = importlib.util.find_spec(top) if top else None
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin)
        folders.append(origin.parent.parent if origin.name == "__init__.py" else origin.parent)
    stems = [folder.joinpath(top, *below) for folder in folders]
    files = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def quantize_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `model.quantize`."""
    model = experiment.model
    if model.lora is None:
        yield ConfigError(
            "quantised weights cannot be trained without an adapter",
            where=origins.where("model.quantize"),
            got=f"model.quantize={model.quantize} without model.lora",
            expected="a LoRA adapter on top of them",
            hint="model.lora.r=16, or model.quantize=null",
        )
    if experiment.launch.precision == "fp16":
        yield ConfigError(
            "an adapter on quantised weights is in bfloat16, which fp16 training cannot scale",
            where=origins.where("launch.precision"),
            got="fp16",
            expected="bf16, or float32",
            hint="launch.precision=bf16",
        )


_ARGS = "trainer.args."


def template_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for a chat template that cannot be read, and for two templates."""
    key, of_trl = "model.chat_template", f"{_ARGS}chat_template_path"
    path = experiment.trainer.args.get("chat_template_path")
    named = {key: experiment.model.chat_template, of_trl: str(path or "") or None}
    if None not in named.values():
        yield ConfigError(
            "there are two chat templates",
            where=origins.where(of_trl),
            got=f"{path}, and {key}",
            expected="one of them",
            hint=f"'~{of_trl}', or {key}=null",
        )
    for where, template in named.items():
        if template is not None and (where == key or template.endswith(JINJA_FILES)):
            try:
                chat_template_text(template, where=origins.where(where))
            except ModelError as problem:
                yield problem


def ppo_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with a critic, or with a section that needs a critic if the trainer has none."""
    trainer, where = experiment.trainer, origins.where
    sections = (("critic", experiment.critic, "critic.init=policy"), ("kl", experiment.kl, "kl.where=none"))
    if not trainer.has_critic:
        has_beta = "beta" in trl_args.fields_of(trainer.trl)
        for name, section, _ in sections:
            if section is not None:
                expected = f"{_ARGS}beta, TRL's own" if name == "kl" and has_beta else None
                what = f"trainer={trainer.name} does not use the section `{name}`"
                yield ConfigError(what, where=where(name), expected=expected, hint=f"trainer=ppo, or ~{name}")
        return
    for name, section, instead in sections:
        if section is None:
            what = f"trainer={trainer.name} needs a section `{name}`"
            yield ConfigError(what, where=where(name), got="null", hint=f"trainer=ppo, or {instead}")
    if not trainer.row.can_have_critic:
        able = [row.name for row in TRAINERS.values() if row.can_have_critic]
        yield ConfigError(
            f"PPO does not run on {trainer.trl}",
            where=where("trainer.baseline"),
            expected=f"trainer.trl={' or '.join(able)}, whose rollouts and clipped loss PPO uses",
            hint=f"trainer.trl={able[0]}, or trainer.baseline=group",
        )

    def conflict(key: str, what: str, got: object, hint: str) -> ConfigError:
        return ConfigError(what, where=where(key), got=got, hint=hint)

    yield from _critic_conflicts(experiment, conflict)
    if experiment.critic is not None and experiment.critic.share == "lora":
        yield from _shared_body_conflicts(experiment, conflict)


def advantage_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for each setting that makes advantages as well, or that needs those of TRL's formula."""
    trainer, section, off = experiment.trainer, experiment.advantages, "~advantages"
    assert section is not None
    problems = [  # whether it applies, its key, what is wrong, what to type instead
        (not trainer.row.generates, "advantages", f"trainer={trainer.name} uses no advantages", off),
        (trainer.has_critic, "advantages", "PPO's critic makes the advantages", f"trainer=grpo, or {off}"),
        (trainer.dense, "trainer.dense", "trainer.dense makes the advantages", f"trainer.dense=false, or {off}"),
    ]
    is_z_scored, what = experiment.aggregate == "normalize_then_sum", "normalize_then_sum is part of another formula"
    problems.append((is_z_scored, "aggregate", what, f"aggregate=sum, or {off}"))
    for name in READ_BY_ALGORITHMS:
        what = f"{name} has no effect on the advantages of a function"
        problems.append((name in trainer.args, _ARGS + name, what, f"'~{_ARGS}{name}'"))
    has_kl = trainer.row.kl_in_reward and bool(trainer.setting("beta"))
    what = f"{trainer.trl} puts the KL into the advantages, and the function replaces them"
    problems.append((has_kl, f"{_ARGS}beta", what, f"{_ARGS}beta=0"))
    for applies, key, what, hint in problems:
        if applies:
            yield ConfigError(what, where=origins.where(key), got=f"advantages.fn={section.fn}", hint=hint)


Conflict = Callable[[str, str, object, str], ConfigError]
"""Makes an error from a key, what is wrong with it, its value or the reason, and what to type instead."""


def _critic_conflicts(experiment: Experiment, conflict: Conflict) -> Iterator[ConfigError]:
    """Yield an error for each setting that PPO cannot use: sequence-level losses, group scales, fp16."""
    args, kl = experiment.trainer.args, experiment.kl

    def argument(name: str, what: str, got: object, also: str = "") -> ConfigError:
        return conflict(_ARGS + name, what, got, f"'~{_ARGS}{name}'" + also)

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
        yield conflict("aggregate", "normalize_then_sum has no effect under PPO", no_groups, "aggregate=sum")
    generations = experiment.trainer.setting("num_generations")
    if isinstance(generations, int) and generations < 2:
        for name in [name for name, reward in experiment.rewards.items() if reward.normalize == "group"]:
            key, what = f"rewards.{name}.normalize", "a group of one completion has no standard deviation"
            yield conflict(key, what, f"normalize=group with {_ARGS}num_generations={generations}", f"{key}=running")
    if experiment.launch.precision == "fp16":
        got = "one gradient scaler cannot serve two optimizers, the policy's and the critic's"
        yield conflict("launch.precision", "PPO does not run in fp16", got, "launch.precision=bf16")
    if kl is not None and kl.where != "none" and kl.coef == 0:
        what = "a KL penalty with coefficient 0 still needs a reference model"
        yield conflict("kl.coef", what, f"kl.where={kl.where}", "kl.where=none")
    if kl is not None and args.get("use_bias_correction_kl") and kl.where != "loss":
        what = "use_bias_correction_kl needs the KL in the loss"
        yield argument("use_bias_correction_kl", what, f"kl.where={kl.where}", ", or kl.where=loss")


def _shared_body_conflicts(experiment: Experiment, conflict: Conflict) -> Iterator[ConfigError]:
    """Yield an error for each setting that a critic cannot use which is an adapter on the policy's body."""
    critic, args, own_body = experiment.critic, experiment.trainer.args, "critic.share=none"
    assert critic is not None
    if experiment.model.lora is None:
        what, got = "critic.share=lora needs a LoRA adapter on the policy as well", "no model.lora"
        yield conflict("critic.share", what, got, "+model.lora.r=16")
    recomputed = "activations are recomputed under the other adapter, and gradients are silently wrong"
    if args.get("gradient_checkpointing") is not False:  # TRL's default is on
        key, what = f"{_ARGS}gradient_checkpointing", "gradient checkpointing does not work with critic.share=lora"
        yield conflict(key, what, recomputed, f"{key}=false, or {own_body}")
    if args.get("activation_checkpointing"):  # transformers reads this name first
        key, what = f"{_ARGS}activation_checkpointing", "activation checkpointing does not work with critic.share=lora"
        yield conflict(key, what, recomputed, f"'~{key}', or {own_body}")
    if args.get("ddp_find_unused_parameters"):
        key, what = f"{_ARGS}ddp_find_unused_parameters", "DDP counts the critic's unused parameters twice and crashes"
        yield conflict(key, what, True, f"'~{key}'")
    if critic.init != "policy":
        what = "a critic with critic.share=lora starts from the policy"
        yield conflict("critic.init", what, critic.init, f"critic.init=policy, or {own_body}")
