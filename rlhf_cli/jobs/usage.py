"""Read the words behind a verb by its docstring, and fold help to the terminal.

A docstring line that begins with a dash describes a flag; at least two blanks precede its text:

    --limit N            a value: N is a whole number, FILE or FOLDER a path, anything else a text
    --png FILE.png       a path that must have this ending
    --allow KEY ...      may be typed several times
    -m, --multirun       a switch, with another name

So `rlhf VERB --help` and the parser always agree. The docstring is read from the source, so that help does not import
the verb.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
import textwrap
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rlhf_cli.errors import ConfigError, UserError, raise_any
from rlhf_cli.text.suggest import nearest

JSON = "--json"
_NAME = r"--?[A-Za-z][A-Za-z0-9-]*"
_LINE = re.compile(
    rf"^ {{0,2}}(?P<names>{_NAME}(?:, {_NAME})*)(?: (?P<metavar>[^-\s]\S*))?(?: \.\.\.)?(?: {{2,}}\S.*)?$"
)
_PATHS = ("FILE", "FOLDER")


@dataclass(frozen=True)
class Flag:
    """A flag of a verb: its names and its metavar, '' for a switch."""

    names: tuple[str, ...]
    metavar: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar

    @property
    def is_path(self) -> bool:
        """Whether its value is a file or a folder."""
        return self.metavar.startswith(_PATHS)

    @property
    def ending(self) -> str:
        """The required ending of a path, '' if any is allowed."""
        return Path(self.metavar).suffix if self.is_path else ""

    def __str__(self) -> str:
        return f"{self.names[0]} {self.metavar}".rstrip()


@dataclass(frozen=True)
class Usage:
    """A verb's arguments, as its docstring describes them."""

    verb: str
    text: str

    @cached_property
    def flags(self) -> dict[str, Flag]:
        """Every flag under each of its names."""
        found: dict[str, Flag] = {}
        for line in self.text.splitlines():
            if (match := _LINE.match(line)) is not None:
                flag = Flag(tuple(match["names"].split(", ")), match["metavar"] or "")
                found |= dict.fromkeys(flag.names, flag)
        return found


@dataclass
class Options:
    """The parsed words after a verb: `words` are those that are not flags, in order; the methods look up flags."""

    usage: Usage
    words: list[str] = field(default_factory=list)
    _given: dict[str, list[str]] = field(default_factory=dict)

    def on(self, name: str) -> bool:
        """Return whether the flag was typed."""
        return self.usage.flags[name].names[0] in self._given

    def texts(self, name: str) -> list[str]:
        """Return the values of a flag, in the order they were typed."""
        return list(self._given.get(self.usage.flags[name].names[0], ()))

    def text(self, name: str) -> str | None:
        """Return the value of a flag, None if it was not typed."""
        return next(reversed(self.texts(name)), None)

    def path(self, name: str) -> Path | None:
        """Return the value of a flag as a path, None if it was not typed."""
        value = self.text(name)
        return Path(value).expanduser() if value is not None else None

    def number(self, name: str, *, least: int = 1) -> int | None:
        """Return a flag's value as a whole number, None if not typed. Raises ConfigError if below `least`."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?\d+", value) or int(value) < least:
            raise self._wrong(f"{name} is a whole number", got=f"{name} {value}", expected=f"{least} or more")
        return int(value)

    @property
    def as_json(self) -> bool:
        """Whether stdout must be one JSON value."""
        return self.on(JSON)

    def refuse_words(self, expected: str) -> None:
        """Raise ConfigError if the user typed words that are not flags."""
        if self.words:
            raise self._wrong(f"rlhf {self.usage.verb} takes no such word", got=self.words[0], expected=expected)

    def _wrong(self, what: str, *, got: str, expected: str | None = None, hint: str | None = None) -> ConfigError:
        hint = hint or f"rlhf {self.usage.verb} --help"
        return ConfigError(what, where="command line", got=got, expected=expected, hint=hint)


def usage_of(verb: str) -> Usage:
    """Return a verb's usage, read from its source without importing it."""
    source = (Path(__file__).parents[1] / "cli" / "verbs" / f"{verb}.py").read_text(encoding="utf-8")
    return Usage(verb, ast.get_docstring(ast.parse(source), clean=False) or "")


def read_options(text: str | None, argv: Iterable[str], *, verb: str) -> Options:
    """Parse the words typed after `verb`, whose docstring is `text`.

    Raises ConfigError, or Problems with all of them, for an unknown flag, a missing value, a value for a switch, and a
    file with the wrong ending.
    """
    options = Options(Usage(verb, text or ""))
    problems: list[UserError] = []
    left = deque(argv)
    while left:
        word = left.popleft()
        if word.startswith("-") and len(word) > 1:
            try:
                _take(options, word, left)
            except UserError as error:
                problems.append(error)
        else:
            options.words.append(word)
    raise_any(problems)
    return options


