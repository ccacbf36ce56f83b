"""Describe a reward: what it scores, its arguments and columns, an example, its YAML."""

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
"""A sentence that refers to another docstring for the arguments, which are already shown here."""


@dataclass(frozen=True)
class ArgumentReference:
    """An argument under `args`. `default` is the function's, or NO_DEFAULT if it is required.

    `shipped` is the value that the ready-made YAML sets, or None. `choices` is empty if any value is allowed.
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
    """A ready-made reward (`option` is its name) or a user's function (`option` is None).

    `yaml` is the text to paste into an experiment, `on_command_line` the same as overrides.
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
        """Return the docstring's text after the summary, and the text about the score of one completion, or ''."""
        by = self.source.scores_by
        parts = (self.source.docstring.text, *((by.summary, by.text) if by is not None else ()))
        return "\n\n".join(part for part in parts if part and not _REFERS.fullmatch(part))


def reward_reference(named: str) -> RewardReference:
    """Describe a ready-made reward by its name, or `./rewards.py:function`.

    Raises ConfigError if no reward has this name, RewardError if the function cannot be read.
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
    """Return the arguments allowed under `args` for this function. Raises RewardError if it does not exist."""
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

    A factory takes neither prompts nor completions and has only arguments. For other functions, keyword-only parameters
    and those with a default are arguments; the rest are columns. The shipped YAML, or a text that begins with `dataset
    column`, overrides this.
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
    """Return a value as YAML on one line."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)  # YAML's double quotes follow JSON's rules
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").strip()


def _indented(body: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in body.rstrip().splitlines())
