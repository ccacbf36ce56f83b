"""What the ready-made rewards share: the text of a completion, and the checks of their arguments and columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from rlhf_cli.errors import RewardError

Message: TypeAlias = Mapping[str, object]
"""A chat message is `{"role": "assistant", "content": ...}`."""

Completion: TypeAlias = str | Sequence[Message]
"""A completion is plain text, or a list of messages for conversational data."""

# TRL 1.16's response parsers put thinking into one of these keys, depending on the model's chat template.
_REASONING_KEYS = ("reasoning_content", "thinking")


def text_of(completion: object, *, reasoning: bool = False) -> str:
    """Return the text the policy wrote. Raise RewardError if it is neither text nor a list of messages.

    In a conversation only the assistant's messages count, joined by newlines, because the policy did not write the
    answers of tools and environments. A message without a role is the assistant's, as in TRL's examples.
    Content is a string, None (a bare tool call) or a list of parts, whose `text` parts count. `reasoning` also includes
    thinking that the tokenizer's response parser moved to `reasoning_content` or `thinking`, before its content.
    """
    said = as_completion(completion)
    if isinstance(said, str):
        return said
    own = [message for message in said if message.get("role", "assistant") == "assistant"]
    texts = (text for message in own for text in (_thinking(message) if reasoning else "", content_text(message)))
    return "\n".join(filter(None, texts))


def content_text(message: Message) -> str:
    """Return the text of one message: its content, or the text parts of a list of parts; '' for None."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else []
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def last_text(prompt: object) -> str:
    """Return a text prompt unchanged, or the last message of a conversation."""
    if isinstance(prompt, list):
        return content_text(prompt[-1]) if prompt else ""
    return str(prompt)


def calls_text(message: Message) -> str:
    """Return the calls of tools in a message, as `add({"a": 1}), add({"a": 2})`; '' for none."""
    calls = message.get("tool_calls")
    functions = [call.get("function", call) for call in calls] if isinstance(calls, list) else []
    given = [(one.get("name"), one.get("arguments")) for one in functions]
    return ", ".join(
        f"{name}({it if isinstance(it, str) else json.dumps(it, ensure_ascii=False)})" for name, it in given
    )


def _thinking(message: Message) -> str:
    return "\n".join(str(message[key]) for key in _REASONING_KEYS if message.get(key))


def shown_text(message: Message) -> str:
    """Return what to show of a message: its thinking, and its content, or its calls of tools if it has none."""
    return "\n".join(filter(None, (_thinking(message), content_text(message) or calls_text(message))))


def as_completion(value: object) -> Completion:
    """Return the value as a completion. Raise RewardError if it is neither text nor a list of messages."""
    if isinstance(value, str) or (isinstance(value, Sequence) and all(isinstance(one, Mapping) for one in value)):
        return value
    expected = "a string, or [{'role': 'assistant', 'content': ...}, ...]"
    raise RewardError("a completion is neither text nor a list of messages", got=repr(value)[:200], expected=expected)


CHECK, COLUMN_CHECKS = "refuses_arguments", "column_checks"
"""Attributes of a reward function: the check of its arguments, and column -> the check of its values."""
ColumnCheck: TypeAlias = Callable[[object], str | None]
_Reward = TypeVar("_Reward", bound=Callable[..., object])


def refused_by(check: Callable[..., object]) -> Callable[[_Reward], _Reward]:
    """Mark a reward function: before a run, its arguments are passed to `check`, which raises for wrong values."""
    return _marked(CHECK, check)


def checked_columns(**checks: ColumnCheck) -> Callable[[_Reward], _Reward]:
    """Mark a reward function: before a run, values of these columns are passed to their checks.

    A check raises RewardError for a value that the reward refuses, and returns what else is wrong with it, or None.
    """
    return _marked(COLUMN_CHECKS, checks)


def _marked(attribute: str, value: object) -> Callable[[_Reward], _Reward]:
    def mark(reward: _Reward) -> _Reward:
        setattr(reward, attribute, value)
        return reward

    return mark
