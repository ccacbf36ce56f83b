"""Describe a trainer's arguments: TRL's help and defaults, the values that we set, and those set elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import compose
from rlhf_cli.config.conf_folders import caption, groups
from rlhf_cli.config.origins import Origin
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import home_of
from rlhf_cli.errors import ConfigError
from rlhf_cli.project.reference.function_source import documented_parameters, one_line, sentences_about
from rlhf_cli.tables.former_names import FORMER_NAMES
from rlhf_cli.text.json_values import JsonValue, section
from rlhf_cli.text.suggest import nearest

_OURS = "PpoArgs"
COMPUTED_DEFAULTS: dict[str, object] = {
    "optim": "adamw_torch_fused",
    "loss_type": ["sigmoid"],
    "include_for_metrics": [],
}
"""Defaults that TRL and transformers compute, without a literal in their source; a contract test checks the list."""


@dataclass(frozen=True)
class TrainerArgument:
    """An argument of a trainer. `default` is TRL's, or None if there is none or it is computed.

    `home` is the key that sets it instead, or None if it is set under `trainer.args`. `ours` is the value that the conf
    files set and `origin` its place, both None if they do not set it. `config_class` is the class that defines it.
    """

    name: str
    type: str
    default: object
    choices: tuple[str, ...]
    text: str
    config_class: str
    home: str | None = None
    ours: JsonValue = None
    origin: Origin | None = None

    @property
    def key(self) -> str:
        """Return the key that sets it."""
        return self.home or f"trainer.args.{self.name}"


@dataclass(frozen=True)
class TrainerReference:
    """A trainer of the group `trainer`: its TRL class and its arguments, the most derived class's first."""

    option: str
    caption: str
    conf_file: Path
    trl: str
    has_critic: bool
    arguments: tuple[TrainerArgument, ...]


def trainer_reference(option: str) -> TrainerReference:
    """Describe `trainer=option`. Raises ConfigError if there is no such option."""
    options = groups().get("trainer", {})
    if option not in options:
        close = nearest(option, options)
        raise ConfigError(
            f"there is no trainer {option!r}",
            where="rlhf list trainer",
            expected="one of " + ", ".join(sorted(options)),
            hint=f"rlhf list trainer {close}" if close else "rlhf list trainer",
        )
    composed = compose([f"trainer={option}"])
    chosen = section(composed.tree, "trainer")
    name, has_critic = str(chosen.get("trl")), chosen.get("baseline") == "critic"
    ours = section(chosen, "args")
    arguments = []
    for argument in _all_arguments(name, has_critic=has_critic):
        origin = composed.origins.by_key.get(f"trainer.args.{argument.name}")
        is_set = argument.name in ours
        arguments.append(
            TrainerArgument(
                *(argument.name, argument.type, argument.default, argument.choices, argument.text),
                argument.config_class,
                home_of(argument.name, has_critic=has_critic),
                ours.get(argument.name) if is_set else None,
                origin if is_set else None,
            )
        )
    file = options[option]
    return TrainerReference(option, caption(file), file, name, has_critic, tuple(arguments))


def about(arguments: Iterable[TrainerArgument], words: Sequence[str]) -> list[TrainerArgument]:
    """Return the arguments with all of `words` in their name, help or home; those with a match in the name first.

    A name from other tools or older versions (`lr`) also finds today's name, which comes first.
    """
    wanted = [word.lower().replace("-", "_").removeprefix("trainer.args.") for word in words]
    today = _today(wanted[0]) if len(wanted) == 1 else frozenset()

    def is_found(argument: TrainerArgument) -> bool:
        said = f"{argument.name} {argument.text} {argument.home or ''}".lower()
        return argument.key in today or all(word in said or word.replace("_", " ") in said for word in wanted)

    def distance(argument: TrainerArgument) -> tuple[bool, bool, bool]:
        is_named = all(word in argument.name for word in wanted)
        return argument.key not in today, argument.name not in wanted, not is_named

    return sorted((argument for argument in arguments if is_found(argument)), key=distance)


def _today(name: str) -> frozenset[str]:
    """Return today's keys for a name used elsewhere."""
    row = FORMER_NAMES.get(name)
    written = () if row is None else (*row.today.split(","), *(row.with_critic or "").split(","))
    return frozenset(key.partition("=")[0] for key in written if key)


def _all_arguments(trainer: str, *, has_critic: bool) -> Iterator[TrainerArgument]:
    if has_critic:
        for name, of_ours in PpoArgs.model_fields.items():
            kind = getattr(of_ours.annotation, "__name__", str(of_ours.annotation))
            yield TrainerArgument(name, kind, of_ours.default, (), sentences_about(PpoArgs.__doc__, name), _OURS)
    fields = trl_args.trainer(trainer).fields
    texts = field_texts(trl_args.trainer(trainer).config_class)
    by_class: dict[str, list[str]] = {}
    for name in fields:
        by_class.setdefault(texts[name][0], []).append(name)
    for config_class in reversed(by_class):  # the trainer's own arguments first, then those that all have
        for name in by_class[config_class]:
            field = fields[name]
            default = COMPUTED_DEFAULTS.get(name, field.default) if field.default is None else field.default
            yield TrainerArgument(name, field.annotation, default, field.choices, texts[name][1], config_class)


@cache
def field_texts(config_class: str) -> dict[str, tuple[str, str]]:
    """Return a map of field -> (class that defines it first, help), from docstrings and `help=`.

    A class that only changes a default does not define the field, but its help, if any, is used.
    """
    texts: dict[str, tuple[str, str]] = {}
    for body in trl_args.class_bodies(config_class):
        documented = documented_parameters(ast.get_docstring(body))
        for item in body.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            name = item.target.id
            brought_by, before = texts.get(name, (body.name, ""))
            texts[name] = (brought_by, documented.get(name) or _help(item) or before)
    return texts


def _help(item: ast.AnnAssign) -> str:
    """Return the text of `field(metadata={"help": ...})`, or ''."""
    keywords = item.value.keywords if isinstance(item.value, ast.Call) else []
    for keyword in keywords:
        if keyword.arg != "metadata" or not isinstance(keyword.value, ast.Dict):
            continue
        for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "help":
                return one_line(_text(value))
    return ""


def _text(node: ast.expr) -> str:
    try:
        return str(ast.literal_eval(node))
    except ValueError:
        return ""
