"""Print a reward's reference page: what it does, its arguments, a worked example, and YAML to paste."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.reference.docstring import reflowed
from rlhf_cli.reference.function_source import NO_DEFAULT
from rlhf_cli.reference.reward_reference import ArgumentReference, RewardReference, as_yaml
from rlhf_cli.reference.worked_examples import ExampleRow, WorkedExample
from rlhf_cli.screen.option_lists import show_pairs, show_yaml, shown_path


def show_reward(console: Console, reward: RewardReference) -> None:
    """Print the page of one reward."""
    docstring = reward.source.docstring
    console.print(Text.assemble(("reward ", "cyan"), (reward.option or reward.fn, "bold")))
    if reward.caption and reward.caption != docstring.summary:
        console.print(Text(reward.caption))
    for part in (docstring.summary, reward.text):
        if part:
            console.print()
            console.print(Text(reflowed(part)), soft_wrap=not console.is_terminal)
    if reward.arguments:
        _heading(console, "arguments, under `args`")
        for argument in reward.arguments:
            _show_argument(console, argument)
    if reward.columns:
        _heading(console, "columns of the data that it reads")
        show_pairs(
            console, [(f"  {one.name}", _column(one.text, is_required=one.is_required)) for one in reward.columns]
        )
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
