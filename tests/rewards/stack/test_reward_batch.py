"""What has an entry a row in a reward's batch is a sequence; anything else is named instead of being indexed."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import as_completion
from rlhf_cli.rewards.stack.component import by_row, token_ids

BATCH = {"completions": ["a", "b"], "completion_ids": [[1], [2, 3]], "answer": ("x", "y"), "trainer_state": object()}


def test_what_has_an_entry_a_row_is_given_as_it_is() -> None:
    assert by_row(BATCH, "completions") is BATCH["completions"]
    assert list(by_row(BATCH, "answer")) == ["x", "y"]
    assert token_ids(BATCH, 1) == [2, 3]


def test_what_has_none_is_named() -> None:
    with pytest.raises(TypeError, match="`trainer_state` is no list of one value a completion: object"):
        by_row(BATCH, "trainer_state")
    with pytest.raises(TypeError, match="`completion_ids` of row 1 is no list of token ids: int"):
        token_ids({"completion_ids": [[1], 2]}, 1)


def test_a_completion_is_text_or_messages() -> None:
    messages = [{"role": "assistant", "content": "4"}]
    assert as_completion("4") == "4"
    assert as_completion(messages) is messages
    for other in (4, None, ["4"], {"content": "4"}):
        with pytest.raises(RewardError, match="neither text nor a list of messages"):
            as_completion(other)
