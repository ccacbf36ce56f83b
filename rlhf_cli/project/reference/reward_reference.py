"""Look up what is known of a reward, with worked examples."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import yaml

from rlhf_cli.config.conf_folders import caption, groups
from rlhf_cli.errors import ConfigError
from rlhf_cli.project.reference.function_source import (
    NO_DEFAULT,
    FunctionSource,
    Parameter,
    functions_in,
    read_function,
)
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS
from rlhf_cli.text.json_values import JsonTree, JsonValue, section
from rlhf_cli.text.suggest import nearest
from rlhf_cli.text.yaml_loader import SAFE_LOADER

Score = float | list[tuple[int, int, float]] | None
_NOTHING: Mapping[str, JsonValue] = MappingProxyType({})


@dataclass(frozen=True)
class ExampleRow:
    """A row of an example: a completion and its score.

    The score is a number, None if the reward does not apply, or the (start, end, value) spans of a dense reward.
    `reply` is the answer of the server or judge, or None if the reward asks neither. `num_tokens` is the length in
    tokens, for rewards that depend on it.
    """

    completion: str
    score: Score
    columns: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)
    reply: str | None = None
    num_tokens: int | None = None


@dataclass(frozen=True)
class WorkedExample:
    """Rows that one reward scores with `args` on top of its YAML. `as_messages` passes texts as messages."""

    rows: tuple[ExampleRow, ...]
    prompt: str = ""
    args: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)
    as_messages: bool = False


def _rows(*rows: tuple[str, Score], **columns: JsonValue) -> tuple[ExampleRow, ...]:
    return tuple(ExampleRow(completion, score, columns) for completion, score in rows)


def _words(number: int) -> str:
    return f"({number} words)"


_SPEAKERS: Mapping[str, JsonValue] = {"speaker_a": "A", "speaker_b": "B"}
_ADDER = "```python\ndef add(a, b):\n    return a + b\n```"

WORKED_EXAMPLES: Mapping[str, WorkedExample] = {
    "brevity": WorkedExample(
        _rows(("one two three", 1.0), ("one two three four", 0.75), ("one two three four five six seven", 0.0)),
        args={"full": 3, "zero": 7},
    ),
    "length_ramp": WorkedExample(
        _rows(("", 0.0), ("one two", 0.5), ("one two three four five", 1.0)),
        args={"full": 4, "zero": 0, "unit": "words"},
    ),
    "length_target": WorkedExample(
        _rows(("one two three four", 1.0), ("one two three", 0.5), ("one two three four five six", 0.0)),
        args={"target": 4, "width": 2, "unit": "words"},
    ),
    "exact_match": WorkedExample(
        (
            ExampleRow(" Paris\n", 1.0, {"answer": "Paris"}),
            ExampleRow("paris", 0.0, {"answer": "Paris"}),
            ExampleRow("colour", 1.0, {"answer": ["color", "colour"]}),
            ExampleRow("Paris", None, {"answer": None}),
        )
    ),
    "numeric_answer": WorkedExample(
        (
            ExampleRow("6 * 3 = 18. #### 18", 1.0, {"answer": "... so she has 18. #### 18"}),
            ExampleRow("That makes $1,234.00", 1.0, {"answer": "1234"}),
            ExampleRow("I think 17", 0.0, {"answer": "18"}),
            ExampleRow("18", None, {"answer": "a lot"}),
        )
    ),
    "regex": WorkedExample(_rows(("-7", 1.0), ("it is 7", 0.0))),
    "format_tags": WorkedExample(
        _rows(
            ("<think>1 + 1</think><answer>2</answer>", 1.0),
            ("<think>1 + 1</think> 2", 0.0),
            ("<answer>2</answer><think>1 + 1</think>", 0.0),
        )
    ),
    "repetition": WorkedExample(
        _rows(("the cat sat on the mat", 0.0), ("no no no no no", -0.6666666666666667), ("yes", 0.0))
    ),
    "language_consistency": WorkedExample(
        _rows(("Two and two make four", 1.0), ("Two und два make 四", 0.6), ("4", None)),
        prompt="What is 2 + 2?",
    ),
    "code_runs": WorkedExample(_rows(("```python\nprint(1 + 1)\n```", 1.0), ("print(1 / 0)", 0.0))),
    "code_passes_tests": WorkedExample(
        _rows(
            (_ADDER, 1.0),
            (_ADDER.replace("+", "-"), 0.5),
            tests="assert add(0, 0) == 0\nassert add(1, 2) == 3",
        )
    ),
    "judge": WorkedExample(
        (
            ExampleRow("4", 1.0, reply="Right, and short. Score: 10"),
            ExampleRow("Perhaps 5?", 0.2, reply="Wrong by one. Score: 2"),
        ),
        prompt="What is 2 + 2?",
    ),
    "server": WorkedExample(
        (ExampleRow("4", 0.5, reply="0.5"), ExampleRow("Perhaps 5?", None, reply="null")), prompt="What is 2 + 2?"
    ),
    "digits_only": WorkedExample(_rows(("12", 1.0), ("it is 12", 0.0))),
    "sums_correct": WorkedExample(_rows(("5 + 7 is 12", 1.0), ("12, or 13", 0.0), a=5, b=7)),
    "sums_true": WorkedExample(_rows(("12", 1.5), ("it is 12", 0.9), ("13", 0.5)), prompt="5+7="),
    "speakers_larger": WorkedExample(
        _rows(("A: 3\nB: 7\n", [(0, 4, -1.0), (5, 9, 1.0)]), ("A says 3", -1.0), **_SPEAKERS)
    ),
    "second_is_larger": WorkedExample(
        _rows(("A: 3\nB: 7\n", 1.0), ("A: 7\nB: 3\n", 0.0), ("A says 3", None), **_SPEAKERS)
    ),
    "trl_accuracy": WorkedExample(
        _rows((r"It is \boxed{\frac{1}{3}}", 1.0), (r"It is \boxed{\frac{1}{2}}", 0.0), solution=r"\frac{1}{3}"),
        as_messages=True,
    ),
    "trl_cosine_length": WorkedExample(
        (
            ExampleRow(r"\boxed{7}", 1.0, {"solution": "7"}, num_tokens=0),
            ExampleRow(r"... so it is \boxed{7}", 0.75, {"solution": "7"}, num_tokens=512),
            ExampleRow(r"\boxed{8}", -0.75, {"solution": "7"}, num_tokens=512),
        ),
        as_messages=True,
    ),
    "trl_repetition": WorkedExample(
        (ExampleRow("no no no no no", -0.6666666666666667, num_tokens=5), ExampleRow("a b", 0.0, num_tokens=2))
    ),
    "trl_soft_overlong": WorkedExample(
        tuple(
            ExampleRow(_words(num), score, num_tokens=num)
            for num, score in ((16384, 0.0), (18432, -0.5), (20480, -1.0))
        )
    ),
    "trl_think_format": WorkedExample(
        _rows(("<think>\n1 + 1\n</think>\n2", 1.0), ("<think>\n1 + 1\n2", 0.0)), as_messages=True
    ),
}
"""Maps an option of the group `reward` to its example."""


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
