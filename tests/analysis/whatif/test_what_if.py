"""What `rlhf whatif` says of one group of four answers, against numbers worked by hand.

    raw        correct 1, 0, 1, 0    format 0, 1, 1, 0    brevity 0.5, 1, 0, 0
    the run    weights 1, 0.5, 0.2: totals 1.1, 0.7, 1.5, 0; their mean 0.825
    what if    correct weighs 0.25: totals 0.35, 0.7, 0.75, 0; their mean 0.45

Advantages are not scaled, so they are the totals minus these means. The orders, best first, are c a b d and c b a d:
of six pairs one turns, tau = 4/6. b turns from -0.125 to +0.25 and a from +0.275 to -0.1, the others keep their sign.

Beside it environments, truncation, clipped totals and refusals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trl import RLOOConfig

from rlhf_cli.algorithms.base import Algorithm
from rlhf_cli.algorithms.grpo import Grpo, ProcessRewards
from rlhf_cli.algorithms.own_advantages import OwnAdvantages
from rlhf_cli.algorithms.ppo import Ppo
from rlhf_cli.algorithms.rloo import Rloo
from rlhf_cli.analysis.what_if import RoundDifference, _sign_changed
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.algorithm import algorithm_of
from tests.analysis.whatif.whatif_runs import LESS, UNSCALED, WAS, WOULD, advantages_if, answer, scores
from tests.support.stored_tables import ONE_GROUP, frozen, write_table
from tests.support.tolerances import ARITHMETIC

GATED = "rewards.brevity.gate={by: correct, at_least: 1.0, otherwise: zero}"


def test_totals_order_and_advantages(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What computed the rounds, of the old settings and of the new, is closed."""
    closed: list[RewardStack] = []
    monkeypatch.setattr(RewardStack, "close", lambda stack: closed.append(stack))
    run = frozen(place, UNSCALED)
    write_table(run, 1, **scores(**{"rollout.tokens": [2, 4, 2, 6]}))
    (found,) = answer(run, LESS).rounds
    assert len({id(stack) for stack in closed}) == 2
    assert (found.mean_total, found.tau) == (pytest.approx((0.825, 0.45), **ARITHMETIC), pytest.approx(4 / 6))
    assert (found.best_changed, found.sign_changed, found.replay_error) == (0.0, 0.5, pytest.approx(0.0, abs=1e-6))
    assert advantages_if(run, LESS)[1] == pytest.approx(WOULD, **ARITHMETIC)


def asked_of_one_group(run: RunFolder, *words: str, **columns: object) -> RoundDifference:
    """Return what the words would have changed in one round of the group, with these columns beside its scores."""
    write_table(run, 1, **scores(**columns))
    (found,) = answer(run, *words).rounds
    return found


def test_a_reward_may_be_called_length(place: Path) -> None:
    """It is 1 for every answer, so nothing pushes it; the lengths in tokens are 2, 4, 2 and 6."""
    run = frozen(place, UNSCALED, "++rewards.length={fn: 'rlhf_cli.rewards.toy:digits_only', weight: 0}")
    push = asked_of_one_group(run, LESS, **{"rollout.tokens": [2, 4, 2, 6], "length": [1.0] * 4}).push
    assert push["length"] == (0.0, 0.0) != push["rollout.tokens"]


def test_a_function_of_the_user_s_gives_the_advantages_of_another_weight(place: Path) -> None:
    """MaxRL divides by the mean of the group."""
    run = frozen(place, "advantages=maxrl")
    found = asked_of_one_group(run, LESS, advantage=[was / 0.825 for was in WAS])
    assert (found.why, found.num_answered) == (None, 1)
    assert advantages_if(run, LESS)[1] == pytest.approx([would / 0.45 for would in WOULD], **ARITHMETIC)


def test_a_reward_of_turns_is_settled_by_the_sums_that_are_stored(place: Path) -> None:
    found = asked_of_one_group(frozen(place, UNSCALED, "rewards.format.per=turn"), LESS)
    assert (found.why, found.mean_total) == (None, pytest.approx((0.825, 0.45), **ARITHMETIC))


def test_an_advantage_of_nothing_has_no_sign() -> None:
    old, new = torch.tensor([-1.0, -1.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, -1.0, -1.0])
    assert _sign_changed(old, new) == 0.5


