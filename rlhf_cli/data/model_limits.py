"""Check that a model can take the rows: its chat template writes them, its context leaves room for an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, cast

import jinja2

from rlhf_cli.data.dialogues import ANSWERS
from rlhf_cli.data.rows import DIALOGUES, Messages, Table, at_rows, kind_of_text
from rlhf_cli.errors import ConfigError, DataError

TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, RecursionError)
"""What a chat template may raise on a conversation that it does not take."""
_ROWS = 200
Write: TypeAlias = Callable[[Messages, Mapping[str, object]], str]  # (messages, variables of the template) -> the text


def check_rendering(table: Table, columns: Sequence[str], write: Write, *, name: str) -> None:
    """Raise DataError if `write`, the chat template, refuses or leaves out part of a conversation of the first rows."""
    for number in range(min(_ROWS, len(table))):
        row = {column: value for column, value in table[number].items() if column in columns}
        given, tools, asked = row.get("chat_template_kwargs"), row.get("tools") or None, row.get("prompt") or []
        settings = {"tools": tools} | (given if isinstance(given, dict) else {})
        for column in [name for name in row if name in ("prompt", *ANSWERS, *DIALOGUES)]:
            value = row[column]
            if not isinstance(asked, list) or kind_of_text(value) != "messages":
                continue
            messages = cast("Messages", value if column == "prompt" else [*asked, *cast("list[object]", value)])
            wrong = _wrong(messages, write, settings | {"add_generation_prompt": column == "prompt"})
            if wrong is not None:
                what, where = f"the chat template {wrong[0]}", f"{at_rows(name, number + 1)}, {column}"
                expected = "roles, contents, tool calls and tools that the template writes; rename other columns"
                hint = "model.chat_template=FILE.jinja, or model.tokenizer=FOLDER_OR_HUB_ID"
                raise DataError(what, where=where, got=wrong[1], expected=expected, hint=hint)


def _wrong(messages: Messages, write: Write, settings: Mapping[str, object]) -> tuple[str, str] | None:
    """Return what the template does not do with a conversation, and the error or the part; None if it writes all."""
    if (error := _error(messages, write, settings)) is not None:
        prefixes = range(1, len(messages))
        place = next((end for end in prefixes if _error(messages[:end], write, settings)), len(messages))
        role, content = messages[place - 1].get("role"), messages[place - 1].get("content")
        what = f"does not take message {place}, by {role!r}"
        return what, f"{type(error).__name__}: {error}, at {content!r:.100}"
    marks: list[tuple[str, object]] = []

    def mark(what: str, value: object) -> str:
        marks.append((what, value))
        return f"q{len(marks)}mark"

    marked = []
    for place, message in enumerate(messages, 1):
        content, calls, changed = message.get("content"), message.get("tool_calls"), dict(message)
        if isinstance(calls, list):  # a template may write the calls alone
            changed["tool_calls"] = [_renamed(call, mark(f"the tool call of message {place}", call)) for call in calls]
        elif isinstance(content, str) and content.strip():
            changed["content"] = mark(f"message {place}, by {message.get('role')!r}", content)
        marked.append(changed)
    if isinstance(tools := settings.get("tools"), list):
        settings = {**settings, "tools": [_renamed(tool, mark("the column 'tools'", tool)) for tool in tools]}
    try:
        text = write(marked, settings)
    except TEMPLATE_ERRORS:
        return None  # it reads the contents
    left_out = (marked for number, marked in enumerate(marks, 1) if f"q{number}mark" not in text)
    return next(((f"leaves out {what}", f"{value!r:.100}") for what, value in left_out), None)


def _error(messages: Messages, write: Write, settings: Mapping[str, object]) -> Exception | None:
    try:
        write(messages, settings)
    except TEMPLATE_ERRORS as error:
        return error
    return None


def _renamed(tool: object, name: str) -> object:
    """Return a tool or a tool call under another name."""
    if not isinstance(tool, Mapping):
        return tool
    inner = tool.get("function")
    return {**tool, "function": {**inner, "name": name}} if isinstance(inner, Mapping) else {**tool, "name": name}


OverlongPrompts = Literal["error", "drop", "truncate"]


def prompt_limit(read: object, served: object, completion: object, *, where: str) -> int | None:
    """Return how many tokens a prompt may have, or None if the model's context is unknown.

    `read` is the model's own limit, `served` that of the server that generates, `completion` the most tokens of an
    answer; each may be None. Raise ConfigError if no token is left for a prompt.
    """
    context = min((number for number in (read, served) if isinstance(number, int) and number > 0), default=None)
    if context is None:
        return None
    written = completion if isinstance(completion, int) and completion > 0 else 1
    if written >= context:
        what, got = "completions leave no room for a prompt", f"{written} tokens; the model's context has {context}"
        expected = "fewer than the context, which holds prompt and completion"
        hint = f"trainer.args.max_completion_length={context // 2}"
        raise ConfigError(what, where=where, got=got, expected=expected, hint=hint)
    return context - written


def check_overlong(table: Table, overlong: Mapping[int, int], limit: int, *, policy: OverlongPrompts, name: str) -> str:
    """Return what happens to the prompts `overlong` (row -> tokens): `3 of 64 prompts ... (the longest 1263) and ...`.

    Raise DataError under `error`, if no prompt is left, or if a conversation would be truncated.
    """
    counts, longest = f"{len(overlong)} of {len(table)}", max(overlong.values())
    hint, advice, where = None, None, at_rows(name, *(row + 1 for row in overlong))
    if policy == "error":
        problem = f"prompts of more than {limit} tokens leave the policy no room to answer"
        advice = "data.overlong_prompts=drop or truncate, or a smaller trainer.args.max_completion_length"
    elif policy == "drop" and len(overlong) == len(table):
        problem, where = f"every prompt has more than {limit} tokens", name
    elif policy == "truncate" and any(isinstance(table[row]["prompt"], list) for row in overlong):
        problem = "rlhf cannot cut off the beginning of a conversation: its first speaker would be lost"
        hint = "data.overlong_prompts=drop"
    else:
        done = "are left out" if policy == "drop" else "lose their beginnings"
        return f"{counts} prompts have more than {limit} tokens (the longest {longest}) and {done}"
    expected = f"at most {limit}, the model's context less trainer.args.max_completion_length"
    got = f"{counts} prompts are longer, the longest has {longest} tokens"
    raise DataError(problem, where=where, got=got, expected=expected, hint=hint, advice=advice)
