"""Which completions count as cut off, and what that means in real GRPO and RLOO runs: advantages by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from rlhf_cli.rewards.stack.truncated_rows import find_truncated
from tests.rewards.stack.given_completions import EOS, LIMIT, OTHER_EOS, PENALTY, RAMP, REPLACE, ROWS, grpo
from tests.support.tolerances import ARITHMETIC


def rloo(totals: list[float | None]) -> list[float]:
    present = [total for total in totals if total is not None]
    return [0.0 if t is None else t - (sum(present) - t) / (len(present) - 1) for t in totals]


ADVANTAGES = {"grpo": (grpo, "trainer.args.scale_rewards=none"), "rloo": (rloo, "trainer.args.beta=0.0")}


class TestWorkedExample:
    """Scores 1, 2, 3, 6. The second and the fourth row are truncated."""

    @pytest.mark.parametrize(
        ("trainer", "policy", "totals"),
        [
            ("grpo", ("truncation=none",), [1.0, 2.0, 3.0, 6.0]),
            ("grpo", REPLACE, [1.0, -1.0, 3.0, -1.0]),
            # The ramp begins behind two tokens: three pay a half, four pay all, ended or not.
            ("grpo", RAMP, [0.5, 1.0, 2.0, 5.0]),
            ("grpo", ("truncation=exclude",), [1.0, None, 3.0, None]),
            ("rloo", ("truncation=exclude",), [1.0, None, 3.0, None]),
        ],
        ids=["none", "replace", "soft_overlong", "exclude", "exclude-rloo"],
    )
    def test_advantages(self, group, trainer: str, policy: tuple[str, ...], totals: list[float | None]) -> None:
        by_hand, setting = ADVANTAGES[trainer]
        run = group(f"trainer={trainer}", setting, *policy)
        assert run.advantages == pytest.approx(by_hand(totals), **ARITHMETIC)
        present = [total for total in totals if total is not None]
        assert run.event["reward"] == pytest.approx(sum(present) / len(present), **ARITHMETIC)
        assert run.event["rewards/truncation/fraction"] == 0.5  # without a policy, too
        if policy == ("truncation=none",):
            scores = [run.event[f"rewards/truncation/score_{when}"] for when in ("before", "after")]
            assert scores == pytest.approx([4.0, 4.0], **ARITHMETIC)
            assert "rewards/truncation/mean" not in run.event

    @pytest.mark.parametrize("trainer", ["grpo", "rloo"])
    def test_a_penalty_and_its_share(self, group, trainer: str) -> None:
        by_hand, setting = ADVANTAGES[trainer]
        run = group(f"trainer={trainer}", setting, *PENALTY)
        whole, part = by_hand([1.0, 1.0, 3.0, 5.0]), by_hand([0.0, -1.0, 0.0, -1.0])
        assert run.advantages == pytest.approx(whole, **ARITHMETIC)
        assert run.event["reward"] == pytest.approx(2.5, **ARITHMETIC)
        expected = sum(p * a for p, a in zip(part, whole, strict=True)) / sum(a * a for a in whole)
        assert run.event["rewards/truncation/advantage_share"] == pytest.approx(expected, **ARITHMETIC)
        assert run.event["rewards/score/advantage_share"] == pytest.approx(1 - expected, **ARITHMETIC)
        assert run.event["rewards/truncation/mean"] == pytest.approx(-0.5, **ARITHMETIC)
        table = pyarrow.parquet.read_table(run.folder.path / "completions" / "completions_00001.parquet").to_pydict()
        assert table["truncation"] == pytest.approx([0.0, -1.0, 0.0, -1.0], **ARITHMETIC)


class TestExclude:
    """An excluded row has no tokens in the loss."""

    def test_mask_and_token_count(self, group) -> None:
        output = group("truncation=exclude").outputs[0]
        assert output["completion_mask"].sum(dim=1).tolist() == [3, 0, 4, 0]
        assert output["num_items_in_batch"] == 7
        assert group("truncation=none", name="none").outputs[0]["num_items_in_batch"] == 15


class TestDetection:
    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            ([5, 6, 7, 8], True),
            ([5, 6, 7, EOS], False),
            ([5, 6, 7, OTHER_EOS], False),
            ([5, 6, 7], False),  # a stop string, or an environment that was done
            ([5, EOS, 7, 8], True),
            ([], False),
            ([5, 6, 7, 8, 9], True),  # longer than the limit, as a tool's answer may make it
            ([5, 6, 7, 8, EOS], False),
        ],
    )
    def test_of_one_row(self, ids: list[int], expected: bool) -> None:
        assert find_truncated([ids], {EOS, OTHER_EOS}, LIMIT) == [expected]
        both = find_truncated([[5, EOS], ids], {EOS, OTHER_EOS}, LIMIT)
        assert both == [False, expected]

    @pytest.mark.parametrize(("ids", "expected"), [([5], True), ([5, EOS], False), ([EOS, 5], True), ([], True)])
    def test_without_a_limit_only_an_ending_ends(self, ids: list[int], expected: bool) -> None:
        assert find_truncated([ids], {EOS}, None) == [expected]

    def test_a_column_of_the_dataset(self, group, workplace: Path) -> None:
        lines = [json.dumps({"prompt": "1+1=", "is_truncated": True})] * 8
        (workplace / "rows.jsonl").write_text("\n".join(lines))
        run = group(*PENALTY, "data=file", "data.path=./rows.jsonl", "~data.args.num_rows")
        assert run.event["rewards/truncation/fraction"] == 1.0
        assert run.event["rewards/truncation/score_after"] == pytest.approx(2.0, **ARITHMETIC)

    def test_without_a_limit_a_row_without_an_ending_is_truncated(self, group) -> None:
        """TRL takes null there, and a short row without an ending is then not one that a stop string ended."""
        rows = (ROWS[0], [60, 61], *ROWS[2:])
        run = group("trainer.args.max_completion_length=null", rows=rows)
        assert run.event["rewards/truncation/fraction"] == 0.5
