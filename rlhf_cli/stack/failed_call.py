"""Describe a failed reward call for error messages and for the recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_cli.errors import RewardError, RewardFailed
from rlhf_cli.stack.component import Component, Outcome
from rlhf_cli.stack.reward_batch import Batch, by_row


class RewardTimeout(Exception):
    """Raised if a reward function did not answer in time."""


@dataclass(frozen=True)
class FailedCall:
    """The input of a component's call, and its error.

    `batch` is this rank's whole batch, `rows` are the rows that the function was given, and `row` is the row to blame,
    None if unknown. `is_together`: the row fails only together with those before it.
    """

    component: Component
    batch: Batch
    rows: Sequence[int]
    row: int | None
    error: BaseException
    is_together: bool = False

    @property
    def message(self) -> str:
        """Return the error message, on one line unless the error has several."""
        return str(self.error) if self.is_timeout else f"{type(self.error).__name__}: {self.error}"

    @property
    def is_timeout(self) -> bool:
        """Return whether the call timed out."""
        return isinstance(self.error, RewardTimeout)


KeepFailure = Callable[[FailedCall], str | None]
"""Keep a failed call; return the command that replays it, or None."""


def keep_nothing(call: FailedCall) -> None:
    """Keep no failed calls: outside of training the caller has the data anyway."""


def fail(call: FailedCall, outcome: Outcome, keep: KeepFailure) -> None:
    """Apply the component's `on_error` to the row to blame, or to all rows if it is unknown.

    Raise RewardFailed, which names reward, row, prompt and completion, if `on_error` is `raise`.
    """
    component = call.component
    replay = keep(call)
    if component.on_error == "raise":
        failed = RewardFailed(
            f"reward {component.name!r} failed on {_whose(call)}",
            where=f"rewards.{component.name}",
            got=call.message + (", and only together with the rows before it" if call.is_together else ""),
            expected=_expected(call),
            hint=_hint(call, replay),
        )
        failed.reward, failed.row = component.name, call.row
        raise failed from call.error
    for row in call.rows if call.row is None else [call.row]:
        outcome.errors[row] = call.message
        outcome.timeouts += call.is_timeout
        outcome.fixed[row] = None if component.on_error == "exclude" else component.on_error


def refused(call: FailedCall, error: RewardError, replay: str | None) -> RewardError:
    """Return the error of a function with an invalid result, extended by the row of the batch and the replay command.

    The error counts the rows that the function was given; gates may have removed rows from the batch.
    """
    if error.row is not None and call.row is not None:
        error.what = error.what.replace(f"row {error.row}", f"row {call.row}")
        error.got = f"{error.got}, for {_of_row(call.batch, call.row)}"
        error.row = call.row
    error.hint = said_of_replay(replay) or error.hint
    return error


def said_of_replay(replay: str | None) -> str | None:
    """Return the error line that shows how to replay the call, or None if it was not kept."""
    return None if replay is None else f"{replay}  # fails in the same way, without training"


def _whose(call: FailedCall) -> str:
    if call.row is not None:
        return f"row {call.row}"
    return f"a batch of {len(call.rows)} rows"


def _expected(call: FailedCall) -> str:
    if call.row is not None:
        return f"a score for {_of_row(call.batch, call.row)}"
    if call.is_timeout:
        return "an answer in time; which of the rows it was busy with is not known"
    return "the same each time: every row gets a score alone, and now all of them do together"


def _of_row(batch: Batch, row: int) -> str:
    completion, prompt = by_row(batch, "completions")[row], by_row(batch, "prompts")[row]
    return f"the completion {completion!r:.200} of the prompt {prompt!r:.120}"


def _hint(call: FailedCall, replay: str | None) -> str:
    name = call.component.name
    lines = [said_of_replay(replay), f"rewards.{name}.on_error=exclude  # keeps the run alive"]
    if call.is_timeout:
        lines.append(f"rewards.{name}.timeout_s=off  # or a number of seconds")
    return "\n".join(line for line in lines if line is not None)