def _of_others(options: Options, name: str, value: str, left: deque[str]) -> str | None:
    """Return our key for an argument of TRL's or of another tool (`--output_dir X`), or None if unknown."""
    from rlhf_cli.config.trl_args import RESERVED_ARGS  # needed only for a mistake
    from rlhf_cli.tables.former_names import FORMER_NAMES

    if "+exp=" not in options.usage.text:
        return None
    argument = name.removeprefix("--").replace("-", "_")
    if name in _EXPERIMENT_FLAGS:
        named = value or next((word for word in left if not word.startswith("-")), "NAME")
        return named if "=" in named else f"+exp={Path(named).stem}"
    if argument in RESERVED_ARGS:
        known = RESERVED_ARGS[argument]
        if re.fullmatch(r"[\w.]+", known):  # a key alone
            known += f"={argument}" if argument in ("bf16", "fp16") else "={value}"
    elif argument in FORMER_NAMES:
        today = FORMER_NAMES[argument].today.partition(",")[0]
        known = today if "=" in today else f"{today}={{value}}"
    elif re.fullmatch(r"--[a-z0-9]+(_[a-z0-9]+)+", name):
        known = f"trainer.args.{argument}={{value}}"
    else:
        return None
    if not value and left and "=" not in left[0] and not left[0].startswith("-"):
        value = left[0]
    return known.format(value=value or "VALUE")


_EXPERIMENT_FLAGS = ("-c", "-cn", "--config", "--config-name", "--config-file", "--exp", "--experiment", "--recipe")
"""What other tools call the flag that names an experiment."""
_FOLDER_FLAGS = ("-cp", "-cd", "--config-path", "--config-dir")


def _take(options: Options, word: str, left: deque[str]) -> None:
    """Store one flag and its value, which may be the next word in `left`. Raises ConfigError."""
    name, equals, value = word.partition("=")
    flags = options.usage.flags
    if not equals and name not in flags and name[:2] in flags and not name.startswith("--"):
        name, equals, value = name[:2], "=", name[2:]  # -j4
    flag = flags.get(name)
    if flag is None:
        is_folder = name in _FOLDER_FLAGS and "+exp=" in options.usage.text
        hint = None if is_folder else _of_others(options, name, value, left) or nearest(name, flags)
        if hint is None and equals and not is_folder and "[overrides]" in options.usage.text:
            hint = word.lstrip("-")
        typed = f"rlhf {options.usage.verb} +exp=NAME: conf/exp/NAME.yaml here, or one of `rlhf list exp`"
        expected = typed if name in _EXPERIMENT_FLAGS + _FOLDER_FLAGS else None
        what = f"rlhf {options.usage.verb} has no option {name}"
        error = options._wrong(what, got=word, expected=expected, hint=hint)
        error.advice = "leave it out: experiments are read from conf/exp in this folder" if is_folder else None
        raise error
    given = options._given.setdefault(flag.names[0], [])
    if flag.is_switch:
        if equals:
            raise options._wrong(f"{name} is a switch", got=word, expected=f"{name} alone")
        given.append("")
        return
    if not equals:
        # A value may begin with one dash (`--on -kl`), but not with two.
        if not left or left[0].startswith("--"):
            raise options._wrong(f"{name} wants a value", got=word, expected=str(flag))
        value = left.popleft()
    if value and flag.ending and not value.lower().endswith(flag.ending):
        what = f"{name} is a {flag.ending} file"
        raise options._wrong(what, got=f"{name} {value}", hint=f"{name} {value}{flag.ending}")
    given.append(value)


@dataclass(frozen=True)
class ResumeOptions:
    """What the user allows.

    `allowed` are changed keys, sections or kinds of files; `take_over` permits taking over a run of another machine;
    `trust` permits code from a run folder made by another user.
    """

    allowed: tuple[str, ...] = ()
    take_over: bool = False
    trust: bool = False


def resume_options(options: Options) -> ResumeOptions:
    """Return the typed resume options. Without a `--trust` flag, a verb trusts no foreign code."""
    trust = "--trust" in options.usage.flags and options.on("--trust")
    return ResumeOptions(tuple(options.texts("--allow")), options.on("--take-over"), trust)


_OF_SWEEPS = ("-j", "--watch", "--failed")
"""Flags that do not apply to a single run."""


def refuse_of_sweeps(options: Options, hint: str) -> None:
    """Raise ConfigError if a sweep option was typed for a single run; `hint` is what to type for a sweep."""
    typed = [name for name in _OF_SWEEPS if name in options.usage.flags and options.on(name)]
    if typed:
        raise ConfigError(
            f"{typed[0]} is an option of sweeps, and this is one run",
            where="command line",
            got=" ".join(typed),
            hint=hint,
        )


_COLUMNS = re.compile(r"^(\s*\S+(?: \S+)*\s{2,})(?=\S)")
_LEAST_RIGHT = 30
"""Minimum width of the right column, in characters; below it, folded text begins under the left column."""


def shown_width() -> int | None:
    """Return the terminal's width, or None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def folded(text: str, width: int | None) -> str:
    """Return help wrapped to `width` between words, columns kept; unchanged if `width` is None or all of it fits."""
    if width is None or all(len(line) <= width for line in text.splitlines()):
        return text
    blocks: list[tuple[int, str]] = []  # the column where its text begins, and a paragraph or an entry with its text
    for line in text.splitlines():
        indent, match = len(line) - len(line.lstrip()), _COLUMNS.match(line)
        column, block = blocks[-1] if blocks else (0, "")
        is_new = match is not None or not line.strip() or not block or line.startswith("rlhf ")
        if is_new or indent != column or (indent and block.startswith(" " * indent)):
            blocks.append((len(match[1]) if match else indent, line))
        else:
            blocks[-1] = (column, f"{block} {line.strip()}")
    lines: list[str] = []
    for column, block in blocks:
        below = " " * (column if column <= width - _LEAST_RIGHT else 4)
        lines += textwrap.wrap(block, width, subsequent_indent=below, break_on_hyphens=False) or [""]
    return "\n".join(lines)
