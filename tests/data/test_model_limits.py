"""The room that an answer leaves for a prompt, and what a chat template refuses or leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rlhf_cli.data.model_limits import Messages, check_rendering, prompt_limit
from rlhf_cli.data.rows import RowTable
from rlhf_cli.errors import ConfigError


def test_what_the_completion_leaves_of_the_context() -> None:
    """The shorter of two contexts less the completion, for which an unknown length leaves one token."""
    left: dict[tuple[Any, Any, Any], int | None] = {
        **{(10, None, 4): 6, (10, 8, 4): 4, (8, 10, 4): 4, (None, 8, 7): 1, (None, None, 4): None},
        **{(10, None, None): 9, (10, None, 0): 9, (10, None, "4"): 9, (0, -1, 4): None, (10, "8", 4): 6},
    }
    assert {lengths: prompt_limit(*lengths, where="here") for lengths in left} == left


def test_a_completion_that_fills_the_context_is_refused() -> None:
    for written in (10, 11):
        with pytest.raises(ConfigError, match="fewer") as caught:
            prompt_limit(10, None, written, where="here")
        assert (caught.value.where, caught.value.hint) == ("here", "trainer.args.max_completion_length=5")
        assert caught.value.got == f"{written} tokens; the model's context has 10"


ASKED: list[tuple[int, dict[str, object]]] = []


def user(content: object, role: str = "user", **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def template(messages: Messages, settings: Mapping[str, Any]) -> str:
    """Refuse narrators and images, read numbers of `n`, and leave out what a system message says."""
    ASKED.append((len(messages), dict(settings)))
    if any(message["role"] == "narrator" or isinstance(message["content"], list) for message in messages):
        raise ValueError("who?")
    told = [message for message in messages if message["role"] != "system"]
    numbers = [int(str(message["content"])) for message in messages if message["role"] == "n"]
    calls = [message.get("tool_calls") or str(message["content"]).strip() for message in told]
    return f"{calls} {numbers} {settings['tools']}"


CALL, BARE, BAD = {"function": {"name": "f", "arguments": {}}}, {"name": "g"}, user("x", "narrator")
WHO = "ValueError: who?, at 'x'"
SOUND = {"prompt": [user("a"), user(" "), user("7")], "completion": [user(None), user("b")], "tools": [CALL, BARE]}


@pytest.mark.parametrize(
    ("changed", "column", "got"),
    [
        ({}, None, None),
        ({"prompt": "text", "completion": [BAD]}, None, None),
        ({"prompt": None, "completion": [BAD]}, "completion", WHO),
        ({"prompt": [BAD, user("c")]}, "prompt", WHO),
        ({"prompt": [user("a"), BAD, user("c")]}, "prompt", WHO),
        ({"completion": [user("b"), BAD]}, "completion", WHO),
        ({"prompt": [user("a"), user("left", "system"), user("more", "system")]}, "prompt", "'left'"),
        ({"prompt": [user("7", "n"), user("left", "system")]}, None, None),  # reads contents: nothing can be marked
        ({"prompt": [user("a", tool_calls=[CALL, 5])]}, "prompt", "5"),
        ({"prompt": [user("a", tool_calls=[CALL]), user("left", "system")]}, "prompt", "'left'"),
        ({"prompt": [user("left", "system", tool_calls=[CALL])]}, "prompt", repr(CALL)),
        ({"prompt": [user("a", tool_calls=[BARE, CALL])]}, None, None),
        ({"tools": [CALL, 5]}, "prompt", "5"),
    ],
)
def test_what_a_template_leaves_out(changed: dict[str, Any], column: str | None, got: str | None, refusal) -> None:
    """In row 200; the rows behind it are not tried."""
    rows = RowTable([*[SOUND] * 199, SOUND | changed, {"prompt": [BAD]}], [*SOUND, "other"])
    columns = ["prompt", "completion", "tools"]
    if column is None:
        check_rendering(rows, columns, template, name="data.eval")
    else:
        error = refusal(check_rendering, rows, columns, template, name="data.eval")
        assert (error.where, error.got) == (f"data.eval, row 200 (the first row is 1), {column}", got)
        assert got != "'left'" or "message 2, " in error.what


def test_the_template_gets_the_prompt_before_an_answer_and_the_variables_of_the_row() -> None:
    row, alone = SOUND | {"chat_template_kwargs": {"a": 1}}, {"tools": None, "add_generation_prompt": False}
    ASKED.clear()
    for columns in ([*row], ["completion"], ["prompt", "completion"]):
        check_rendering(RowTable([row | {"tools": []}], [*row]), columns, template, name="data")
    sizes = [(3, True, 1), (5, False, 1), (2, False, None), (3, True, None), (5, False, None)]
    asked = [(n, alone | {"add_generation_prompt": adds} | ({"a": a} if a else {})) for n, adds, a in sizes]
    assert asked == ASKED[::2]  # each is written again with marks
