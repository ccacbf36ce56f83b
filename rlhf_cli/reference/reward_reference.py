"""What is known of a reward: what it scores, the arguments it takes, the columns it reads, an example, its YAML."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlhf_cli.config.conf_folders import caption, groups
from rlhf_cli.errors import ConfigError
from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.reference.function_source import NO_DEFAULT, FunctionSource, Parameter, functions_in, read_function
from rlhf_cli.reference.worked_examples import WORKED_EXAMPLES, WorkedExample
from rlhf_cli.suggest import nearest
from rlhf_cli.tables.reward_arguments import REWARD_ARGUMENTS
from rlhf_cli.yaml_loader import SAFE_LOADER

_DEFAULT_NAME = "mine"
_REFERS = re.compile(r"The (?:other )?arguments are those of `\w+`\.")
"""What a docstring says that leaves arguments to another, which are shown here."""


@dataclass(frozen=True)
class ArgumentReference:
    """An argument that stands under `args`. `default` is the function's, NO_DEFAULT where it has to be given.

    `shipped` is what the ready-made YAML sets, None where it says nothing of it. `choices` is empty for any value.
    """

    name: str
    type: str
    default: object
    choices: tuple[str, ...]
    text: str
    shipped: object = None


@dataclass(frozen=True)
class ColumnReference:
    """A column of the dataset that the function reads."""

    name: str
    is_required: bool
    text: str


@dataclass(frozen=True)
class RewardReference:
    """A reward, ready-made (`option` names it) or a function of the user's (`option` is None).

    `yaml` is what to paste into an experiment, `on_command_line` the same for a command.
    """

    option: str | None
    fn: str
    caption: str
    conf_file: Path | None
    source: FunctionSource
    arguments: tuple[ArgumentReference, ...]
    columns: tuple[ColumnReference, ...]
    example: WorkedExample | None
    yaml: str
    on_command_line: str

    @property
    def text(self) -> str:
        """Return what is said of the reward behind its summary, and of the score of one text; '' for nothing."""
        by = self.source.scores_by
        parts = (self.source.docstring.text, *((by.summary, by.text) if by is not None else ()))
        return "\n\n".join(part for part in parts if part and not _REFERS.fullmatch(part))


def reward_reference(named: str) -> RewardReference:
    """Return what is known of a ready-made reward, by its name, or of `./rewards.py:function`.

    Raises ConfigError where no reward is called so, RewardError where the function cannot be read.
    """
    if ":" in named or named.endswith(".py"):
        return _own(named)
    options = groups().get("reward", {})
    if named not in options:
        close = nearest(named, options)
        raise ConfigError(
            f"there is no reward {named!r}",
            where="rlhf list reward",
            expected="one of " + ", ".join(sorted(options)) + ", or ./file.py:function",
            hint=f"rlhf list reward {close}" if close else "rlhf list reward",
        )
    file = options[named]
    text = file.read_text(encoding="utf-8")
    tree = yaml.load(text, Loader=SAFE_LOADER) or {}
    fn = str(tree.get("fn"))
    source = read_function(fn, where=f"{file}")
    arguments, columns = _arguments(source, section(tree, "args"))
    name = named.removeprefix("trl_")
    body = text.partition("\n")[2] if text.startswith("#") else text
    return RewardReference(
        option=named,
        fn=fn,
        caption=caption(file),
        conf_file=file,
        source=source,
        arguments=arguments,
        columns=columns,
        example=WORKED_EXAMPLES.get(named),
        yaml=f"rewards:\n  {name}:\n" + _indented(body),
        on_command_line=f"+reward@rewards.{name}={named}",
    )


def own_arguments(fn: str) -> tuple[ArgumentReference, ...]:
    """Return what may stand under `args` of a reward of this function. Raises RewardError for one that is not there."""
    return _arguments(read_function(fn), {})[0]


def _own(named: str) -> RewardReference:
    if ":" not in named:
        found = functions_in(f"{named}:")
        raise ConfigError(
            "which function of this file?",
            where="rlhf list reward",
            got=named,
            expected="one of " + ", ".join(f"{named}:{name}" for name in found) if found else "a file with a function",
            hint=f"rlhf list reward {named}:{found[0]}" if found else None,
        )
    source = read_function(named)
    arguments, columns = _arguments(source, {})
    missing = [f"rewards.{source.name}.args.{one.name}=VALUE" for one in arguments if one.default is NO_DEFAULT]
    return RewardReference(
        option=None,
        fn=named,
        caption=source.docstring.summary,
        conf_file=None,
        source=source,
        arguments=arguments,
        columns=columns,
        example=None,
        yaml=_yaml_of(named, arguments),
        on_command_line=" ".join([f"+rewards.{source.name}.fn={named}", *missing]),
    )


def _arguments(
    source: FunctionSource, shipped: JsonTree
) -> tuple[tuple[ArgumentReference, ...], tuple[ColumnReference, ...]]:
    """Return the arguments and the columns of a function.

    A factory, which takes nothing of what was asked and answered, has arguments alone. Of any other function what has
    to be given by name is an argument, and so is what has a default; the rest are columns. Where the shipped YAML, or a
    text that begins with `dataset column`, says otherwise, that counts.
    """
    named = [one for one in source.parameters if not one.takes_the_rest and one.name not in REWARD_ARGUMENTS]
    is_factory = not any(one.name in REWARD_ARGUMENTS or one.takes_the_rest for one in source.parameters)
    texts = {**(source.scores_by.arguments if source.scores_by else {}), **source.docstring.arguments}
    arguments, columns = [], []
    for one in named:
        text = texts.get(one.name, "")
        is_column = text.startswith("dataset column") or (one.is_required and not _is_by_name(source, one))
        if one.name in shipped or is_factory or not is_column:
            arguments.append(
                ArgumentReference(one.name, one.type, one.default, one.choices, text, shipped.get(one.name))
            )
        else:
            said = text.removeprefix("dataset column").lstrip(":, ")
            columns.append(ColumnReference(one.name, one.is_required, said))
    return tuple(arguments), tuple(columns)


def _is_by_name(source: FunctionSource, parameter: Parameter) -> bool:
    return parameter.by_name or source.is_class


def _yaml_of(fn: str, arguments: tuple[ArgumentReference, ...]) -> str:
    lines = ["rewards:", f"  {fn.rpartition(':')[2] or _DEFAULT_NAME}:", f"    fn: {fn}"]
    if arguments:
        lines.append("    args:")
    for argument in arguments:
        value = "???" if argument.default is NO_DEFAULT else as_yaml(argument.default)
        lines.append(f"      {argument.name}: {value}")
    return "\n".join([*lines, "    weight: 1.0"]) + "\n"


def as_yaml(value: object) -> str:
    """Return a value as it is written in YAML, on one line."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)  # YAML's double quotes are JSON's
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").strip()


def _indented(body: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in body.rstrip().splitlines())