def test_a_schedule_goes_by_the_steps_that_were_done_before_a_round(place: Path) -> None:
    """From 0 to 1 over half of 8 steps. Each round feeds two steps: they begin behind 0, 2 and 4, at 0, 1/2 and 1.

    Format and brevity have 0.5 * 2/4 + 0.2 * 1.5/4 = 0.325 on average, correct 1/2 times its weight.
    """
    run = frozen(place, UNSCALED, max_steps=8)
    for number in range(3):
        write_table(run, 2 * number + 1, number=number, **scores(**{"rollout.step": [2 * number] * 4}))
    linear = "rewards.correct.weight={start: 0, end: 1, fraction: 0.5, shape: linear}"
    found = [one.mean_total[1] for one in answer(run, linear).rounds]
    assert found == pytest.approx([0.325, 0.325 + 0.25, 0.325 + 0.5], **ARITHMETIC)


class TestClosedGates:
    """brevity was gated by correct: of b and d the run has no score of it. Totals 1.1, 0.5, 1.5, 0; mean 0.775."""

    ADVANTAGES = (0.325, -0.275, 0.725, -0.775)

    @pytest.fixture
    def gated(self, place: Path) -> RunFolder:
        run = frozen(place, UNSCALED, GATED, "rewards.brevity.eager=true")
        brevity = [0.5, None, 0.0, None]
        closed_by = {"brevity.closed_by": [None, "correct", None, "correct"]}
        text = {"completion": ["123456789", "x" * 16, "x" * 16, "x" * 30]}  # brevity of the first: (16 - 9)/14 = 0.5
        write_table(run, 1, **scores(brevity=brevity, advantage=[*self.ADVANTAGES], **closed_by, **text))
        return run

    def test_another_weight_needs_no_score_more(self, gated: RunFolder) -> None:
        (found,) = answer(gated, "rewards.brevity.weight=1").rounds
        assert (found.num_unknown, found.mean_total) == (0, pytest.approx((0.775, 0.875), **ARITHMETIC))
        # a and c have a score of it, 0.5 and 0, mean 0.25; their advantages were 0.325 and 0.725.
        assert found.push["brevity"][0] == pytest.approx((0.325 - 0.725) * 0.25 / 2, **ARITHMETIC)

    def test_a_gate_that_opens_leaves_out_the_group_and_counts(self, gated: RunFolder) -> None:
        (found,) = answer(gated, "rewards.brevity.gate=null").rounds
        assert (found.num_unknown, found.num_answered, found.num_groups) == (2, 0, 1)
        assert found.tau is None
        assert found.mean_total == (None, None)
        assert advantages_if(gated, "rewards.brevity.gate=null")[1] == [0.0] * 4  # their effect is unknown

    def test_another_groups_rows_are_still_answered(self, gated: RunFolder) -> None:
        """Where correct is met by all, nothing was closed: totals 1.1, 1.7, 1.5, 1; mean 1.325."""
        write_table(gated, 2, **scores(correct=[1.0] * 4, advantage=[-0.225, 0.375, 0.175, -0.325]))
        found = answer(gated, "rewards.brevity.gate=null", "rewards.format.weight=1").rounds[1]
        assert (found.num_unknown, found.num_answered, found.why) == (0, 1, None)

    @pytest.mark.parametrize(("normalize", "later"), [("batch", None), ("running", "not all rounds are stored")])
    def test_a_deviation_over_unknown_scores(self, gated: RunFolder, normalize: str, later: str | None) -> None:
        """The round has no answer; later rounds have one if the deviation is that of a single round."""
        write_table(gated, 2, **scores(correct=[1.0] * 4, advantage=[-0.225, 0.375, 0.175, -0.325]))
        words = ("rewards.brevity.gate=null", f"rewards.correct.normalize={normalize}")
        first, second = answer(gated, *words).rounds
        assert f"rewards.correct.normalize={normalize} divides by scores that the log lacks" in str(first.why)
        assert (first.mean_total, first.tau, first.best_changed) == ((None, None), None, None)
        assert second.why is None if later is None else later in str(second.why)


class TestWhatCannotBeSaid:
    @pytest.mark.parametrize(("stored", "error"), [(0.3, 0.3 - 0.275), (2.2, (2.2 - 0.275) / 2.2)])
    def test_advantages_that_are_not_those_of_the_run(self, place: Path, stored: float, error: float) -> None:
        """Negative control of the check that stands before every answer. The error is in units of 1, or the largest."""
        found = asked_of_one_group(frozen(place, UNSCALED), LESS, advantage=[stored, *WAS[1:]])
        assert found.why == "the run's own settings do not give the advantages that it stored"
        assert found.replay_error == pytest.approx(error, **ARITHMETIC)
        assert (found.sign_changed, found.share, set(found.push.values())) == (None, {}, {(None, None)})
        assert found.tau == pytest.approx(4 / 6)

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (("trainer=ppo", "trainer.args.num_generations=1", "trainer.args.steps_per_generation=1"), "critic"),
            ((UNSCALED, "trainer.dense=true"), "every token an advantage"),
        ],
    )
    def test_ppo_and_dense_have_totals_and_order(self, place: Path, words: tuple[str, ...], why: str) -> None:
        """Of PPO all rows of a round are one group: it has no others."""
        found = asked_of_one_group(frozen(place, *words), LESS)
        assert why in str(found.why)
        assert found.mean_total == pytest.approx((0.825, 0.45), **ARITHMETIC)
        assert (found.sign_changed, found.num_groups, found.tau) == (None, 1, pytest.approx(4 / 6))


