"""Print what is known of keys, metrics, rewards, trainer arguments and options."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from rlhf_cli.config.conf_folders import caption, user_dir
from rlhf_cli.project.reference.function_source import NO_DEFAULT
from rlhf_cli.project.reference.key_reference import KeyReference, MetricReference
from rlhf_cli.project.reference.reward_reference import (
    ArgumentReference,
    ExampleRow,
    RewardReference,
    WorkedExample,
    as_yaml,
)
from rlhf_cli.project.reference.trainer_reference import TrainerArgument, TrainerReference

_JOINED = re.compile(r"(?<=\S)\n(?=[\w`(])")
"""The break between two lines of a paragraph, but not before an indented line or a list."""


def show_groups(console: Console, groups: Mapping[str, Mapping[str, Path]], *, more: str) -> None:
    """Print every group with its options, with the captions of a group aligned in one column.

    At a terminal, print the hint `more` at the end.
    """
    for number, (group, options) in enumerate(groups.items()):
        if number:
            console.print()
        console.print(Text(group, style="bold cyan"))
        yours = {option: " (yours)" if _is_mine(file) else "" for option, file in options.items()}
        show_pairs(console, [(f"  {option}", caption(file) + yours[option]) for option, file in options.items()])
    if console.is_terminal:
        console.print()
        console.print(Text(more, style="dim"))


def show_pairs(console: Console, pairs: Sequence[tuple[str, str]], *, style: str = "bold") -> None:
    """Print names and their descriptions in two columns. A long text wraps within its column."""
    width = max((len(name) for name, _ in pairs), default=0)
    if not console.is_terminal:  # no trailing spaces and no wrapping
        for name, text in pairs:
            console.print(Text(f"{name:<{width}}  {text}".rstrip()), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style=style, no_wrap=True, width=width)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(Text(name), Text.from_markup(_marked(text)))
    console.print(table)


def show_option(console: Console, group: str, option: str, file: Path) -> None:
    """Print an option's file, its comments as text and the rest as YAML, and its path."""
    text = file.read_text(encoding="utf-8")
    head, body = _head(text)
    console.print(Text.assemble((f"{group} ", "cyan"), (option, "bold")))
    console.print(Text("\n".join(head)), soft_wrap=not console.is_terminal)
    console.print()
    show_yaml(console, body)
    console.print()
    console.print(Text.assemble(("file  ", "dim"), shown_path(file)), soft_wrap=True)


def show_yaml(console: Console, text: str) -> None:
    """Print YAML, coloured at a terminal. Lines are never cut, so they can be copied."""
    if console.is_terminal and not console.no_color:
        lines = Syntax(text.rstrip(), "yaml", background_color="default", theme="ansi_dark").highlight(text.rstrip())
        console.print(lines, soft_wrap=True, end="")
        return
    console.print(Text(text.rstrip()), soft_wrap=True)


def shown_path(file: Path, line: int | None = None) -> str:
    """Return a path relative to the current folder if that is short, with its line number."""
    relative = os.path.relpath(file)
    shown = str(file) if relative.startswith("../..") else relative
    return f"{shown}:{line}" if line else shown


def _head(text: str) -> tuple[list[str], str]:
    """Return the comment lines at the head of a file without `#`, and the rest of the file."""
    lines = text.splitlines()
    head = []
    while lines and lines[0].startswith("#"):
        line = lines.pop(0)
        if not line.startswith("# @package"):
            head.append(line.removeprefix("#").removeprefix(" "))
    return head, "\n".join(lines)


def _is_mine(file: Path) -> bool:
    mine = user_dir()
    return mine is not None and file.is_relative_to(mine)


def _marked(text: str) -> str:
    escaped = text.replace("[", r"\[")
    return escaped.removesuffix(" (yours)") + (" [green](yours)[/]" if escaped.endswith(" (yours)") else "")


