"""Check the section `trainer`, a trainer class of the user's, quantised weights, and the keys of PPO.

`trainer_problems` needs no valid experiment: its problems are reported together with the schema's.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.errors import ConfigError, ModelError, UserError
from rlhf_cli.models.tokenizer_files import JINJA_FILES, chat_template_text
from rlhf_cli.tables.trl_trainers import CLIPPED_PPO_LOSSES, POLICY_LOSSES, TRAINERS
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.suggest import nearest


def trainer_problems(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with the section `trainer` of a composed tree."""
    composed = section(tree, "trainer")
    name_of_trainer = composed.get("trl")
    if not isinstance(name_of_trainer, str):
        return
    if name_of_trainer not in TRAINERS:
        yield _cannot_run(name_of_trainer, origins)
        return
    fields = trl_args.fields_of(name_of_trainer)
    has_critic = composed.get("baseline", "group") != "group"  # the schema reports a misspelt value
    reserved = trl_args.RESERVED_WITH_A_CRITIC if has_critic else trl_args.RESERVED_ARGS
    for name, value in section(composed, "args").items():
        key = f"trainer.args.{name}"
        where = origins.where(key)
        if name in reserved:
            yield ConfigError(f"{key} is set elsewhere", where=where, hint=reserved[name])
        elif has_critic and name in PpoArgs.model_fields:
            yield from _ppo_argument_problems(name, value, where)
        elif name not in fields:
            yield _unknown_argument(name_of_trainer, name, tree, where, has_critic=has_critic)
        elif (expected := trl_args.expected_instead(fields[name], value)) is not None:
            yield _wrong_argument(fields[name], value, expected, where)


def _cannot_run(name: str, origins: Origins) -> UserError:
    close = nearest(name, TRAINERS)
    return ConfigError(
        f"rlhf runs no trainer {name!r} of TRL's",
        where=origins.where("trainer.trl"),
        expected=f"one of {', '.join(TRAINERS)}; or trainer.class, a class of yours that inherits from one of them",
        hint=f"trainer.trl={close}" if close else "rlhf list trainer",
    )


def _ppo_argument_problems(name: str, value: object, where: str) -> Iterator[UserError]:
    try:
        PpoArgs.model_validate({name: value})
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        yield ConfigError(f"wrong value for trainer.args.{name}", where=where, got=repr(value), expected=expected)


def _wrong_argument(field: trl_args.TrlField, value: object, expected: str, where: str) -> UserError:
    from rlhf_cli.config.suggestions import first_taken  # needed only for a mistake

    key = f"trainer.args.{field.name}"
    meant = first_taken(
        key,
        value,
        lambda one: trl_args.expected_instead(field, one) is None,
        choices=field.choices,
        default=field.default,
    )
    return ConfigError(f"wrong value for {key}", where=where, got=repr(value), expected=expected, hint=meant)


def _unknown_argument(trainer: str, name: str, tree: JsonTree, where: str, *, has_critic: bool) -> UserError:
    from rlhf_cli.config.suggestions import former_name, meant_key  # needed only for a mistake

    key, config = f"trainer.args.{name}", TRAINERS[trainer].config_class
    former = former_name(name, tree)
    if former is not None:
        row, today = former
        return ConfigError(
            f"{config} has no {name!r}",
            where=where,
            got=f"a name of {row.whose}",
            expected=f"{today}, as it is called here",
            hint=today,
        )
    is_of_ppo = name in PpoArgs.model_fields
    of_ppo = f" or one of {', '.join(PpoArgs.model_fields)}" if has_critic else ""
    return ConfigError(
        f"unknown option {name!r} for {config}",
        where=where,
        expected=f"a field of {config}{of_ppo}",
        hint="trainer=ppo" if is_of_ppo else meant_key(key, tree),
    )


_KEY = "trainer.class"
_FORM = "./file.py:Class, or package.module:Class"


