"""What being cut off means, in real GRPO and RLOO runs: four completions that are given, and advantages by hand."""

from __future__ import annotations

import pyarrow.parquet
import pytest
import torch

from tests.rewards.stack.given_completions import PENALTY, RAMP, REPLACE, ROWS, grpo
from tests.support.tolerances import ARITHMETIC


def rloo(totals: list[float | None]) -> list[float]:
    present = [total for total in totals if total is not None]
    return [0.0 if t is None else t - (sum(present) - t) / (len(present) - 1) for t in totals]


ADVANTAGES = {"grpo": (grpo, "trainer.args.scale_rewards=none"), "rloo": (rloo, "trainer.args.beta=0.0")}


class TestWorkedExample:
    """Scores 1, 2, 3, 6, of which the second and the fourth are cut."""

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


class TestOtherTotals:
    def test_a_row_to_which_nothing_applies_stays_so(self, group) -> None:
        rewards = ("++rewards.score={fn: './mine.py:not_second'}",)
        run = group("trainer.args.scale_rewards=none", *PENALTY, rewards=rewards)
        assert run.advantages == pytest.approx(grpo([1.0, None, 3.0, 5.0]), **ARITHMETIC)
        assert run.event["reward"] == pytest.approx(3.0, **ARITHMETIC)
        lengths = sorted(run.outputs[0]["completion_mask"].sum(dim=1).tolist())
        assert lengths == [0, 3, 4, 4]

    def test_replaced_under_normalize_then_sum(self, group) -> None:
        """What is logged is in units of the rewards, and a row that was cut -1 there, as it is among TRL's z-scores."""
        rewards = ("++rewards.score={fn: './mine.py:score'}", "++rewards.one={fn: './mine.py:one', weight: 0.5}")
        run = group(*REPLACE, "aggregate=normalize_then_sum", rewards=rewards)
        kept = ((1 - 3) / ((14 / 3) ** 0.5 + 1e-4) + 0.25 / ((1 / 3) ** 0.5 + 1e-4), -0.25 / ((1 / 3) ** 0.5 + 1e-4))
        centred = grpo([kept[0], -1.0, kept[1], -1.0])
        deviation = (sum(value**2 for value in centred) / 3) ** 0.5 + 1e-4
        assert run.advantages == pytest.approx([value / deviation for value in centred], **ARITHMETIC)
        event = run.event
        assert event["reward"] == pytest.approx((1.5 - 1.0 + 3.0 - 1.0) / 4, **ARITHMETIC)
        weighted = [event[f"rewards/{name}/weighted_mean"] for name in ("score", "one", "truncation")]
        assert sum(weighted) == pytest.approx(event["reward"], **ARITHMETIC)
        assert event["rewards/truncation/score_before"] == pytest.approx((2.5 + 6.0) / 2, **ARITHMETIC)
        assert event["rewards/truncation/score_after"] == pytest.approx(-1.0, **ARITHMETIC)


class TestExclude:
    """A row that is left out has no tokens in the loss, whatever it said and scored."""

    def test_mask_and_token_count(self, group) -> None:
        output = group("truncation=exclude").outputs[0]
        assert output["completion_mask"].sum(dim=1).tolist() == [3, 0, 4, 0]
        assert output["num_items_in_batch"] == 7
        assert group("truncation=none", name="none").outputs[0]["num_items_in_batch"] == 15

    @pytest.mark.parametrize("trainer", ["grpo", "rloo"])
    def test_what_it_said_changes_no_weight(self, group, trainer: str) -> None:
        """With beta > 0 and a second epoch: the KL would push it, and did before its mask was zero."""
        settings = (f"trainer={trainer}", "trainer.args.beta=0.5", "trainer.args.num_iterations=2")
        once = ("trainer.args.max_steps=2", "trainer.args.normalize_advantages=true")[: 2 if trainer == "rloo" else 1]
        others = (ROWS[0], [200, 201, 202, 203], ROWS[2], [210, 211, 212, 213])
        ends = {}
        for policy in ("exclude", "none") if trainer == "grpo" else ("exclude",):
            for name, rows in (("rows", ROWS), ("others", others)):
                run = group(*settings, *once, f"truncation={policy}", rows=rows, name=f"{policy}-{name}")
                ends[policy, name] = run.weights
        assert torch.equal(ends["exclude", "rows"], ends["exclude", "others"])
        if trainer == "grpo":  # negative control
            assert not torch.equal(ends["none", "rows"], ends["none", "others"])

    @pytest.mark.parametrize("trainer", ["rloo", "ppo"])
    def test_a_long_row_leaves_weights_and_loss_finite(self, group, trainer: str) -> None:
        """The rollout's log-probability of a whole row is soon below -88, where exp(0 - logp) is infinite."""
        rows = tuple([*row[:-1], *range(100, 140), row[-1]] for row in ROWS)
        settings = (
            "trainer.args.max_completion_length=44",
            "trainer.args.num_iterations=2",
            "trainer.args.max_steps=2",
        )
        steps = ("trainer.args.steps_per_generation=1",)
        run = group(f"trainer={trainer}", *settings, *steps, "truncation=exclude", rows=rows)
        assert run.event["rewards/truncation/fraction"] == 0.5
        assert run.weights.isfinite().all()
        assert torch.tensor(run.losses).isfinite().all()  # the Trainer logs 0 for NaN
