"""Print one JSON value with `--json`, and errors in words. Child processes' stdout is then our stderr."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO, cast

from rlhf_cli.cli.options import Options, read_options, usage_of
from rlhf_cli.errors import EXIT_OK, Problems, RlhfError, UserError, message_of
from rlhf_cli.process import Lasting
from rlhf_cli.text.redaction import Drawn, OutputLost, printable, printing

if TYPE_CHECKING:
    from rich.console import Console

_STDOUT, _STDERR = 1, 2
_kept: list[TextIO] = []
"""The streams that receive the value, innermost last; empty unless other output is redirected."""


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """Open a context in which only `print_json` writes to stdout; it tolerates a closed pipe if stdout does."""
    sys.stdout.flush()
    stdout, own = sys.stdout, None
    is_real = False
    with contextlib.suppress(OSError, ValueError, AttributeError):  # in a test or a notebook it is another stream
        is_real = stdout.fileno() == _STDOUT
    if is_real:
        own = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
    kept = stdout if own is None else open(own, "w", encoding="utf-8")  # noqa: SIM115  closed below
    _kept.append(cast(TextIO, Lasting(kept)) if isinstance(stdout, Lasting) else kept)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        _kept.pop()
        sys.stdout = stdout
        if own is not None:
            os.dup2(own, _STDOUT)
            with contextlib.suppress(BrokenPipeError), printing():
                kept.close()


@contextlib.contextmanager
def stdout_of_children() -> Iterator[None]:
    """Open a context in which child processes have the stdout that is kept for the value: one of them prints it."""
    if _kept:
        os.dup2(_kept[-1].fileno(), _STDOUT)
    try:
        yield
    finally:
        if _kept:
            os.dup2(_STDERR, _STDOUT)


def print_json(value: object) -> None:
    """Print a value to stdout as `write_json` does: without secrets, an iterator as a list."""
    from rlhf_cli.text.json_values import write_json  # not needed for help

    stream = _kept[-1] if _kept else sys.stdout
    with printing():
        write_json(value, stream.write)
        print(file=stream, flush=True)


def print_result(options: Options, as_json: Callable[[], object], show: Callable[[Console], object]) -> int:
    """Print a verb's result, as JSON with `--json`, else by `show` at the terminal's width; return EXIT_OK."""
    if options.as_json:
        print_json(as_json())
    else:
        from rlhf_cli.display.terminal import wide_console

        show(wide_console())
    return EXIT_OK


def nobody_reads() -> bool:
    """Return whether stdout, stderr or the stream of the JSON value is a pipe that has lost its reader."""
    ends = select.poll()
    for stream in (*_kept, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no file descriptor, as in a test or a notebook
            ends.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in ends.poll(0))


def print_problems(error: BaseException, *, as_json: bool | None = None) -> None:
    """Print an error as the one JSON value, by default inside `json_alone`. Ignore a lost output: stderr has it too."""
    if _kept if as_json is None else as_json:
        with contextlib.suppress(BrokenPipeError, OutputLost):
            print_json(problems_json(error))


def problems_json(error: BaseException) -> dict[str, object]:
    """Return an error as `{"problems": [...]}`: `kind` is its class name, the rest are the parts of its message."""
    return {"problems": list(map(_problem, error.problems if isinstance(error, Problems) else [error]))}


def _problem(error: BaseException) -> dict[str, object]:
    shown = error if isinstance(error, RlhfError) else RlhfError(message_of(error))
    parts = {"where": shown.where, "got": None if shown.got is None else str(shown.got), "expected": shown.expected}
    parts |= {"try": shown.command, "advice": shown.in_words}
    return {"kind": type(error).__name__, "what": shown.what, **parts}


def complete_hints(error: RlhfError, verb: str, words: Sequence[str]) -> None:
    """Put what was typed into the hints of an error: for `...`, for RUN, and as the value of a corrected key."""
    from rlhf_cli.runs.run_folder import names_a_run  # needed only for a mistake
    from rlhf_cli.tables.former_names import VALUE_SYNONYMS

    plain = words
    with contextlib.suppress(UserError):  # of wrong flags
        plain = read_options(usage_of(verb), words).words
    runs = [word for word in plain if names_a_run(word)]
    words = plain if verb == "check" else words  # its hints are commands of `rlhf train`, which lacks its flags
    for problem in error.problems if isinstance(error, Problems) else [error]:
        hint = problem.hint or ""
        if hint.startswith(f"rlhf {'train' if verb == 'check' else verb} ") and "..." in hint:
            keys = {_key(word) for word in hint.replace("'", " ").split()}
            others = [word for word in words if word != problem.got and _key(word) not in keys]
            hint = hint.replace("...", shlex.join(others), 1)
        elif len(runs) == 1:
            hint = re.sub(r"\b(RUN|SWEEP)\b", shlex.quote(runs[0]), hint)
        if re.fullmatch(r"[\w.]+", hint) and (place := str(problem.where)).endswith(" (command line)"):
            wrong = place.partition(" ")[0]
            alone = hint.rpartition(".")[2] == wrong.rpartition(".")[2]  # without what is typed below it
            pairs = [(_key(word), word.partition("=")[2]) for word in words]
            typed = [value for key, value in pairs if key == wrong or (key.startswith(f"{wrong}.") and not alone)]
            # A mapping may hold the key that the hint names, so that it is not the value of that key.
            if typed and typed[0] and typed[0][0] != "{":
                meant = VALUE_SYNONYMS.get(hint.rpartition(".")[2], {}).get(typed[0].lower(), typed[0])
                hint = shlex.quote(f"{hint}={meant}")
        elif re.fullmatch(r"[\w./-]+:[\w.]+", hint) and re.fullmatch(_TYPED_FUNCTION, str(problem.where)):
            hint = f"{str(problem.where).partition(' ')[0]}={hint}"  # the name of a function
        problem.hint = hint or None


_TYPED_FUNCTION = r"\S+\.fn( \((command line|\S*config\.yaml:\d+)\))?"
"""The place of a function that is typed as a word: one of a run's configuration, too, which nobody edits."""


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


_RED, _YELLOW, _GREEN, _PLAIN = "\x1b[1;31m", "\x1b[1;33m", "\x1b[32m", "\x1b[0m"
_TRY = re.compile(r"^(  (?:try|advice):)", re.MULTILINE)


def print_error(label: str, text: str) -> None:
    """Print `label: text`, in colour on a colour terminal unless NO_COLOR is set."""
    text = printable(text)
    # https://no-color.org: any non-empty value disables colour.
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        colour = _YELLOW if label == "stopped" else _RED
        text = _TRY.sub(rf"{_GREEN}\1{_PLAIN}", text)
        label = f"{colour}{label}:{_PLAIN}"
    else:
        label += ":"
    sys.stderr.write(Drawn(f"{label} {text}\n"))
    sys.stderr.flush()