def trainer_class_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield what is wrong with the class: it does not exist, or it inherits from another TRL trainer.

    If the source does not show all bases, the class is checked after its import.
    """
    named = experiment.trainer.own_class
    assert named is not None
    where = origins.where(_KEY)
    module, colon, name = named.rpartition(":")
    file = class_file(named)
    if not colon or not name.isidentifier():
        yield ConfigError("this is no class name", where=where, got=named, expected=_FORM)
    elif file is None or not file.is_file():
        yield ConfigError("there is no such file or module", where=where, got=module, expected=_FORM)
    else:
        try:
            body = ast.parse(file.read_text(encoding="utf-8")).body
        except (SyntaxError, UnicodeDecodeError) as error:
            yield ConfigError(f"{file.name} cannot be read as Python", where=where, got=str(error))
            return
        classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        imported = {one.asname or one.name for node in body if isinstance(node, ast.ImportFrom) for one in node.names}
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


def _base_problems(module: str, bases: list[str], trl: str, where: str) -> Iterator[UserError]:
    """Yield a problem for a class whose source names a trainer of TRL's, and not the one that is to be run."""
    of_trl = module.partition(".")[0] == "trl"
    other = next((base for base in bases if base in TRAINERS or (of_trl and base.endswith("Trainer"))), None)
    if trl in bases or other is None:
        return
    if other in TRAINERS:
        what, expected = f"{bases[0]} inherits from {other}, and trainer.trl is another", f"a subclass of {trl}"
        hint = f"trainer.trl={other}"
    else:
        what = f"{bases[0]} inherits from {other}, a trainer of TRL's that rlhf cannot run"
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
            "quantised weights cannot be trained",
            where=origins.where("model.quantize"),
            got=f"model.quantize={model.quantize} without model.lora",
            expected="an adapter that is trained on top of them",
            hint="model.lora.r=16, or model.quantize=null",
        )
    if experiment.launch.precision == "fp16":
        yield ConfigError(
            "an adapter on quantised weights is kept in bfloat16, which fp16 training cannot scale",
            where=origins.where("launch.precision"),
            got="fp16",
            expected="bf16, or float32",
            hint="launch.precision=bf16",
        )


_ARGS = "trainer.args."


def template_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for a chat template that cannot be read, and for two of them."""
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
    for where, one in named.items():
        if one is not None and (where == key or one.endswith(JINJA_FILES)):
            try:
                chat_template_text(one, where=origins.where(where))
            except ModelError as problem:
                yield problem


def ppo_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with a critic, or with a section that needs a critic if the trainer has none."""
    trainer, where = experiment.trainer, origins.where
    sections = (("critic", experiment.critic, "critic.init=policy"), ("kl", experiment.kl, "kl.where=none"))
    if trainer.baseline != "critic":
        has_beta = "beta" in trl_args.fields_of(trainer.trl)
        for name, section, _ in sections:
            if section is not None:
                expected = f"{_ARGS}beta, TRL's own" if name == "kl" and has_beta else None
                what = f"trainer={trainer.name} has no " + ("critic" if name == "critic" else "`kl` section")
                yield ConfigError(what, where=where(name), expected=expected, hint=f"trainer=ppo, or ~{name}")
        return
    for name, section, instead in sections:
        if section is None:
            what = f"trainer={trainer.name} needs a section `{name}`"
            yield ConfigError(what, where=where(name), got="null", hint=f"trainer=ppo, or {instead}")
    if not trainer.row.can_have_critic:
        able = [row.name for row in TRAINERS.values() if row.can_have_critic]
        yield ConfigError(
            f"there is no PPO on {trainer.trl}",
            where=where("trainer.baseline"),
            expected=f"trainer.trl={' or '.join(able)}, whose rollouts and clipped loss PPO uses",
            hint=f"trainer.trl={able[0]}, or trainer.baseline=group",
        )
    conflicts = [*_against_a_critic(experiment), *_against_a_shared_body(experiment)]
    yield from (ConfigError(what, where=where(key), got=got, hint=hint) for key, what, got, hint in conflicts)


Conflict = tuple[str, str, object, str]
"""A key, what is wrong with it, its value or why, and what to type instead."""


