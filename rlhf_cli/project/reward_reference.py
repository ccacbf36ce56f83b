"""Describe rewards, with worked examples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rlhf_cli.config.conf_folders import caption, groups
from rlhf_cli.data.worlds.reasoning_gym import list_tasks
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.project.function_source import NO_DEFAULT, FunctionSource, SourceParameter, read_function
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS
from rlhf_cli.text.json_values import JsonTree, JsonValue, section
from rlhf_cli.text.regular_files import SAFE_LOADER
from rlhf_cli.text.suggest import nearest


@dataclass(frozen=True)
class WorkedExample:
    """Rows that one reward scores with `args` on top of its YAML. `as_messages` passes texts as messages.

    A row has `completion`, `columns` and `score`: a number, None if the reward does not apply, or the [start, end,
    value] spans of a dense reward. `reply` is the answer of the server or judge, `num_tokens` the length in tokens;
    rewards that do not depend on them have neither.
    """

    prompt: str
    args: Mapping[str, JsonValue]
    rows: list[dict[str, Any]]
    as_messages: bool = False


_OF_A_ROW = ("completion", "score", "reply", "num_tokens")


@cache
def worked_examples() -> dict[str, WorkedExample]:
    """Return the examples of the ready-made rewards, by option of the group `reward`."""
    found = {}
    trees = yaml.safe_load(Path(__file__).with_name("reward_examples.yaml").read_text(encoding="utf-8"))
    for option, tree in trees.items():
        shared = tree.pop("columns", {})
        for row in tree["rows"]:
            row["columns"] = shared | {name: row.pop(name) for name in [*row] if name not in _OF_A_ROW}
        found[option] = WorkedExample(**{"prompt": "", "args": {}, **tree})
    return found


@dataclass(frozen=True)
class RewardReference:
    """A reward: `yaml` to paste, `override` to type, the function's `summary`, `text`, `file` and `line`.

    `conf_file` is the file of a ready-made reward, None for a function of the user's own.
    """

    name: str
    fn: str
    caption: str
    summary: str
    text: str
    file: Path
    line: int
    arguments: tuple[SourceParameter, ...]
    columns: tuple[SourceParameter, ...]
    yaml: str
    override: str
    conf_file: Path | None
    example: WorkedExample | None = None


def option_file(group: str, named: str) -> Path:
    """Return the file of a group's option. Raise ConfigError if there is no such option."""
    options, command = groups()[group], f"rlhf list {group}"
    if named not in options:
        close, expected = nearest(named, options), "one of " + ", ".join(sorted(options))
        what, hint = f"there is no {group} named {named!r}", f"{command} {close}" if close else command
        raise ConfigError(what, where=command, expected=expected, hint=hint)
    return options[named]


def described_tasks() -> tuple[list[dict[str, Any]], str]:
    """Return name, example and arguments of every task of reasoning-gym, and '', or no task and what is missing."""
    try:
        return list_tasks(), ""
    except DataError as error:
        return [], f"the tasks cannot be listed: {error.what} (try: {error.hint})"


def reward_reference(named: str) -> RewardReference:
    """Describe a ready-made reward by its name, or a function, `./file.py:function`. Raise ConfigError or RewardError
    if there is none of that name.
    """
    file = None if ":" in named else option_file("reward", named)
    text = f"fn: {named}" if file is None else file.read_text(encoding="utf-8")
    tree = yaml.load(text, Loader=SAFE_LOADER) or {}
    fn = str(tree.get("fn"))
    source = read_function(fn, where=str(file or "rlhf list reward"))
    arguments, columns = function_arguments(source, section(tree, "args"))
    name = named.rpartition(":")[2].removeprefix("trl_")
    override = f"+reward@rewards.{name}={named}"
    if file is None:
        needed = [argument.name for argument in arguments if argument.default is NO_DEFAULT]
        typed = (f" +rewards.{name}.args.{argument}=VALUE" for argument in needed)
        override = f"+rewards.{name}.fn={named}{''.join(typed)}"
        text += "\nargs:" * bool(needed) + "".join(f"\n  {argument}: ???" for argument in needed)
    body = text.partition("\n")[2] if text.startswith("#") else text
    lines = (f"    {line}" if line else "" for line in body.rstrip().splitlines())
    return RewardReference(
        name=named,
        fn=fn,
        caption="" if file is None else caption(file),
        summary=source.docstring.summary,
        text=source.docstring.text,
        file=source.file,
        line=source.line,
        arguments=arguments,
        columns=columns,
        yaml="\n".join(["rewards:", f"  {name}:", *lines, ""]),
        override=override,
        conf_file=file,
        example=worked_examples().get(named),
    )


def function_arguments(
    source: FunctionSource, shipped: JsonTree
) -> tuple[tuple[SourceParameter, ...], tuple[SourceParameter, ...]]:
    """Return the arguments and the columns of a function.

    A factory takes neither prompts nor completions and has only arguments. For other functions, keyword-only parameters
    and those with a default are arguments; the rest are columns. The shipped YAML, or a text that begins with `dataset
    column`, overrides this.
    """
    own = [known for known in source.parameters if not known.takes_the_rest and known.name not in REWARD_ARGUMENTS]
    is_factory = len(own) == len(source.parameters)
    arguments, columns = [], []
    for parameter in own:
        text = source.docstring.arguments.get(parameter.name, parameter.text)
        is_required = parameter.default is NO_DEFAULT
        is_column = text.startswith("dataset column") or (is_required and not parameter.by_name and not source.is_class)
        if is_column and not is_factory and parameter.name not in shipped:
            columns.append(replace(parameter, text=text.removeprefix("dataset column").lstrip(":, ")))
        else:
            arguments.append(replace(parameter, text=text, shipped=shipped.get(parameter.name)))
    return tuple(arguments), tuple(columns)


def as_yaml(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)  # YAML's double quotes follow JSON's rules
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("...").strip()
