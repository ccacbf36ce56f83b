"""Print keys, metrics, rewards, options and configurations for `rlhf list` and `rlhf show`."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rlhf_cli.config.conf_folders import caption, search_dirs
from rlhf_cli.config.origins import Origins
from rlhf_cli.display.terminal import facts_grid, plain_table
from rlhf_cli.plan.batches import count
from rlhf_cli.project.function_source import NO_DEFAULT
from rlhf_cli.project.key_reference import KeyReference, MetricReference, TrainerArgument, TrainerReference
from rlhf_cli.project.reward_reference import RewardReference, as_yaml

_FURTHEST_ORIGIN = 56
_JOINED = re.compile(r"(?<=\S)\n(?=[\w`(])")
"""The break between two lines of a paragraph, but not before an indented line or a list."""


def show_groups(console: Console, groups: Mapping[str, Mapping[str, Path]], *, more: str) -> None:
    """Print every group with its options and their captions; at a terminal, also the hint `more`."""
    mine = search_dirs()[:-1]
    for number, (group, options) in enumerate(groups.items()):
        console.print(Text(f"\n{group}" if number else group, style="bold cyan"))
        pairs = [
            (f"  {option}", caption(file) + (" (yours)" if any(map(file.is_relative_to, mine)) else ""))
            for option, file in options.items()
        ]
        show_pairs(console, pairs)
    if console.is_terminal:
        console.print(Text(f"\n{more}", style="dim"))


def show_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and their descriptions in two columns. A long text wraps within its column."""
    width = max((len(name) for name, _ in pairs), default=0)
    if console.is_terminal:
        console.print(facts_grid((f"{name:<{width}}", text) for name, text in pairs))
        return
    for name, text in pairs:  # in a pipe: no trailing spaces and no wrapping
        console.print(Text(f"{name:<{width}}  {text}".rstrip()), soft_wrap=True)


