"""Prompts that leave no room for an answer (a word is a token), and what a chat template refuses or leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from datasets import Dataset

from rlhf_cli.data.model_limits import Messages, check_rendering, prompt_limit, without_overlong
from rlhf_cli.data.rows import RowTable
from rlhf_cli.errors import ConfigError

TEXTS = ["a", "b b b b", "c c", "d d d"]
ROWS = Dataset.from_dict({"prompt": TEXTS, "answer": [1, 2, 3, 4]})
CHAT = Dataset.from_dict({"prompt": [[{"role": "user", "content": "long"}]]})


def longer_than(limit: int, prompts: Sequence[object]) -> Mapping[int, int]:
    counted = [len(str(prompt).split()) for prompt in prompts]
    return {row: words for row, words in enumerate(counted) if words > limit}


def last(text: str, limit: int) -> str:
    return " ".join(text.split()[-limit:])


def fitted(policy, rows: Dataset = ROWS, name: str = "data.eval") -> tuple[Dataset, list[str]]:
    return without_overlong(rows, 2, policy=policy, longer_than=longer_than, last=last, name=name)


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


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("policy", "rows", "where", "counts", "hint"),
    [
        ("error", ROWS, "data.eval, rows 2, 4 (the first row is 1)", "2 of 4", None),
        ("drop", ROWS.select([1, 3]), "data.eval", "2 of 2", None),
        ("truncate", CHAT, "data.eval, row 1 (the first row is 1)", "1 of 1", "data.overlong_prompts=drop"),
    ],
)
def test_prompts_that_a_policy_cannot_handle_are_refused(policy, rows, where, counts, hint, refusal) -> None:
    error = refusal(fitted, policy, rows)
    got = f"{counts} prompts are longer, the longest has 4 tokens"
    assert (error.where, error.got, error.hint) == (where, got, hint)
    assert ("at most 2," in error.expected, bool(error.advice)) == (True, policy == "error")


@pytest.mark.fault(43)
def test_they_are_dropped_or_truncated() -> None:
    rows = Dataset.from_dict({"prompt": ["a"] * 1999 + ["b b b"] + ["a"] * 5})
    (kept, notes), two = fitted("drop", rows), "2 of 4 prompts have more than 2 tokens (the longest 4) and"
    assert kept["prompt"][:] == ["a"] * 2004, "one beyond the first batch"
    assert notes == ["data.eval: 1 of 2005 prompts have more than 2 tokens (the longest 3) and are left out"]
    (dropped, said), (cut, lost) = fitted("drop"), fitted("truncate")
    assert dropped[:] == {"prompt": ["a", "c c"], "answer": [1, 3]}
    assert cut[:] == {"prompt": ["a", "b b", "c c", "d d"], "answer": [1, 2, 3, 4]}
    assert [*said, *lost] == [f"data.eval: {two} are left out", f"data.eval: {two} lose their beginnings"]
    fits = Dataset.from_dict({"prompt": ["a b"]})
    assert fitted("error", fits) == (fits, [])


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
