"""Parse the words behind a verb by its docstring, and fold help to the terminal.

A docstring line that begins with a dash describes a flag; at least two blanks precede its text:

    --limit N            a value: N is a whole number, FILE or FOLDER a path, anything else a text
    --png FILE.png       a path that must have this ending
    --allow KEY ...      may be typed several times
    -m, --multirun       a switch, with another name

So `rlhf VERB --help` and the parser always agree. The docstring is read from the source, so that help does not import
the verb. click would have to import it, and its own import takes half as long as all of `rlhf VERB --help`.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import sys
import textwrap
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from rlhf_cli.errors import ConfigError, UserError, raise_any
from rlhf_cli.sweeps import ResumeOptions, SweepOptions
from rlhf_cli.text.suggest import nearest

JSON = "--json"
_NAME = r"--?[A-Za-z][A-Za-z0-9-]*"
_LINE = re.compile(
    rf"^ {{0,2}}(?P<names>{_NAME}(?:, {_NAME})*)(?: (?P<metavar>[^-\s]\S*))?(?: \.\.\.)?(?: {{2,}}\S.*)?$"
)
_SWEEP_FLAGS = ("-j", "--watch", "--failed")
_EXPERIMENT_FLAGS = ("-c", "-cn", "--config", "--config-name", "--config-file", "--exp", "--experiment", "--recipe")
"""What other tools call the flag that names an experiment."""
_FOLDER_FLAGS = ("-cp", "-cd", "--config-path", "--config-dir")


@dataclass(frozen=True)
class Flag:
    """A flag of a verb: its names and its metavar, '' for a switch."""

    names: tuple[str, ...]
    metavar: str = ""

    @property
    def is_path(self) -> bool:
        """Whether its value is a file or a folder."""
        return self.metavar.startswith(("FILE", "FOLDER"))

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
        for match in filter(None, map(_LINE.match, self.text.splitlines())):
            flag = Flag(tuple(match["names"].split(", ")), match["metavar"] or "")
            found |= dict.fromkeys(flag.names, flag)
        return found


def usage_of(verb: str) -> Usage:
    """Return a verb's usage, read from its source without importing it."""
    source = Path(__file__).with_name("verbs").joinpath(f"{verb}.py").read_text(encoding="utf-8")
    return Usage(verb, ast.get_docstring(ast.parse(source), clean=False) or "")


@dataclass
class Options:
    """The parsed words after a verb: all in `argv`, without flags in `words`; `values` maps a flag to its values."""

    usage: Usage
    argv: list[str]
    words: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)

    def on(self, name: str) -> bool:
        """Return whether the flag was typed; not if the verb has no such flag."""
        return name in self.usage.flags and self.usage.flags[name].names[0] in self.values

    def texts(self, name: str) -> list[str]:
        """Return the values of a flag, in the order they were typed."""
        return list(self.values.get(self.usage.flags[name].names[0], ()))

    def text(self, name: str) -> str | None:
        """Return the last value of a flag, None if it was not typed."""
        return next(reversed(self.texts(name)), None)

    def names(self, name: str) -> tuple[str, ...]:
        """Return the comma-separated parts of a flag's value."""
        return tuple(part.strip() for part in (self.text(name) or "").split(",") if part.strip())

    def path(self, name: str) -> Path | None:
        """Return the value of a flag as a path, None if it was not typed."""
        value = self.text(name)
        return Path(value).expanduser() if value is not None else None

    def number(self, name: str, *, least: int = 1) -> int | None:
        """Return a flag's value as a whole number, None if not typed. Raise ConfigError if below `least`."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?\d+", value) or int(value) < least:
            what, got, expected = f"{name} is a whole number", f"{name} {value}", f"{least} or more"
            raise self.error(what, got=got, expected=expected, hint=f"{name} {least}")
        return int(value)

    def refuse_both(self, first: str, second: str) -> None:
        """Raise ConfigError if both flags were typed, since they exclude each other."""
        if self.on(first) and self.on(second):
            got = f"{first} and {second}"
            raise self.error(f"{got} exclude each other", got=got, expected="one of them")

    @property
    def as_json(self) -> bool:
        """Whether stdout must be one JSON value."""
        return self.on(JSON)

    def error(self, what: str, *, got: str, expected: str | None = None, hint: str | None = None) -> ConfigError:
        """Return an error of the command line; the default hint is the verb's help."""
        hint = hint or f"rlhf {self.usage.verb} --help"
        return ConfigError(what, where="command line", got=got, expected=expected, hint=hint)

    def resume_options(self) -> ResumeOptions:
        """Return what the user allows a resumed run. Without a `--trust` flag, a verb trusts no foreign code."""
        return ResumeOptions(tuple(self.texts("--allow")), self.on("--take-over"), self.on("--trust"))

    def sweep_options(self) -> SweepOptions:
        """Return how a sweep runs."""
        watch, is_dry, only_failed = self.text("--watch"), self.on("--dry-run"), self.on("--failed")
        return SweepOptions(self.number("-j") or 1, watch, is_dry, only_failed)

    def refuse_sweep_flags(self, hint: str) -> None:
        """Raise ConfigError if a flag of sweeps was typed for a single run; `hint` is what to type for a sweep."""
        if typed := list(filter(self.on, _SWEEP_FLAGS)):
            raise self.error(f"{typed[0]} is a flag of sweeps, and this is one run", got=" ".join(typed), hint=hint)


