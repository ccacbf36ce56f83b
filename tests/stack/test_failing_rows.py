"""Which row of a batch failed, where gates left the function only some of them."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.errors import RewardError, RewardFailed
from rlhf_cli.stack.component import Component
from rlhf_cli.stack.gates import Gate
from rlhf_cli.stack.reward_stack import RewardStack

BATCH: dict[str, Any] = {
    "prompts": ["zero", "one", "two", "three"],
    "completions": ["w", "x", "y", "z"],
    "completion_ids": [[1], [1, 2], [1], [1, 2, 3]],
    "row": [0, 1, 2, 3],
}


class TestWhichRowFailed:
    """Only rows 1 and 3 are open: the function is given two rows, and its second is row 3 of the batch."""

    def failing(self, score: Any) -> tuple[Any, list[dict[str, Any]]]:
        recorded: list[dict[str, Any]] = []
        gated = Component("b", score, gates=(Gate("a", low=1.0),))
        stack = RewardStack([Component("a", lambda **_: [0.0, 1.0, 0.0, 1.0]), gated], record_error=recorded.append)
        with pytest.raises((RewardError, RewardFailed)) as caught:
            stack.evaluate(**BATCH)
        stack.close()
        return caught.value, recorded

    @pytest.mark.parametrize("returned", [[1.0, float("nan")], [1.0, "high"], [1.0, [0.0, 0.0]]], ids=str)
    def test_what_is_no_score(self, returned: list[Any]) -> None:
        error, _ = self.failing(lambda **_: returned)
        assert "row 3" in error.what
        assert "row 1" not in error.what
        assert "'three'" in str(error.got)

    def test_a_raise(self) -> None:
        def raises(row: list[int], **_: Any) -> list[float]:
            if 3 in row:
                raise ValueError("odd")
            return [1.0] * len(row)

        error, recorded = self.failing(raises)
        assert error.what == "reward 'b' failed on row 3"
        assert "'three'" in str(error.expected)
        kept = [(one["reward"], one["row"], one["prompt"], one["completion"]) for one in recorded]
        assert kept == [("b", 3, "three", "z")]

    def test_negative_control_its_first_row(self) -> None:
        error, _ = self.failing(lambda **_: [float("inf"), 1.0])
        assert "row 1" in error.what
        assert "'one'" in str(error.got)
