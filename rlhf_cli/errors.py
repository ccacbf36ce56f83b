"""Defines the error tree.

    RlhfError                 anything this project raises on purpose
    ├── UserError             the user's config, data or files are wrong: one message, exit code 2
    │   ├── ConfigError       a key, a value, a combination of settings
    │   ├── DataError         a dataset file, a column, a row
    │   ├── RewardError       a reward function that does not exist, cannot be imported or called
    │   ├── ModelError        a model folder, tokenizer or checkpoint
    │   ├── RunError          a run folder that exists, is busy, or is not one
    │   └── Problems          several of the above, reported together
    ├── RewardFailed          a reward function raised or hung: user code crashed, exit code 1
    ├── GuardStopped          a guard ended a training that could come to nothing: no signal, NaN, exit code 1
    ├── RankFailed            a training process died: its traceback is shown, exit code 1
    └── Preempted             stopped from outside, resumable: exit code 75

    Interrupted               no error: Ctrl-C, or another signal, that is not to wait for anything

A message answers the same questions in the same order: what is wrong, where, what was got, what was expected, what to
type next. This module imports nothing of the project and is importable by all of it.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_CRASH = 1
EXIT_USER_ERROR = 2
EXIT_PREEMPTED = 75
EXIT_UNREAD = 141
"""Nobody reads what is printed any more: 128 and the number of SIGPIPE, as a shell has it of `ls | true`."""


CTRL_C = "Ctrl-C"
"""The reason of what somebody stopped at the keyboard, as a status and a message name it."""
_GOT = "  got:"


class Prose(str):
    """A hint in words: it tells what to do, and cannot be typed as it stands.

    Any other hint is typed: a command, flags, overrides, a name or a line of YAML; several with `, or ` between them.
    What stands behind ` # ` is a comment, as for a shell.
    """


class RlhfError(Exception):
    """An error raised on purpose; all others derive from it.

    `what` is the headline; the other parts are printed one a line under it when they are given. `hint` is what to type
    next, or `Prose`.
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
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries in a sweep; keyword-only arguments do not pickle by default.
        return _rebuild, (type(self), self.__dict__.copy())

    def __str__(self) -> str:
        label = "advice" if isinstance(self.hint, Prose) else "try"
        labelled = (("where", self.where), ("got", self.got), ("expected", self.expected), (label, self.hint))
        lines = [self.what]
        for label, text in labelled:
            if text is not None:
                lines.append(f"  {label + ':':<10}" + str(text).replace("\n", "\n" + " " * 12))
        return "\n".join(lines)


def in_one_line(message: str) -> str:
    """Return what is wrong by an error's text, and what was got where it says so: the rest is for who asks for it."""
    what, *others = message.strip().split("\n")
    got = next((line.removeprefix(_GOT).strip() for line in others if line.startswith(_GOT)), "")
    return f"{what}: {got}" if got else what


def _rebuild(kind: type[RlhfError], state: dict[str, object]) -> RlhfError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["what"])
    error.__dict__.update(state)
    return error


class UserError(RlhfError):
    """An error that the user can mend; no traceback is shown."""

    exit_code = EXIT_USER_ERROR


class ConfigError(UserError):
    """An error that says a key, a value or a combination of settings is wrong."""


class DataError(UserError):
    """An error that says a dataset file, a column or a row is wrong."""


class RewardError(UserError):
    """An error that says a reward function does not exist, cannot be imported or called, or returns nonsense.

    `row` is the row of what it was given, None where no single row is to blame.
    """

    row: int | None = None


class ModelError(UserError):
    """An error that says a model folder, tokenizer or checkpoint is wrong."""


class RunError(UserError):
    """An error that says a run folder exists already, is busy, or is not a run folder."""


class Problems(ConfigError):
    """An error that holds several user errors, which are printed one after another."""

    def __init__(self, problems: list[UserError]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class RewardFailed(RlhfError):
    """An error that says a reward function raised or did not answer: user code crashed, and its traceback is shown.

    `reward` and `row` (of this rank's batch) are set where one row is to blame, else None.
    """

    reward: str | None = None
    row: int | None = None


class GuardStopped(RlhfError):
    """An error that says a guard ended the training, which could only have come to nothing; no traceback is shown."""


class RankFailed(RlhfError):
    """An error that says a training process died; `what` names the rank, the traceback has been shown."""


class Preempted(RlhfError):
    """An error that says the run was stopped from outside and can be resumed; `reason` is what stopped it."""

    exit_code = EXIT_PREEMPTED
    reason: str | None = None


class Interrupted(KeyboardInterrupt):
    """Raised where a signal arrives that is not to wait for the end of a step; its argument names the signal."""


def in_a_line(error: BaseException) -> str:
    """Return what kind of error it is and the first line of what it says, for a message about something else."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