def read_options(usage: Usage, argv: Sequence[str]) -> Options:
    """Parse the words typed after a verb. Raise ConfigError, or Problems with all that is wrong."""
    options, problems = Options(usage, list(argv)), list[UserError]()
    rest = deque(argv)
    while rest:
        word = rest.popleft()
        if word.startswith("-") and len(word) > 1:
            try:
                _take(options, word, rest)
            except UserError as error:
                problems.append(error)
        else:
            options.words.append(word)
    raise_any(problems)
    return options


def _take(options: Options, word: str, rest: deque[str]) -> None:
    """Store one flag and its value, which may be the next word in `rest`. Raise ConfigError if that is wrong."""
    name, equals, value = word.partition("=")
    flags = options.usage.flags
    if not equals and name not in flags and name[:2] in flags and not name.startswith("--"):
        name, equals, value = name[:2], "=", name[2:]  # -j4
    flag = flags.get(name)
    if flag is None:
        raise _unknown_flag(options, word, rest)
    if not flag.metavar and equals:
        raise options.error(f"{name} is a switch", got=word, expected=f"{name} alone")
    if flag.metavar and not equals:
        # A value may begin with one dash (`--on -kl`), but not with two.
        if not rest or rest[0].startswith("--"):
            raise options.error(f"{name} needs a value", got=word, expected=str(flag))
        value = rest.popleft()
    if value and flag.ending and not value.lower().endswith(flag.ending):
        hint = f"{name} {shlex.quote(value + flag.ending)}"
        raise options.error(f"{name} is a {flag.ending} file", got=f"{name} {value}", hint=hint)
    options.values.setdefault(flag.names[0], []).append(value)


def _unknown_flag(options: Options, word: str, rest: Sequence[str]) -> ConfigError:
    """Return the error for an unknown flag, with the flag or the key that was probably meant."""
    verb, (name, equals, value) = options.usage.verb, word.partition("=")
    expected = hint = advice = None
    if "+exp=" in options.usage.text:
        if name in _EXPERIMENT_FLAGS + _FOLDER_FLAGS:
            expected = f"rlhf {verb} +exp=NAME: conf/exp/NAME.yaml here, or one of `rlhf list exp`"
        if name in _FOLDER_FLAGS:
            advice = "leave it out: experiments are read from conf/exp in this folder"
        else:
            hint, advice = _key_instead(name, value, rest)
    if advice is None:
        hint = hint or nearest(name, options.usage.flags)
        if hint is None and equals and "[overrides]" in options.usage.text:
            hint = word.lstrip("-")
    error = options.error(f"rlhf {verb} has no option {name}", got=word, expected=expected, hint=hint)
    error.advice = advice
    return error


def _key_instead(name: str, value: str, rest: Sequence[str]) -> tuple[str | None, str | None]:
    """Return our key for an argument of TRL's or of another tool, or what else to do, or None for both."""
    from rlhf_cli.config.suggestions import KnownKeys, meant_key  # needed only for a mistake
    from rlhf_cli.config.trl_args import OFF, RESERVED_ARGS, fields_of, is_off
    from rlhf_cli.tables.former_names import UNSAYABLE
    from rlhf_cli.tables.trl_trainers import TRAINERS

    argument = name.lstrip("-").replace("-", "_")
    words = [value] if value else [*takewhile(lambda word: "=" not in word and not word.startswith("-"), rest)]
    if name in _EXPERIMENT_FLAGS:
        named = value or next((word for word in rest if not word.startswith("-")), "NAME")
        return named if "=" in named else f"+exp={Path(named).stem}", None
    if argument in UNSAYABLE:
        return None, UNSAYABLE[argument]
    of_trl = frozenset(field for trainer in TRAINERS for field in fields_of(trainer))
    known = argument if re.fullmatch(r"\w+(\.\w+)+", argument) else RESERVED_ARGS.get(argument, "")
    known = known or meant_key(argument, KnownKeys((), (), "", of_trl, has_critic=False)) or ""
    if not known and re.fullmatch(r"--[a-z0-9]+(_[a-z0-9]+)+", name):
        known = f"trainer.args.{argument}"
    is_key = re.fullmatch(r"[\w.]+", known) is not None
    if known and not is_key and words and is_off(words[0]):
        return OFF.get(argument), None if argument in OFF else f"leave {name} out: it is off"
    typed = f"[{','.join(words)}]" if len(words) > 1 else words[0] if words else "VALUE"
    return f"{known}={shlex.quote(typed)}" if is_key else known or None, None


_COLUMNS = re.compile(r"^(\s*\S+(?: \S+)*\s{2,})(?=\S)")
_LEAST_RIGHT = 30
"""Minimum width of the right column, in characters; below it, folded text begins under the left column."""


def print_help(text: str) -> None:
    """Print help, wrapped to the terminal's width; unchanged if stdout is not a terminal."""
    text = text.strip()
    print(folded(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def folded(text: str, width: int) -> str:
    """Return help wrapped to `width` between words, columns kept; unchanged if all of it fits."""
    if all(len(line) <= width for line in text.splitlines()):
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