def show_option(console: Console, group: str, option: str, file: Path) -> None:
    """Print an option's file, its comments as text and the rest as YAML, and its path."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comments = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    head = [line.removeprefix("#").removeprefix(" ") for line in comments if not line.startswith("# @package")]
    console.print(Text.assemble((f"{group} ", "cyan"), (option, "bold")))
    console.print(Text("\n".join(head)), soft_wrap=not console.is_terminal)
    console.print(Text("\n".join(["", *lines[len(comments) :]]).rstrip()), soft_wrap=True)
    console.print(Text.assemble(("\nfile  ", "dim"), shown_path(file)), soft_wrap=True)


def show_tasks(console: Console, tasks: Sequence[Mapping[str, Any]], missing: str) -> None:
    """Print the tasks of a package: name, an example in one line, arguments. Print `missing` if there are none."""
    _heading(console, f"{len(tasks)} tasks, with an example and arguments" if tasks else missing)
    for task in tasks:
        question, answer = (" ".join(str(task[part]).split()) for part in ("question", "answer"))
        arguments = ", ".join(f"{name} {default}" for name, default in task["arguments"].items())
        console.print(Text(f"  {task['name']}", style="bold cyan"))
        about = Text.assemble(f"    {question:.150} -> {answer:.40}\n    ", (arguments, "dim"))
        console.print(about, soft_wrap=not console.is_terminal)


def shown_path(file: Path, line: int | None = None) -> str:
    """Return a path, relative if that is short, with its line number."""
    relative = os.path.relpath(file)
    shown = str(file) if relative.startswith("../..") else relative
    return f"{shown}:{line}" if line else shown


def _entry(console: Console, name: str, facts: Sequence[str], text: str, *, indent: str = "") -> None:
    """Print a key or an argument: its name and facts in one line, its meaning below."""
    line = Text.assemble(indent, (name, "bold cyan"), "  ", (", ".join(filter(None, facts)), "dim"))
    console.print(line, soft_wrap=not console.is_terminal)
    if text:
        show_pairs(console, [(f"{indent}  ", text)])


def show_keys(console: Console, keys: Sequence[KeyReference]) -> None:
    """Print each key with its type and default, and its meaning below."""
    for key in keys:
        is_section = key.type in ("section", "section | null")
        facts = [f"section of {count(len(key.holds), 'key')}"] if is_section else [key.type, _default_text(key.default)]
        _entry(console, key.key, facts, key.text)


def show_metrics(console: Console, metrics: Sequence[MetricReference]) -> None:
    """Print metrics under their group headings. Metrics with the same meaning share one entry."""
    for number, (group, members) in enumerate(itertools.groupby(metrics, key=lambda metric: metric.group)):
        console.print(Text(f"\n{group}" if number else group, style="bold"))
        for text, same in itertools.groupby(members, key=lambda metric: metric.text):
            names = ", ".join(metric.name for metric in same)
            console.print(Text(f"  {names}", style="cyan"), soft_wrap=not console.is_terminal)
            show_pairs(console, [("    ", text)])


def show_reward(console: Console, reward: RewardReference) -> None:
    """Print the page of one reward."""
    console.print(Text.assemble(("reward ", "cyan"), (reward.name, "bold")))
    if reward.caption and reward.caption != reward.summary:
        console.print(Text(reward.caption))
    for part in (reward.summary, reward.text):
        if part:
            console.print(Text("\n" + _JOINED.sub(" ", part)), soft_wrap=not console.is_terminal)
    if reward.arguments:
        _heading(console, "arguments, under `args`")
        for argument in reward.arguments:
            default, shipped = _default_text(argument.default), argument.shipped
            differs = shipped is not None and default != f"default {as_yaml(shipped)}"
            facts = [argument.type, default, f"here {as_yaml(shipped)}" if differs else ""]
            _entry(console, argument.name, facts, argument.text, indent="  ")
    if reward.columns:
        _heading(console, "columns of the data")
        columns = [
            (f"  {column.name}", ("" if column.default is NO_DEFAULT else "optional: ") + column.text)
            for column in reward.columns
        ]
        show_pairs(console, columns)
    if reward.example is not None:
        args = ", ".join(f"{name}: {as_yaml(value)}" for name, value in reward.example.args.items())
        prompt = f" to the prompt {reward.example.prompt!r}" if reward.example.prompt else ""
        _heading(console, f"example scores{prompt}" + (f", with args {{{args}}}" if args else ""))
        first = reward.example.rows[0]
        more = {"reply": "reply", "num_tokens": "tokens"}
        texts = ["completion", *first["columns"], *(head for name, head in more.items() if name in first)]
        rows = []
        for row in reward.example.rows:
            completion = row["completion"]
            text = completion.rstrip("\n") if "```" in completion else repr(completion)[1:-1] or "(empty)"
            cells = [value if isinstance(value, str) else as_yaml(value) for value in row["columns"].values()]
            score = "none" if row["score"] is None else row["score"]
            if isinstance(score, list):
                score = "  ".join(f"{value:+g} on characters {start:g} to {end:g}" for start, end, value in score)
            elif score != "none":
                score = f"{score:.3g}"
            rows.append([text, *cells, *(str(row[name]) for name in more if name in row), score])
        console.print(plain_table(texts, ["score"], rows=rows, head="dim", indent=2))
    _heading(console, "in an experiment")
    console.print(Text(reward.yaml.rstrip()), soft_wrap=True)
    _heading(console, "on the command line")
    console.print(Text(f"  rlhf train +exp=NAME {reward.override}"), soft_wrap=True)
    where = shown_path(reward.file, reward.line)
    if reward.conf_file is not None:
        where = f"{shown_path(reward.conf_file)}, {where}"
    console.print(Text.assemble(("\nfile  ", "dim"), where), soft_wrap=True)


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def _default_text(default: object) -> str:
    return "must be given" if default is NO_DEFAULT else f"default {as_yaml(default)}"


def show_trainer(console: Console, trainer: TrainerReference) -> None:
    """Print all arguments of a trainer, one line each: the key, its default, and the first sentence of its help."""
    console.print(Text.assemble(("trainer ", "cyan"), (trainer.name, "bold"), f"  {trainer.caption}"))
    runs = f"runs {trainer.trl} of TRL" + (", with a critic" if trainer.has_critic else "")
    console.print(Text.assemble((f"{runs}; file {shown_path(trainer.conf_file)}", "dim")), soft_wrap=True)
    for config_class, group in itertools.groupby(trainer.arguments, key=lambda argument: argument.config_class):
        console.print(Text.assemble(("\nof ", "dim"), (config_class, "bold")))
        for argument in group:
            value = as_yaml(argument.default if argument.ours is None else argument.ours)
            meaning = f"-> {argument.home}" if argument.home else argument.text.partition(". ")[0].rstrip(".")
            line = Text.assemble(f"  {argument.name:<36} ", (f"{value:<12} ", "dim"), meaning)
            if console.is_terminal:
                line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)
    more = f"\nrlhf list trainer {trainer.name} WORD shows the arguments that contain WORD"
    console.print(Text(more, style="dim"), soft_wrap=True)


def show_arguments(console: Console, found: Sequence[TrainerArgument]) -> None:
    """Print the full details of some arguments."""
    for argument in found:
        facts = [argument.type.replace("'", ""), f"default {as_yaml(argument.default)}"]
        facts += [f"here {as_yaml(argument.ours)}"] if argument.ours is not None else []
        facts += [f"instead of TRL's {argument.name}"] if argument.home else []
        if argument.choices and not all(choice in argument.type for choice in argument.choices):
            facts.append("one of " + ", ".join(argument.choices))
        _entry(console, argument.key, facts, argument.text)


def show_configuration(console: Console, tree: Mapping[str, object], origins: Origins) -> None:
    """Print the values of a tree. A key that was not written anywhere is marked `default`."""
    lines = list(_lines(tree, origins, "", 0))
    column = min(_FURTHEST_ORIGIN, max((len(line) for line, origin in lines if origin), default=0) + 2)
    for line, origin in lines:
        if origin:
            line.append(" " * max(2, column - len(line.plain)))
            line.append(f"# {origin}", style="dim")
        console.print(line, soft_wrap=True)


def _lines(node: Mapping[str, object], origins: Origins, prefix: str, depth: int) -> Iterator[tuple[Text, str]]:
    for name, value in node.items():
        key = f"{prefix}.{name}" if prefix else name
        line = Text("  " * depth)
        line.append(f"{name}:", style="bold")
        if isinstance(value, dict) and value:
            yield line, ""
            yield from _lines(value, origins, key, depth + 1)
            continue
        origin = str(origins.by_key.get(key) or "default")
        if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            yield line, origin
            for entry in value:
                if isinstance(entry, dict):
                    entry = {name: one for name, one in entry.items() if one is not None}
                yield Text(f"{'  ' * (depth + 1)}- {as_yaml(entry)}"), ""
            continue
        line.append(f" {as_yaml(value)}")
        yield line, origin
