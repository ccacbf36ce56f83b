"""Tell how each rollout ended: from its messages and token ids, and from what its environment says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_cli.tools_and_environments import tells_of_error, tells_of_timeout
from rlhf_cli.truncation import ENDINGS, Ending, Endings


def ending_of(completion: object, *, is_cut: bool, max_calls: int | None, flag: object = None) -> Ending:
    """Return how a rollout ended; where several apply, the first of: flag, length, turns, timeout, tool_error.

    Args:
        completion: a text, or messages. A tool's result at the end left no room for the answer: `length`. Calls at the
            end were not made: after `max_calls` rounds of calls because no more are allowed (`turns`), before because
            their results did not fit (`length`). An answer to a failed call ends by `timeout` or `tool_error`.
        is_cut: the token ids reach the limit without an end.
        max_calls: rounds of calls that the trainer allows; None if it makes none.
        flag: what the dataset, rollout function or environment says: the name of an ending, else True for `length`.
    """
    if isinstance(flag, str) and flag in ENDINGS:
        return Ending(flag)
    if flag or is_cut:
        return Ending.LENGTH
    if max_calls is None or isinstance(completion, str) or not isinstance(completion, Sequence):
        return Ending.FINISHED
    messages = [message for message in completion if isinstance(message, Mapping)]
    calling = [place for place, message in enumerate(messages) if message.get("tool_calls")]
    if not calling:
        return Ending.FINISHED
    if messages[-1].get("role") == "tool":
        return Ending.LENGTH
    if calling[-1] == len(messages) - 1:
        return Ending.TURNS if len(calling) > max_calls else Ending.LENGTH
    results = messages[calling[-1] + 1 :]
    if any(map(tells_of_timeout, results)):
        return Ending.TIMEOUT
    return Ending.TOOL_ERROR if any(map(tells_of_error, results)) else Ending.FINISHED


def ending_shares(endings: Endings) -> dict[str, float]:
    """Return metric -> share of the rows that ended so, for every ending."""
    return {f"completions/endings/{name}": float(endings.at(name).float().mean()) for name in ENDINGS}
