"""`rlhf whatif`: environments, truncation, clipped totals and refusals.

The group of four and its numbers are those of test_by_hand.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trl import RLOOConfig

from rlhf_cli.algorithms.base import Algorithm
from rlhf_cli.algorithms.grpo import Grpo
from rlhf_cli.algorithms.process_rewards import ProcessRewards
from rlhf_cli.algorithms.rloo import Rloo
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.algorithm import algorithm_of
from tests.analysis.whatif.whatif_runs import LESS, UNSCALED, WAS, advantages_if, answer, scores
from tests.support.stored_tables import ONE_GROUP, frozen, write_table
from tests.support.tolerances import ARITHMETIC


def test_rewards_of_environments_count_once_each(place: Path) -> None:
    """An environment gave 1, 2, 3 and 4 of its own, which no weight changes: 2.5 more a row on average."""
    run = frozen(place, UNSCALED)
    world = [1.0, 2.0, 3.0, 4.0]
    advantage = [a + w - 2.5 for a, w in zip(WAS, world, strict=True)]
    write_table(run, 1, **scores(**{"world": world, "world.effective": world, "advantage": advantage}))
    (first,) = answer(run, LESS).rounds
    assert first.why is None
    assert first.mean_total == pytest.approx((3.325, 2.95), **ARITHMETIC)
    pushed = sum(a * (w - 2.5) for a, w in zip(advantage, world, strict=True)) / 4
    assert first.push["world"][0] == pytest.approx(pushed, **ARITHMETIC)
    assert sum(one[1] or 0.0 for one in first.share.values()) == pytest.approx(1.0, **ARITHMETIC)
    assert list(first.share) == ["correct", "format", "brevity", "world"]


@pytest.mark.parametrize(
    ("words", "mean"),
    [
        # The second and the fourth row were cut: two of four pay 0.7.
        (["truncation=eos_penalty", "truncation.penalty=0.7"], 0.825 - 0.35),
        (["truncation=exclude"], (1.1 + 1.5) / 2),
        # Of 6 tokens the last three: 4 pay a third, 6 all, cut or not.
        (["truncation=soft_overlong", "truncation.cache=3"], 0.825 - (1 / 3 + 1) / 4),
    ],
)
def test_what_another_truncation_policy_makes_of_the_same_ends(place: Path, words: list[str], mean: float) -> None:
    run = frozen(place, UNSCALED, "trainer.args.max_completion_length=6")
    cut, tokens = [False, True, False, True], [2, 4, 2, 6]
    write_table(run, 1, **scores(**{"rollout.truncated": cut, "rollout.tokens": tokens}))
    assert answer(run, *words).rounds[0].mean_total == pytest.approx((0.825, mean), **ARITHMETIC)


def test_clipped_totals_of_rloo(place: Path) -> None:
    """Clipped to 0.1 and 1: 1, 0.7, 1, 0.1, then 0.35, 0.7, 0.75, 0.1. A row less the mean of the others is 4/3 of
    what it is above all.
    """
    run = frozen(place, "trainer=rloo", "trainer.args.beta=0", "trainer.args.reward_clip_range=[0.1,1.0]")
    was, would = (
        [4 / 3 * (one - sum(side) / 4) for one in side] for side in ([1, 0.7, 1, 0.1], [0.35, 0.7, 0.75, 0.1])
    )
    write_table(run, 1, **scores(advantage=was))
    (found,) = answer(run, LESS).rounds
    assert (found.why, found.share) == (None, {})  # a clipped total has no parts
    assert found.mean_total == pytest.approx((0.825, 0.45), **ARITHMETIC)
    assert advantages_if(run, LESS)[1] == pytest.approx(would, **ARITHMETIC)


class TestRefusals:
    def test_a_failure_that_would_have_ended_the_run(self, place: Path) -> None:
        run = frozen(place, UNSCALED, "rewards.format.on_error=exclude", "rewards.brevity.on_error=exclude")
        write_table(run, 1, **scores())
        write_table(run, 2, **scores(**{"brevity.error": [None, "it broke", None, None]}))
        assert answer(run, "rewards.format.on_error=raise").rounds
        with pytest.raises(ConfigError, match="the run would have ended") as caught:
            answer(run, "rewards.brevity.on_error=raise")
        error = caught.value
        assert (error.where, error.got) == ("rewards.brevity.on_error", "raise; it failed on a row of step 2")
        assert error.expected == "exclude, or a number"

    @pytest.mark.parametrize(
        ("words", "where"),
        [
            (["trainer.args.temperature=0.5"], ["trainer.args.temperature"]),
            (["trainer.class=trl:RLOOTrainer"], ["trainer.class"]),
            (["rewards.correct.fn=tests.support.planted_holes:right_sum"], ["rewards.correct.fn"]),
            (["+rewards.extra.fn=tests.support.planted_holes:right_sum"], ["rewards.extra"]),
            (
                ["trainer.args.temperature=0.5", "trainer.args.top_p=0.9"],
                ["trainer.args.temperature", "trainer.args.top_p"],
            ),
        ],
    )
    def test_what_a_log_cannot_answer_is_refused_by_its_key(
        self, place: Path, words: list[str], where: list[str]
    ) -> None:
        run = frozen(place, UNSCALED)
        write_table(run, 1, **scores())
        with pytest.raises((ConfigError, Problems)) as caught:
            answer(run, *words, LESS)
        problems = caught.value.problems if isinstance(caught.value, Problems) else [caught.value]
        assert sorted(problem.where.split(" ")[0] for problem in problems) == where


def test_the_kl_of_rows_that_were_left_out_is_not_known(place: Path) -> None:
    """b and d were cut off and counted nowhere: what the KL took from them the log does not say."""
    run = frozen(place, "trainer=rloo", "trainer.args.beta=0.05", "truncation=exclude")
    cut = [False, True, False, True]
    # Of 1.1 and 1.5 each is held against the other; 0.05 times a KL of 2 and of -2 lies between, too.
    advantage = [1.1 - 1.5 - 0.2, 0.0, 1.5 - 1.1 + 0.2, 0.0]
    write_table(run, 1, **scores(**{"rollout.truncated": cut}, advantage=advantage))
    (same,) = answer(run, LESS).rounds
    assert same.why is None
    assert advantages_if(run, LESS)[1] == pytest.approx([0.35 - 0.75 - 0.2, 0.0, 0.75 - 0.35 + 0.2, 0.0], **ARITHMETIC)
    (counted,) = answer(run, "truncation=none").rounds
    assert counted.why == "the KL in the reward of rows that were left out is not stored"


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ((), Grpo("group")),
        (("trainer.args.scale_rewards=true",), Grpo("group")),
        (("trainer.args.scale_rewards=false",), Grpo("none")),
        (("trainer.args.scale_rewards=batch",), Grpo("batch")),
        (("aggregate=normalize_then_sum",), Grpo("batch")),
        (("trainer.dense=true",), ProcessRewards("group")),
        (("trainer=rloo",), Rloo(kl_coef=RLOOConfig.beta)),
        (
            (
                *("trainer=rloo", "trainer.args.normalize_advantages=true"),
                *("trainer.args.reward_clip_range=[-1,2]", "trainer.args.beta=0.1"),
            ),
            Rloo(is_normalized=True, clip_range=(-1.0, 2.0), kl_coef=0.1),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_which_algorithm_a_trainer_has(place: Path, words: tuple[str, ...], algorithm: Algorithm) -> None:
    assert algorithm_of(prepare([*ONE_GROUP, *words]).experiment) == algorithm