class TestKlInTheReward:
    """RLOO subtracts 0.05 times each row's KL, which is not stored: it is what the stored advantages hold beyond.

    A_i = 4/3 (R_i - mean R). With KL of 2, 0, -2, 4 (mean 1) the stored advantages are those of R - 0.05 KL.
    """

    KL = (2.0, 0.0, -2.0, 4.0)

    def run_of(self, place: Path, *words: str) -> RunFolder:
        run = frozen(place, "trainer=rloo", "trainer.args.beta=0.05", *words)
        write_table(run, 3, **scores(advantage=self.advantages(WAS)))
        return run

    def advantages(self, centred: list[float]) -> list[object]:
        return [4 / 3 * (a - 0.05 * (kl - 1.0)) for a, kl in zip(centred, self.KL, strict=True)]

    def test_it_stays_but_inside_normalised_advantages_it_cannot_be_told(self, place: Path) -> None:
        run = self.run_of(place)
        assert advantages_if(run, LESS)[3] == pytest.approx(self.advantages(WOULD), **ARITHMETIC)
        run = self.run_of(place / "normalised", "trainer.args.normalize_advantages=true")
        assert advantages_if(run, LESS)[3] is None
        assert answer(run, LESS).rounds[0].why is not None

    def test_advantages_that_no_kl_explains_are_not_those_of_the_run(self, place: Path) -> None:
        """Leave-one-out sums to 0 in a group. One of 0.4 too much leaves 0.1 a row in its group, 0 in the other.

        The largest stored advantage is that of the last row, 4/3 (-0.825 - 0.05 3) = -1.3.
        """
        run = frozen(place, "trainer=rloo", "trainer.args.beta=0.05")
        was: list[Any] = self.advantages(WAS)
        two_groups = {name: [*values, *values] for name, values in scores().items()}
        write_table(run, 1, **{**two_groups, "advantage": [*was, was[0] + 0.4, *was[1:]]})
        (found,) = answer(run, LESS).rounds
        assert found.why == "the run's own settings do not give the advantages that it stored"
        assert found.replay_error == pytest.approx(0.1 / 1.3, **ARITHMETIC)


def test_rewards_of_environments_count_once_each(place: Path) -> None:
    """An environment gave 1, 2, 3 and 4 of its own, which no weight changes: 2.5 more a row on average."""
    world = [1.0, 2.0, 3.0, 4.0]
    advantage = [a + w - 2.5 for a, w in zip(WAS, world, strict=True)]
    columns = {"world": world, "world.effective": world, "only.effective": world, "other": world}
    first = asked_of_one_group(frozen(place, UNSCALED), LESS, **columns, advantage=advantage)
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
        ("truncation=eos_penalty truncation.penalty=0.7", 0.825 - 0.35),
        ("truncation=exclude", (1.1 + 1.5) / 2),
        # Of 6 tokens the last three: 4 pay a third, 6 all, cut or not.
        ("truncation=soft_overlong truncation.cache=3", 0.825 - (1 / 3 + 1) / 4),
        # The second row, which ran out of turns at 4 tokens, pays all as well.
        ("truncation=soft_overlong truncation.cache=3 truncation.also=[turns]", 0.825 - (1 + 1) / 4),
    ],
)
def test_what_another_truncation_policy_makes_of_the_same_ends(place: Path, words: str, mean: float) -> None:
    run = frozen(place, UNSCALED, "trainer.args.max_completion_length=6")
    ends: dict[str, object] = {"rollout.truncated": [False, True, False, True], "rollout.tokens": [2, 4, 2, 6]}
    if "turns" in words:
        ends["rollout.ending"] = ["finished", "turns", "finished", "length"]
    found = asked_of_one_group(run, *words.split(), **ends)
    assert found.mean_total == pytest.approx((0.825, mean), **ARITHMETIC)


