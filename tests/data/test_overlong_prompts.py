"""Prompts that leave no room for an answer; here every word is a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from datasets import Dataset

from rlhf_cli.data.model_limits import prompt_limit, without_overlong
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


@pytest.mark.parametrize(
    ("read", "served", "completion", "expected"),
    [
        *((10, None, 4, 6), (10, 8, 4, 4), (8, 10, 4, 4), (None, 8, 7, 1), (None, None, 4, None)),
        *((10, None, None, 9), (10, None, 0, 9), (10, None, "4", 9), (0, -1, 4, None), (10, "8", 4, 6)),
    ],
)
def test_what_the_completion_leaves_of_the_context(read: Any, served: Any, completion: Any, expected: Any) -> None:
    """The shorter of two contexts less the completion, for which an unknown length leaves one token."""
    assert prompt_limit(read, served, completion, where="here") == expected


@pytest.mark.parametrize("completion", [10, 11])
def test_a_completion_that_fills_the_context_is_refused(completion: int) -> None:
    with pytest.raises(ConfigError) as caught:
        prompt_limit(10, None, completion, where="here")
    assert (caught.value.where, caught.value.hint) == ("here", "trainer.args.max_completion_length=5")
    assert caught.value.got == f"{completion} tokens; the model's context has 10"
    assert "fewer" in str(caught.value.expected)


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