def show_keys(console: Console, keys: Sequence[KeyReference]) -> None:
    """Print each key with its type and default, and its meaning below."""
    for key in keys:
        default = "must be given" if key.default is NO_DEFAULT else f"default {as_yaml(key.default)}"
        is_section = key.type in ("section", "section | null")
        facts = f"section of {len(key.holds)} keys" if is_section else f"{key.type}, {default}"
        console.print(Text.assemble((key.key, "bold cyan"), "  ", (facts, "dim")), soft_wrap=not console.is_terminal)
        if key.text:
            show_pairs(console, [("  ", key.text)])


def show_metrics(console: Console, metrics: Sequence[MetricReference]) -> None:
    """Print metrics under their group headings. Metrics with the same meaning share one entry."""
    for number, (group, members) in enumerate(itertools.groupby(metrics, key=lambda one: one.group)):
        if number:
            console.print()
        console.print(Text(group, style="bold"))
        for (text, _), same in itertools.groupby(members, key=lambda one: (one.text, tuple(one.more.items()))):
            metrics_of_row = list(same)
            names = ", ".join(one.name for one in metrics_of_row)
            console.print(Text(f"  {names}", style="cyan"), soft_wrap=not console.is_terminal)
            more = [("    ", f"{head}: {said}") for head, said in metrics_of_row[0].more.items()]
            show_pairs(console, [*([("    ", text)] if text else []), *more])


def show_reward(console: Console, reward: RewardReference) -> None:
    """Print the page of one reward."""
    docstring = reward.source.docstring
    console.print(Text.assemble(("reward ", "cyan"), (reward.option or reward.fn, "bold")))
    if reward.caption and reward.caption != docstring.summary:
        console.print(Text(reward.caption))
    for part in (docstring.summary, reward.text):
        if part:
            console.print()
            console.print(Text(_JOINED.sub(" ", part)), soft_wrap=not console.is_terminal)
    if reward.arguments:
        _heading(console, "arguments, under `args`")
        for argument in reward.arguments:
            _show_argument(console, argument)
    if reward.columns:
        _heading(console, "columns of the data that it reads")
        show_pairs(console, [(f"  {one.name}", _column(one.text, is_required=one.required)) for one in reward.columns])
    if reward.example is not None:
        _heading(console, _example_heading(reward.example))
        console.print(_example(reward.example))
    elif docstring.example:
        _heading(console, "example")
        console.print(Text(docstring.example), soft_wrap=True)
    _heading(console, "to paste into an experiment")
    show_yaml(console, reward.yaml)
    _heading(console, "or on the command line")
    console.print(Text(f"  rlhf train +exp=NAME {reward.on_command_line}"), soft_wrap=True)
    console.print()
    files = [shown_path(file) for file in (reward.conf_file,) if file is not None]
    where = ", ".join([*files, shown_path(reward.source.file, reward.source.line)])
    console.print(Text.assemble(("file  ", "dim"), where), soft_wrap=True)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _show_argument(console: Console, argument: ArgumentReference) -> None:
    line = Text.assemble("  ", (argument.name, "bold cyan"), "  ", (_facts(argument), "dim"))
    console.print(line, soft_wrap=not console.is_terminal)
    if argument.text:
        show_pairs(console, [("   ", argument.text)])


def _facts(argument: ArgumentReference) -> str:
    """Return the type and default, and the value in the shipped YAML if that differs."""
    default = "must be given" if argument.default is NO_DEFAULT else f"default {as_yaml(argument.default)}"
    shipped = argument.shipped
    is_set = shipped is not None
    differs = is_set and (argument.default is NO_DEFAULT or as_yaml(shipped) != as_yaml(argument.default))
    facts = [argument.type, default, *([f"here {as_yaml(shipped)}"] if differs else [])]
    return ", ".join(fact for fact in facts if fact)


def _column(text: str, *, is_required: bool) -> str:
    return text if is_required else f"if there is one: {text}"


def _example_heading(example: WorkedExample) -> str:
    args = ", ".join(f"{name}: {as_yaml(value)}" for name, value in example.args.items())
    prompt = f" to the prompt {example.prompt!r}" if example.prompt else ""
    return f"what it gives{prompt}" + (f", with args {{{args}}}" if args else "")


