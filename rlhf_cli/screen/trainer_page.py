"""Print a trainer's arguments: one line each, or full details for those matching a word."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rlhf_cli.reference.reward_reference import as_yaml
from rlhf_cli.reference.trainer_reference import TrainerArgument, TrainerReference
from rlhf_cli.screen.option_lists import show_pairs, shown_path


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
