"""Parse docstrings in Google style, as TRL and this project write them."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_HEADING = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Example|Examples|Note|Notes):\s*$")
_ARGUMENTS = ("Args", "Arguments", "Parameters")
_EXAMPLES = ("Example", "Examples")
# `name: text`, `a, b: text`, and TRL's `name (`int`, *optional*, defaults to `3`):` with the text below.
_ARGUMENT = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) ?(?P<type>\(.*\))?:(?P<text>\s.*|)$")
_PARAMETER = re.compile(r"^ {4}(?: {4})?(?P<name>\w+) ?\((?P<type>.*)\)\s*:\s*$")
_CROSS_REFERENCE = re.compile(r"\[`~?([^`\]]+)`\](?:\([^)]*\))?")

_LINK = re.compile(r"\[([^\]]+)\]\((https?://[^)\s]+)\)")
_FORMULA = re.compile(r",?\s*(?:\\\(.*?\\\)|(?<!\$)\$[^$\n]+\$(?!\$))")
"""LaTeX inside a line, which repeats the words beside it."""


@dataclass(frozen=True)
class Docstring:
    """A parsed docstring: `summary` is its first sentence or paragraph, `text` the rest up to the arguments.

    `arguments` maps names to their descriptions; `example` is empty if there is none.
    """

    summary: str = ""
    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    example: str = ""


def read_docstring(raw: str | None) -> Docstring:
    """Return the parts of a docstring; all are empty for None."""
    lines = inspect.cleandoc(raw or "").splitlines()
    parts: dict[str, list[str]] = {"": []}
    heading = ""
    for line in lines:
        if match := _HEADING.match(line):
            heading = match[1]
            parts.setdefault(heading, [])
        else:
            if heading in _ARGUMENTS and line.strip() and not line.startswith(" "):
                heading = ""  # prose continues after the arguments
            parts[heading].append(line)
    summary, _, text = "\n".join(parts[""]).strip().partition("\n\n")
    arguments: dict[str, str] = {}
    for name in _ARGUMENTS:
        arguments |= _arguments(parts.get(name, []))
    example = next((body for name in _EXAMPLES if (body := _body(parts.get(name, [])))), "")
    return Docstring(_plain(one_line(summary)), _plain(text.strip("\n")), arguments, example)


def documented_parameters(raw: str | None) -> dict[str, str]:
    """Return the field descriptions in a configuration dataclass's docstring: name -> text, on one line.

    Reads the format of TRL and transformers: `name (`type`, *optional*, defaults to ...):` with the text indented
    below.
    """
    texts: dict[str, list[str]] = {}
    current: list[str] | None = None
    depth = 0
    for line in inspect.cleandoc(raw or "").splitlines():
        indent = len(line) - len(line.lstrip())
        if match := _PARAMETER.match(line):
            current, depth = texts.setdefault(match["name"], []), indent
        elif current is not None and line.strip() and indent <= depth:
            current = None  # a heading between groups of fields
        elif current is not None:
            current.append(line.strip())
    return {name: _plain(one_line("\n".join(lines))) for name, lines in texts.items()}


def one_line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def reflowed(text: str) -> str:
    """Return a text with one line per paragraph, ready to be wrapped; keep indented lines and lists."""
    lines: list[str] = []
    for line in text.splitlines():
        goes_on = (
            bool(lines) and lines[-1].strip() and line.strip() and not line.startswith((" ", "- ", "$", "|", "\\"))
        )
        if goes_on and not lines[-1].startswith((" ", "$", "\\")):
            lines[-1] = f"{lines[-1]} {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def sentences_about(docstring: str | None, name: str) -> str:
    """Return the sentences of a text that name `name` in backticks, on one line; '' if there are none."""
    text = one_line(docstring or "")
    # A sentence ends before a capital letter or the next name, but not inside `0.5` or at `i.e.`.
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", text)
    about = [sentence for sentence in sentences if re.search(rf"`{re.escape(name)}(`|: )", sentence)]
    return " ".join(about)


def _arguments(lines: list[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    names: list[str] = []
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line in lines:
        match = _ARGUMENT.match(line[depth:]) if not line[:depth].strip() else None
        if match is not None:
            names = [name.lstrip("*") for name in match["names"].split(", ")]
            for name in names:
                texts[name] = [match["text"]]
        elif line.strip():
            for name in names:
                texts[name].append(line)
    return {name: _plain(_FORMULA.sub("", one_line("\n".join(said)))).strip() for name, said in texts.items()}


def _body(lines: list[str]) -> str:
    kept = [line for line in lines if not line.strip().startswith("```")]
    return inspect.cleandoc("\n".join(["", *kept])).strip()


def _plain(text: str) -> str:
    """Return a text without the markup of its documentation system."""
    text = _CROSS_REFERENCE.sub(lambda match: match[1].rpartition(".")[2], text)
    text = _LINK.sub(r"\1 (\2)", text)
    return re.sub(r"\s*Defaults to (?:`[^`]*`|\w+)\.(?=\s|$)", "", text).rstrip()