def _against_a_critic(experiment: Experiment) -> Iterator[Conflict]:
    """Yield what does not go with PPO: losses of whole sequences, settings relative to a group, fp16."""
    args, kl = experiment.trainer.args, experiment.kl
    loss = args.get("loss_type")
    if experiment.trainer.row.can_have_critic and loss in POLICY_LOSSES and loss not in CLIPPED_PPO_LOSSES:
        yield f"{_ARGS}loss_type", f"loss_type={loss} is not PPO's clipped loss", loss, f"'~{_ARGS}loss_type'"
    if args.get("importance_sampling_level") == "sequence":
        key = f"{_ARGS}importance_sampling_level"
        yield key, "PPO weighs tokens, not sequences", "one ratio for all tokens of a row", f"'~{key}'"
    if args.get("off_policy_mask_threshold") is not None:
        key = f"{_ARGS}off_policy_mask_threshold"
        yield key, "PPO and an off-policy mask do not go together", "it judges whole sequences", f"'~{key}'"
    of_a_group = "PPO has a critic instead of groups"
    if "scale_rewards" in args:
        yield f"{_ARGS}scale_rewards", "scale_rewards means nothing to PPO", of_a_group, f"'~{_ARGS}scale_rewards'"
    if experiment.aggregate == "normalize_then_sum":
        yield "aggregate", "normalize_then_sum means nothing to PPO", of_a_group, "aggregate=sum"
    generations = experiment.trainer.setting("num_generations")
    if isinstance(generations, int) and generations < 2:
        for name in [name for name, reward in experiment.rewards.items() if reward.normalize == "group"]:
            key, what = f"rewards.{name}.normalize", "a group of one has no deviation to divide by"
            yield key, what, f"normalize=group with {_ARGS}num_generations={generations}", f"{key}=running"
    if experiment.launch.precision == "fp16":
        got = "one gradient scaler cannot serve the optimizers of the policy and of the critic"
        yield "launch.precision", "PPO does not run in fp16", got, "launch.precision=bf16"
    if kl is not None and kl.where != "none" and kl.coef == 0:
        yield "kl.coef", "a KL penalty of 0 still costs a reference model", f"kl.where={kl.where}", "kl.where=none"
    if kl is not None and args.get("use_bias_correction_kl") and kl.where != "loss":
        key, what = f"{_ARGS}use_bias_correction_kl", "use_bias_correction_kl corrects a KL in the loss"
        yield key, what, f"kl.where={kl.where}", f"'~{key}', or kl.where=loss"


def _against_a_shared_body(experiment: Experiment) -> Iterator[Conflict]:
    """Yield what does not go with a critic that is an adapter on the policy's body."""
    critic, args, own_body = experiment.critic, experiment.trainer.args, "critic.share=none"
    if critic is None or critic.share != "lora":
        return
    if experiment.model.lora is None:
        what = "a critic on the policy's body wants a policy that is an adapter, too"
        yield "critic.share", what, "critic.share=lora without model.lora", "+model.lora.r=16"
    recomputed = "activations are recomputed under the other adapter, and gradients are silently wrong"
    if args.get("gradient_checkpointing") is not False:  # TRL's default is on
        key, what = (
            f"{_ARGS}gradient_checkpointing",
            "gradient checkpointing and a critic on the policy's body conflict",
        )
        yield key, what, recomputed, f"{key}=false, or {own_body}"
    if args.get("activation_checkpointing"):  # transformers reads this name first
        key, what = f"{_ARGS}activation_checkpointing", "a critic on the policy's body and recomputation conflict"
        yield key, what, recomputed, f"'~{key}', or {own_body}"
    if args.get("ddp_find_unused_parameters"):
        key = f"{_ARGS}ddp_find_unused_parameters"
        what = "ranks that look for unused parameters count those of a critic on the policy's body twice, and crash"
        yield key, what, True, f"'~{key}'"
    if critic.init != "policy":
        what = "a critic on the policy's body begins as the policy"
        yield "critic.init", what, critic.init, f"critic.init=policy, or {own_body}"
