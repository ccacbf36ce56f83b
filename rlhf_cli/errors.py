"""Define the errors that are raised on purpose: exit code 2 below UserError, 75 for Preempted, 1 for all others.

Every message answers the same questions in the same order: what is wrong, where, what was given, what was expected,
what to type next. This module imports no other module of the project, so that all of them can import it.
"""

from __future__ import annotations

import contextlib
import copyreg
import re
from collections.abc import Callable, Iterable, Iterator

EXIT_OK = 0
EXIT_CRASH = 1
EXIT_USER_ERROR = 2
EXIT_PREEMPTED = 75

CTRL_C = "Ctrl-C"
"""The reason that a status and a message give for a stop at the keyboard."""
_GOT = "  got:"


_TO_FILL_IN = re.compile(
    r"\b(VALUE|FILE|FOLDER|FOLDER_OR_HUB_ID|NAME|RUN|SWEEP|MODEL|CHECKPOINT|GROUP|FUNCTION|COLUMN|ANOTHER"
    r"|A_LARGER_DISK|SOMEWHERE_ELSE|HOST|START)\b|\.\.\."
)


class RlhfError(Exception):
    """An error raised on purpose; all others derive from it.

    `what` is the headline. The other parts, if given, are printed below it, one per line. `hint` is what to type next:
    a command, flags, overrides, a name or a line of YAML; several are joined by `, or `, and text after ` # ` is a
    comment, as in a shell. `advice` says in words what to do.
    """

    exit_code = EXIT_CRASH

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: object | None = None,
        expected: str | None = None,
        hint: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.hint = hint
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries in a sweep, and keyword-only arguments do not pickle by default.
        return copyreg.__newobj__, (type(self), self.what), self.__dict__.copy()  # type: ignore[attr-defined]

    @property
    def command(self) -> str | None:
        """Return the part of the hint that can be typed as it stands, without a place to fill in."""
        return self._hints(lambda one: not _TO_FILL_IN.search(one)) or None

    @property
    def in_words(self) -> str | None:
        """Return the part of the hint that has a place to fill in, and the advice."""
        return "\n".join(filter(None, (self._hints(_TO_FILL_IN.search), self.advice))) or None

    def _hints(self, are_wanted: Callable[[str], object]) -> str:
        return ", or ".join(filter(are_wanted, (self.hint or "").split(", or ")))

    def __str__(self) -> str:
        to_do = (("try", self.command), ("advice", self.in_words))
        lines = [self.what]
        for label, text in (("where", self.where), ("got", self.got), ("expected", self.expected), *to_do):
            if text is not None:
                lines.append(f"  {label + ':':<10}" + shortened(str(text)).replace("\n", "\n" + " " * 12))
        return "\n".join(lines)


def in_one_line(message: str) -> str:
    """Return the headline of an error's text, followed by the value of its `got:` line if it has one."""
    what, *others = message.strip().split("\n")
    got = next((line.removeprefix(_GOT).strip() for line in others if line.startswith(_GOT)), "")
    return f"{what}: {got}" if got else what


class UserError(RlhfError):
    """An error that the user can fix; prints no traceback."""

    exit_code = EXIT_USER_ERROR


class ConfigError(UserError):
    """A key, a value or a combination of settings is wrong."""


class DataError(UserError):
    """A dataset file, a column or a row is wrong."""


class RewardError(UserError):
    """A reward function does not exist, cannot be imported or called, or returns an invalid value."""

    row: int | None = None
    """Index of the row at fault, None if it is not a single row."""


class ServerSilent(RewardError):
    """A server of a reward did not answer within the time that the user gave it."""


class ModelError(UserError):
    """A model folder, tokenizer or checkpoint is wrong."""


class RunError(UserError):
    """A run folder exists already, is busy, or is not a run folder."""


class Problems(ConfigError):
    """Several user errors, printed one after another."""

    def __init__(self, problems: list[UserError]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(line for one in self.problems for line in (str(one), *getattr(one, "__notes__", ())))


def raise_any(problems: Iterable[UserError], *, because: BaseException | None = None) -> None:
    """Raise Problems, or the error itself if there is exactly one; do nothing if there is none."""
    found = list(problems)
    if found:
        raise (found[0] if len(found) == 1 else Problems(found)) from because


class RewardFailed(RlhfError):
    """A user's function raised or did not return; its traceback is shown.

    `reward` and `row` (an index in this rank's batch) are set if a single row is at fault, else None.
    """

    reward: str | None = None
    row: int | None = None


class GuardStopped(RlhfError):
    """A guard ended a training that could not succeed; prints no traceback."""


class RankFailed(RlhfError):
    """A training process died; `what` names the rank, and the traceback was already printed."""


class Preempted(RlhfError):
    """The run was stopped from outside and can be resumed; `reason` is what stopped it."""

    exit_code = EXIT_PREEMPTED
    reason: str | None = None


class Interrupted(KeyboardInterrupt):
    """Raised by a signal that must not wait for the end of a step; its argument names the signal."""


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and then the errors that led to it."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def shortened(text: str, longest: int = 20_000) -> str:
    """Return the beginning and the end of a text, with `longest` characters in all."""
    cut, half = len(text) - longest, longest // 2
    return text if cut <= 0 else f"{text[:half]} [{cut} characters left out] {text[-half:]}"


def message_of(error: BaseException) -> str:
    """Return an error's message, shortened; also if its `__str__` raises, as that of foreign code may."""
    try:
        return shortened(str(error), 2_000)
    except Exception as raised:
        return f"(no message: its __str__ raised {type(raised).__name__})"


def described(error: BaseException) -> str:
    """Return `ValueError: its message`, shortened."""
    return f"{type(error).__name__}: {message_of(error)}"


def in_a_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message, for use inside another message."""
    return f"{type(error).__name__}: {(message_of(error).splitlines() or [''])[0]}"


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Open a context in which a file or folder that the user may not look at raises UserError."""
    try:
        yield
    except PermissionError as error:
        what, expected = "the system refuses access to a file or folder", "one that you may read, and write for a run"
        raise UserError(what, got=error.filename, expected=expected) from error


@contextlib.contextmanager
def writing(what: str, where: object, hint: str | None = None) -> Iterator[None]:
    """Open a context in which a file or folder that cannot be written raises UserError."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # transformers raises OSError for a model that it cannot load
            raise
        got = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        raise UserError(f"{what} cannot be written", where=str(where), got=got, hint=hint) from error


_KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text"}
_KINDS |= {"list": "a list", "array": "a list", "dictionary": "a mapping", "object": "a mapping"}
_BOUNDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}
_BOUNDS |= {"greater than": "above", "less than": "below"}


def pydantic_words(message: str) -> str:
    """Return what pydantic expects, from its message: `Input should be a valid integer` -> `a whole number`."""
    words = message.removeprefix("Value error, ").removeprefix("Input should be ")
    words = re.sub(r"^\w+ should have (at least \d+ items?) after validation.*", r"\1", words)
    words = re.sub(r"^(?:a valid|an) (\w+)", lambda match: _KINDS.get(match[1], match[0]), words)
    return re.sub("|".join(_BOUNDS), lambda match: _BOUNDS[match[0]], words)
