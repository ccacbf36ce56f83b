"""Which completions count as cut off: by their ending, by the data, by the window of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.rewards.stack.truncation import find_truncated
from tests.rewards.stack.given_completions import EOS, LIMIT, OTHER_EOS, PENALTY, ROWS
from tests.support.tolerances import ARITHMETIC


class TestDetection:
    @pytest.mark.parametrize(
        ("ids", "flag", "expected"),
        [
            ([5, 6, 7, 8], None, True),
            ([5, 6, 7, EOS], None, False),
            ([5, 6, 7, OTHER_EOS], None, False),
            ([5, 6, 7], None, False),  # a stop string, or an environment that was done
            ([5, EOS, 7, 8], None, True),
            ([5, 6], True, True),
            ([5, 6, 7, EOS], True, True),
            ([5, 6, 7, 8], False, True),
            ([], None, False),
            ([5, 6, 7, 8, 9], None, True),  # longer than the limit, as a tool's answer may make it
            ([5, 6, 7, 8, EOS], None, False),
        ],
    )
    def test_of_one_row(self, ids: list[int], flag: Any, expected: bool) -> None:
        assert find_truncated([ids], {EOS, OTHER_EOS}, LIMIT, [flag]) == [expected]
        both = find_truncated([[5, EOS], ids], {EOS, OTHER_EOS}, LIMIT, [None, flag])
        assert both == [False, expected]

    @pytest.mark.parametrize(
        ("ids", "flag", "expected"),
        [([5], None, True), ([5, EOS], None, False), ([EOS, 5], None, True), ([], None, True), ([5, EOS], True, True)],
    )
    def test_without_a_limit_only_an_ending_ends(self, ids: list[int], flag: Any, expected: bool) -> None:
        assert find_truncated([ids], {EOS}, None, [flag]) == [expected]

    def test_a_column_of_the_dataset(self, group, workplace: Path) -> None:
        lines = [json.dumps({"prompt": "1+1=", "is_truncated": True})] * 8
        (workplace / "rows.jsonl").write_text("\n".join(lines))
        run = group(*PENALTY, "data=file", "data.path=./rows.jsonl", "~data.args.num_rows")
        assert run.event["rewards/truncation/fraction"] == 1.0
        assert run.event["rewards/truncation/score_after"] == pytest.approx(2.0, **ARITHMETIC)

    def test_without_a_limit_what_does_not_end_was_cut_by_the_models_window(self, group) -> None:
        """TRL takes null there, and a short row without an ending is then not one that a stop string ended."""
        rows = (ROWS[0], [60, 61], *ROWS[2:])
        run = group("trainer.args.max_completion_length=null", rows=rows)
        assert run.event["rewards/truncation/fraction"] == 0.5
