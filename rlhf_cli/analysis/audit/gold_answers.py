"""Find the right answer to each row and the words that a reward looks for.

The data contains the right answer (`18`), but seldom in the format that the rewards require (`<answer>18</answer>`,
`\boxed{18}`, `#### 18`). So the gold answers are written in several formats, and the degenerate answers are compared
with the one that the experiment's own rewards pay best.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MappingProxyType

from rlhf_cli.data.source import Row
from rlhf_cli.data.template import missing_column
from rlhf_cli.errors import ConfigError
from rlhf_cli.text.template_grammar import is_text, parse

GOLD_COLUMNS = (
    *("answer", "solution", "gold", "gold_answer", "ground_truth", "target", "reference", "expected", "output"),
    *("response", "summary", "chosen", "completion"),
)
"""Common column names for the right answer, the most specific first."""

DEFAULT_TAGS = ("think", "answer")
_REASONING = "The question is read once more, and what it asks for is worked out in order."


@dataclass(frozen=True)
class Gold:
    """The right answers, one per row, None if a row has none. `source` is the column they are from."""

    answers: list[str | None]
    source: str


@dataclass(frozen=True)
class AnswerFormat:
    """A format of an answer: a text with `{gold}`. `name` is shown to the user."""

    name: str
    text: str

    def write(self, answer: str) -> str:
        """Return the answer in this format."""
        return self.text.replace("{gold}", answer)


def find_gold(rows: Sequence[Row], required: Sequence[str], *, named: str | None) -> Gold | None:
    """Return the gold answers of the rows, or None if no column qualifies.

    required: the columns that the rewards read; they are preferred among the known names. If the rewards read only one
        column and it holds text, it comes first. named: a column, or a text with `{column}`, from the user. Raise
        ConfigError or DataError if it is invalid.
    """
    columns = list(rows[0])
    if named is not None and "{" in named:
        template = parse(named, where="--gold", error=ConfigError)
        for column in template.columns:
            if column not in columns:
                raise missing_column(column, columns, "--gold")
        whole = [all(row[column] is not None for column in template.columns) for row in rows]
        filled = [template.fill(row) if is_whole else None for row, is_whole in zip(rows, whole, strict=True)]
        return Gold(filled, f"--gold '{named}'")
    if named is not None:
        if named not in columns:
            raise missing_column(named, columns, "--gold")
        return Gold([answer_of(row[named]) for row in rows], f"column {named}")
    known = [name for name in GOLD_COLUMNS if name in columns]
    known.sort(key=lambda name: name not in required)
    # If a reward reads only one column, it compares with that column, whatever its name.
    if len(only := sorted({name for name in required if name != "prompt"})) == 1 and isinstance(
        rows[0].get(only[0]), str
    ):
        known = [*only, *known]
    for name in known:
        answers = [answer_of(row[name]) for row in rows]
        if any(answers):
            return Gold(answers, f"column {name}")
    return None


def answer_of(value: object) -> str | None:
    """Return the text of a gold value: a text, a number, the first of alternatives, the last message; else None."""
    if is_text(value) and not isinstance(value, bool):
        return str(value).strip() or None
    if isinstance(value, list | tuple) and value:
        last = value[-1]
        return answer_of(last.get("content")) if isinstance(last, Mapping) else answer_of(value[0])
    return None


def final_part(answer: str) -> str:
    r"""Return the text after the last `####`, else in the last `\boxed{}`, else the whole answer."""
    if "####" in answer:
        return answer.rsplit("####", 1)[1].strip()
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", answer)
    return boxed[-1].strip() if boxed else answer


def ways_to_write(tags: Sequence[str]) -> list[AnswerFormat]:
    """Return the possible formats of a right answer, plain first.

    tags: those that a reward of the experiment requires, in order; the last one holds the answer.
    """
    before = "".join(f"<{tag}>{_REASONING}</{tag}>" for tag in tags[:-1])
    return [
        AnswerFormat("as it is", "{gold}"),
        AnswerFormat("".join(f"<{tag}>" for tag in tags), f"{before}<{tags[-1]}>{{gold}}</{tags[-1]}>"),
        AnswerFormat("<think> before it", f"<think>{_REASONING}</think>\n{{gold}}"),
        AnswerFormat("<answer>", "<answer>{gold}</answer>"),
        AnswerFormat("\\boxed{}", f"{_REASONING} The answer is \\boxed{{{{gold}}}}."),
        AnswerFormat("####", f"{_REASONING}\n#### {{gold}}"),
        AnswerFormat("a sentence", "The answer is {gold}"),
        AnswerFormat("Answer:", f"{_REASONING}\nAnswer: {{gold}}"),
        AnswerFormat("code block", "```python\n{gold}\n```"),
        AnswerFormat("JSON", '{"answer": "{gold}"}'),
    ]


_WORD = re.compile(r"[^\W\d_][\w' .,!?-]{1,30}")
"""Matches plain words and phrases, but not patterns, formats or keys with symbols."""
_MOST = 40


def reward_words(functions: Iterable[Callable[..., object]]) -> list[str]:
    """Return the plain texts in these reward functions, without docstrings and duplicates.

    Include constants in their code, in objects of their own module that they use (a list of words, another function),
    and in their arguments.
    """
    seen: set[int] = set()
    texts = (text for function in functions for text in _texts(function, seen) if _WORD.fullmatch(text))
    return list(dict.fromkeys(texts))[:_MOST]


def _texts(value: object, seen: set[int], module: Mapping[str, object] = MappingProxyType({})) -> Iterable[str]:
    """Yield the texts in a value; `seen` are the ids of functions to skip, `module` the globals of a code's module."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | set | frozenset | dict):
        for one in value:
            yield from _texts(one, seen)
    elif isinstance(value, functools.partial):
        yield from _texts([*value.keywords.values(), value.func], seen)
    elif isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        of_code = _texts(value.__code__, seen, value.__globals__)
        yield from (text for text in of_code if text != value.__doc__)
    elif isinstance(value, CodeType):
        for one in value.co_consts:
            yield from _texts(one, seen, module)
        for named in (module.get(name) for name in value.co_names):
            if not isinstance(named, FunctionType) or named.__module__ == module.get("__name__"):
                yield from _texts(named, seen)
