"""rlhf list [GROUP [NAME [WORD...]]]     what there is to choose from, and its documentation

rlhf list                          experiments, rewards, trainers, models, data: every group with its options
rlhf list reward                   the options of one group
rlhf list reward judge             what it scores, its arguments, a worked example, YAML to paste
rlhf list reward ./rewards.py:f    the same of a function of your own, without an example
rlhf list trainer grpo             TRL's arguments with their defaults, and those set by another key here
rlhf list trainer grpo learning rate     the arguments with these words, with TRL's help
rlhf list exp quickstart           the file of an option: its description and its settings
rlhf list data reasoning_gym       the same, and the tasks of that package: an example and the arguments of each
rlhf list metrics kl               logged metrics and their meaning; those with these words
rlhf list keys rewards             keys of the configuration: those below a key, or with these words

--json   print all of it as JSON
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.config.conf_folders import caption, groups
from rlhf_cli.display import reference_pages as pages
from rlhf_cli.errors import ConfigError
from rlhf_cli.project.function_source import as_tree
from rlhf_cli.project.key_reference import about, about_keys, metrics_about, trainer_reference
from rlhf_cli.project.reward_reference import described_tasks, option_file, reward_reference
from rlhf_cli.text.suggest import nearest

_FIRST = ("exp", "trainer", "reward", "data", "model")
_WORDS = ("keys", "metrics")
"""What is listed beside the groups."""
_Page = tuple[object, Callable[[Console], None]]
"""The JSON value of a page, and the function that prints it."""


def run(options: Options) -> int:
    """Print the page of a group, option, metric or key, and return the exit code."""
    value, show = _page(options.words)
    return print_result(options, lambda: value, show)


def _page(words: list[str]) -> _Page:
    names = [*(name for name in _FIRST if name in groups()), *sorted(set(groups()) - set(_FIRST))]
    known = {name: groups()[name] for name in names}
    if not words:
        return _groups(known, "GROUP")
    group, names = _group(words[0], known), words[1:]
    if group == "keys":
        keys = about_keys(names)
        return [as_tree(key) for key in keys], lambda console: pages.show_keys(console, keys)
    if group == "metrics":
        metrics = metrics_about(names)
        return [asdict(metric) for metric in metrics], lambda console: pages.show_metrics(console, metrics)
    if group == "trainer" and names:
        return _trainer(names[0], names[1:])
    if len(names) > 1:
        expected = f"rlhf list {group} NAME"
        raise ConfigError(f"a {group} is one word", got=" ".join(words), expected=expected, where="rlhf list")
    if not names:
        return _groups({group: known[group]}, group)
    if group == "reward":
        reward = reward_reference(names[0])
        return as_tree(reward), lambda console: pages.show_reward(console, reward)
    return _option(group, names[0])


def _groups(known: dict[str, dict[str, Path]], group: str) -> _Page:
    value = {
        group: [{"name": name, "caption": caption(file), "file": str(file)} for name, file in options.items()]
        for group, options in known.items()
    }
    return value, lambda console: pages.show_groups(console, known, more=f"rlhf list {group} NAME describes one")


def _group(typed: str, known: dict[str, dict[str, Path]]) -> str:
    """Return the group, also for `rewards` or `key`. Raise ConfigError for an unknown one."""
    names = [*known, *_WORDS]
    for meant in (typed, typed.removesuffix("s"), f"{typed}s", *(["exp"] if typed.startswith("experiment") else [])):
        if meant in names:
            return meant
    close = nearest(typed, names)
    in_groups = [group for group, options in known.items() if typed in options]
    what = f"there is no group {typed!r}"
    hint = f"rlhf list {in_groups[0]} {typed}" if in_groups else f"rlhf list {close}" if close else "rlhf list"
    raise ConfigError(what, where="rlhf list", expected="one of " + ", ".join(names), hint=hint)


def _trainer(option: str, words: list[str]) -> _Page:
    trainer = trainer_reference(option)
    if not words:
        return as_tree(trainer), lambda console: pages.show_trainer(console, trainer)
    found = about(trainer.arguments, words)
    if not found:
        close = nearest("_".join(words), [argument.name for argument in trainer.arguments])
        what = f"no argument of {option} has {' and '.join(map(repr, words))} in its name or help"
        raise ConfigError(what, where="rlhf list trainer", hint=f"rlhf list trainer {option} {close or ''}".rstrip())
    return as_tree(replace(trainer, arguments=tuple(found))), lambda console: pages.show_arguments(console, found)


def _option(group: str, named: str) -> _Page:
    file = option_file(group, named)
    text = file.read_text(encoding="utf-8")
    value = {"group": group, "name": named, "caption": caption(file), "file": str(file), "text": text}
    if (group, named) != ("data", "reasoning_gym"):
        return value, lambda console: pages.show_option(console, group, named, file)
    tasks, missing = described_tasks()

    def show(console: Console) -> None:
        pages.show_option(console, group, named, file)
        pages.show_tasks(console, tasks, missing)

    return value | {"tasks": tasks}, show