def test_clipped_totals_of_rloo(place: Path) -> None:
    """Clipped to 0.1 and 1: 1, 0.7, 1, 0.1, then 0.35, 0.7, 0.75, 0.1. A row less the mean of the others is 4/3 of
    what it is above all.
    """
    run = frozen(place, "trainer=rloo", "trainer.args.beta=0", "trainer.args.reward_clip_range=[0.1,1.0]")
    was, would = ([4 / 3 * (x - sum(side) / 4) for x in side] for side in ([1, 0.7, 1, 0.1], [0.35, 0.7, 0.75, 0.1]))
    found = asked_of_one_group(run, LESS, advantage=was)
    assert (found.why, found.share) == (None, {})  # a clipped total has no parts
    assert found.mean_total == pytest.approx((0.825, 0.45), **ARITHMETIC)
    assert advantages_if(run, LESS)[1] == pytest.approx(would, **ARITHMETIC)


def test_a_failure_that_would_have_ended_the_run(place: Path) -> None:
    run = frozen(place, UNSCALED, "rewards.format.on_error=exclude", "rewards.brevity.on_error=exclude")
    write_table(run, 1, **scores())
    write_table(run, 2, **scores(**{"brevity.error": [None, "it broke", None, None]}))
    assert answer(run, "rewards.format.on_error=raise").rounds
    with pytest.raises(ConfigError, match="the run would have ended") as caught:
        answer(run, "rewards.brevity.on_error=raise")
    error = caught.value
    assert (error.where, error.got) == ("rewards.brevity.on_error", "raise; it failed on a row of step 2")
    assert error.expected == "exclude, or a number"


def test_the_kl_of_rows_that_were_left_out_is_not_known(place: Path) -> None:
    """b and d were cut off and counted nowhere: what the KL took from them the log does not say."""
    run = frozen(place, "trainer=rloo", "trainer.args.beta=0.05", "truncation=exclude")
    cut = [False, True, False, True]
    # Of 1.1 and 1.5 each is held against the other; 0.05 times a KL of 2 and of -2 lies between, too.
    advantage = [1.1 - 1.5 - 0.2, 0.0, 1.5 - 1.1 + 0.2, 0.0]
    assert asked_of_one_group(run, LESS, **{"rollout.truncated": cut}, advantage=advantage).why is None
    assert advantages_if(run, LESS)[1] == pytest.approx([0.35 - 0.75 - 0.2, 0.0, 0.75 - 0.35 + 0.2, 0.0], **ARITHMETIC)
    (counted,) = answer(run, "truncation=none").rounds
    assert counted.why == "the KL in the reward of rows that were left out is not stored"


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ("", Grpo("group")),
        ("scale_rewards=true", Grpo("group")),
        ("scale_rewards=false", Grpo("none")),
        ("scale_rewards=batch", Grpo("batch")),
        ("aggregate=normalize_then_sum", Grpo("batch")),
        ("trainer.dense=true", ProcessRewards("group")),
        ("trainer=rloo", Rloo(kl_coef=RLOOConfig.beta)),
        (
            "trainer=rloo normalize_advantages=true reward_clip_range=[-1,2] beta=0.1",
            Rloo(is_normalized=True, clip_range=(-1.0, 2.0), kl_coef=0.1),
        ),
        ("trainer=ppo", Ppo(1.0, 0.95, whiten_advantages=True, keeps_prompts=True)),
        (
            "trainer=ppo gamma=0.9 gae_lambda=0.8 whiten_advantages=false shuffle_by=row",
            Ppo(0.9, 0.8, whiten_advantages=False, keeps_prompts=False),
        ),
    ],
)
def test_which_algorithm_a_trainer_has(place: Path, words: str, algorithm: Algorithm) -> None:
    """Words without a section are TRL's arguments."""
    typed = [word if word.startswith(("trainer", "aggregate")) else f"trainer.args.{word}" for word in words.split()]
    assert algorithm_of(prepare([*ONE_GROUP, *typed]).experiment) == algorithm


def test_what_a_function_of_the_user_s_may_give(place: Path) -> None:
    rloo = ("trainer=rloo", "trainer.args.beta=0")
    for words, takes_tokens in (
        ((), True),
        (("trainer.args.importance_sampling_level=sequence",), False),
        (rloo, False),
    ):
        algorithm = algorithm_of(prepare(["+exp=quickstart", "advantages=maxrl", *words]).experiment)
        assert isinstance(algorithm, OwnAdvantages)
        assert (algorithm.why_no_tokens is None) is takes_tokens
        assert algorithm.is_scaled_by_round  # it may read the whole round
