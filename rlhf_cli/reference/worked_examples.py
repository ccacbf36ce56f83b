"""Worked examples of the ready-made rewards: rows and their scores. A test runs all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rlhf_cli.json_values import JsonValue

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