def _example(example: WorkedExample) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    table.add_column("completion", overflow="fold")
    columns = list(example.rows[0].columns)
    has_reply = any(row.reply is not None for row in example.rows)
    has_tokens = any(row.num_tokens is not None for row in example.rows)
    for column in columns:
        table.add_column(column, overflow="fold")
    if has_reply:
        table.add_column("the answer to it", overflow="fold")
    if has_tokens:
        table.add_column("tokens", justify="right")
    table.add_column("score", justify="right")
    for row in example.rows:
        table.add_row(*(Text(cell) for cell in _cells(row, columns, has_reply=has_reply, has_tokens=has_tokens)))
    return table


def _cells(row: ExampleRow, columns: list[str], *, has_reply: bool, has_tokens: bool) -> Iterator[str]:
    yield row.completion.rstrip("\n") if "```" in row.completion else repr(row.completion)[1:-1] or "(empty)"
    for column in columns:
        value = row.columns[column]
        yield value if isinstance(value, str) else as_yaml(value)
    if has_reply:
        yield row.reply or ""
    if has_tokens:
        yield str(row.num_tokens)
    yield shown_score(row)


def shown_score(row: ExampleRow) -> str:
    """Format a score: three digits, `none` if the reward does not apply, or the spans of a dense reward."""
    if row.score is None:
        return "none"
    if isinstance(row.score, list):
        return "  ".join(f"{value:+g} on characters {start} to {end}" for start, end, value in row.score)
    return f"{row.score:.3g}"


def show_trainer(console: Console, trainer: TrainerReference) -> None:
    """Print all arguments of a trainer, one line each: the key, its default, and the first sentence of its help."""
    console.print(Text.assemble(("trainer ", "cyan"), (trainer.option, "bold"), f"  {trainer.caption}"))
    runs = f"runs {trainer.trl} of TRL" + (", with a critic" if trainer.has_critic else "")
    console.print(Text.assemble((f"{runs}; file {shown_path(trainer.conf_file)}", "dim")), soft_wrap=True)
    for config_class, group in itertools.groupby(trainer.arguments, key=lambda one: one.config_class):
        console.print()
        console.print(Text.assemble(("of ", "dim"), (_class_name(config_class), "bold"), ("", "")))
        for argument in group:
            _show_line(console, argument)
    console.print()
    console.print(
        Text(f"rlhf list trainer {trainer.option} WORD shows all of the arguments that WORD occurs in", style="dim"),
        soft_wrap=True,
    )


def show_arguments(console: Console, found: Sequence[TrainerArgument]) -> None:
    """Print the full details of some arguments."""
    for number, argument in enumerate(found):
        if number:
            console.print()
        console.print(Text.assemble((argument.key, "bold cyan"), _instead(argument)), soft_wrap=True)
        facts = [argument.type.replace("'", ""), f"default {as_yaml(argument.default)}"]
        facts += [f"here {as_yaml(argument.ours)} ({argument.origin})"] if argument.origin is not None else []
        show_pairs(console, [("  ", ", ".join(facts))], style="dim")
        if argument.choices and not all(choice in argument.type for choice in argument.choices):
            show_pairs(console, [("  ", "one of " + ", ".join(argument.choices))])
        show_pairs(console, [("  ", argument.text)])


def _instead(argument: TrainerArgument) -> tuple[str, str]:
    return (f"  in the place of TRL's {argument.name}", "yellow") if argument.home else ("", "")


def _show_line(console: Console, argument: TrainerArgument) -> None:
    """Print one line, cut at the terminal's edge. In a pipe it is not cut."""
    value = as_yaml(argument.default if argument.origin is None else argument.ours)
    said = argument.text.partition(". ")[0].rstrip(".")
    if argument.home:
        said = f"-> {argument.home}"
    line = Text.assemble(f"  {argument.name:<36} ", (f"{value:<12} ", "dim"), (said, "yellow" if argument.home else ""))
    if console.is_terminal:
        line.truncate(console.width, overflow="ellipsis")
    console.print(line, soft_wrap=True)


def _class_name(config_class: str) -> str:
    names = {"PpoArgs": "PPO (ours)", "TrainingArguments": "every trainer (transformers' TrainingArguments)"}
    return names.get(config_class, config_class)
