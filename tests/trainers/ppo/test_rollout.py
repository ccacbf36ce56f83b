"""The advantages, returns and values of a rollout against arithmetic of our own, row by row and without padding."""

from __future__ import annotations

import statistics
from typing import Any

import pyarrow.parquet
import pytest
import torch
from torch import Tensor
from trl import GRPOTrainer

from rlhf_cli.trainers.ppo.ppo_mixin import shuffled_prompts
from tests.support.ppo_by_hand import (
    GAMMA,
    LAMBDA,
    LIMIT,
    PLAIN,
    assert_rows,
    gae_of,
    raw_advantages,
    total_of,
    whitened,
)
from tests.support.tolerances import ARITHMETIC, MODEL
from tests.support.watched_critic import Watched, logged

pytestmark = pytest.mark.whole


BOOTSTRAP, PENALTY = "truncation=bootstrap", ("truncation=eos_penalty", "truncation.penalty=0.7")


@pytest.mark.parametrize(
    ("policy", "of_cut"),
    [
        ((BOOTSTRAP, "truncation.mode=add"), lambda total: total),
        ((BOOTSTRAP, "truncation.mode=replace"), lambda total: 0.0),
        (PENALTY, lambda total: total - 0.7),
        ((*PENALTY, "truncation.mode=replace"), lambda total: -0.7),
    ],
    ids=["bootstrap", "bootstrap instead", "subtract", "replace"],
)
def test_whatever_being_cut_off_means(rollouts, policy: tuple[str, ...], of_cut) -> None:
    run = rollouts(*policy, "kl.coef=0.3")
    (rows,), (output,) = run.rows, run.outputs
    assert {row.is_truncated for row in rows} == {True, False}
    given = [(total_of(row.completion), row.is_truncated) for row in rows]
    totals = [of_cut(total) if is_cut else total for total, is_cut in given]
    raw = raw_advantages(rows, totals, coef=0.3, is_bootstrapped=policy[0] == BOOTSTRAP)
    assert_rows(output["advantages"], whitened(raw))
    none = raw_advantages(rows, [total for total, _ in given], coef=0.3)
    with pytest.raises(AssertionError):  # control: it is not what `none` gives
        assert_rows(output["advantages"], whitened(none))


@pytest.mark.parametrize("where", ["reward", "loss", "none"])
def test_wherever_the_kl_penalty_is(rollouts, where: str) -> None:
    coef = () if where == "none" else ("kl.coef=0.3",)
    run = rollouts(f"kl.where={where}", *coef)
    (rows,), (output,) = run.rows, run.outputs
    assert {len(row.completion) for row in rows} >= {1, 2, LIMIT}  # ragged, and one is cut
    assert len({len(row.prompt) for row in rows}) > 1
    assert where == "none" or sum(abs(kl) for row in rows for kl in row.kl) > 1
    totals = [total_of(row.completion) for row in rows]
    raw = raw_advantages(rows, totals, coef=0.3 if where == "reward" else 0.0)
    assert_rows(output["advantages"], whitened(raw))
    table = pyarrow.parquet.read_table(run.folder.path / "completions" / "completions_00001.parquet").to_pydict()
    assert table["advantage"] == pytest.approx([statistics.fmean(row) for row in whitened(raw)], **MODEL)
    assert_rows(output["rollout_values"], [row.values[:-1] for row in rows])
    returns = [[a + v for a, v in zip(one, row.values, strict=False)] for one, row in zip(raw, rows, strict=True)]
    assert_rows(output["returns"], returns)
    assert ("ref_per_token_logps" in output) == (where == "loss")
    if where != "none":
        logps = output["old_per_token_logps"].where(output["completion_mask"].bool(), 0.0)
        assert_rows(logps, [row.logps for row in rows])
    if where == "loss":
        logps = output["ref_per_token_logps"].where(output["completion_mask"].bool(), 0.0)
        assert_rows(logps, [row.ref_logps for row in rows])


EVERY_STEP = ("data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")


def test_an_evaluation_is_of_the_models_as_they_are_and_moves_no_coefficient(rollouts) -> None:
    run = rollouts(*EVERY_STEP, "kl.controller={target: 1.5, horizon: 400}", "kl.coef=0.3")
    training, evaluations = run.rows[0], run.rows[1:]
    assert len(training) == 16
    assert {len(rows) for rows in evaluations} == {8}
    divergence = statistics.fmean(sum(row.kl) for row in training)
    coef = 0.3 * (1 + min(max(divergence / 1.5 - 1, -0.2), 0.2) * 16 / 400)
    assert run.trainer.kl.coef == pytest.approx(coef, **MODEL)
    for rows, output in zip(evaluations, run.outputs[1:], strict=True):
        totals = [total_of(row.completion) for row in rows]
        assert_rows(output["advantages"], whitened(raw_advantages(rows, totals, coef=coef)))


def test_a_round_learns_with_the_coefficient_that_it_logs(rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a round has that of its rollout; what is measured on it moves the next round's."""
    seen: list[float] = []
    compute_loss = GRPOTrainer._compute_loss

    def spied(self: Any, model: Any, inputs: Any) -> Tensor:
        seen.append(self.beta)
        return compute_loss(self, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", spied)
    adapts = ("kl.where=loss", "kl.coef=0.3", "kl.controller={target: 1.5, horizon: 40}")
    run = rollouts(*adapts, "trainer.args.max_steps=4")
    logged = [event["kl/coef"] for event in run.events if "kl/coef" in event]
    assert seen == [logged[0], logged[0], logged[1], logged[1]]  # to the last bit
    assert logged[0] == pytest.approx(0.3)
    assert abs(logged[1] - logged[0]) > 1e-3


def test_every_reward_lies_on_its_token(rollouts) -> None:
    """A dense reward beside a plain one, and a penalty: all in one row's tokens, which sum to its total."""
    rewards = ("++rewards.each={fn: './mine.py:each', weight: 0.5}", PLAIN[0])
    settings = ("truncation=eos_penalty", "truncation.penalty=0.7", "kl.coef=0.3")
    run = rollouts(*settings, rewards=rewards)
    (rows,), ((rollout, _),), (settled,) = run.rows, run.found, run.settled
    assert settled.names == ("each", "first", "truncation")
    expected = []
    for number, row in enumerate(rows):
        ids = row.completion
        dense = [0.0 if token % 3 == 0 else 0.5 * (token % 7 - 3.0) for token in ids]
        assert_rows(rollout.scores[0, number : number + 1], [dense])
        rewards_of_row = [one - 0.3 * kl for one, kl in zip(dense, row.kl, strict=True)]
        rewards_of_row[-1] += ids[0] % 5 / 4 - 0.7 * row.is_truncated
        total = rollout.scores[:, number].sum().item()
        assert total == pytest.approx(settled.totals[number].item(), **ARITHMETIC)
        expected.append(gae_of(rewards_of_row, row.values[:-1], 0.0, GAMMA, LAMBDA))
    assert_rows(run.outputs[0]["advantages"], whitened(expected))


def test_a_closed_gate_adds_nothing(rollouts) -> None:
    """GRPO fills in the group's mean; PPO has no groups, so it is 0."""
    gate = "gate: {by: odd, at_least: 1.0, otherwise: exclude}"
    rewards = ("++rewards.odd={fn: './mine.py:odd'}", f"++rewards.two={{fn: './mine.py:two', {gate}}}")
    run = rollouts("kl.where=none", rewards=rewards)
    (rows,) = run.rows
    totals = [3.0 if row.completion[0] % 2 else 0.0 for row in rows]
    assert set(totals) == {0.0, 3.0}
    assert_rows(run.outputs[0]["advantages"], whitened(raw_advantages(rows, totals)))
    assert run.events[0]["reward"] == pytest.approx(statistics.fmean(totals), **ARITHMETIC)
    assert run.events[0]["rewards/two/mean"] == 2.0


FOUR = ("trainer.args.num_generations=4", "trainer.args.max_steps=4")
"""Rounds of two minibatches of eight rows: two prompts each."""


def prompts_by_minibatch(seen: Watched) -> list[int]:
    return [len(batch["prompt_ids"].unique(dim=0)) for batch in seen.inputs]


def test_a_minibatch_has_whole_prompts_and_reads_each_once(watch) -> None:
    together, apart = watch(*FOUR, name="together"), watch(*FOUR, "trainer.args.shuffle_by=row", name="apart")
    assert prompts_by_minibatch(together) == [2] * 4
    assert max(prompts_by_minibatch(apart)) > 2  # control: TRL's way
    slots = [sum(logged(one.folder, "passes/slots_per_token")) for one in (together, apart)]
    assert slots[0] < slots[1]


def test_rows_of_a_rank_by_hand() -> None:
    """Ranks of five rows, three answers a prompt: rank 1 has rows 5 to 9, of the prompts 1, 2 and 3 (1 | 2 2 2 | 3)."""
    rows = {"row": torch.arange(5, 10), "text": list("fghij"), "all": torch.tensor(7.0), "none": None}
    orders = set()
    for seed in range(40):
        torch.manual_seed(seed)
        found = shuffled_prompts(rows, first=5, num_generations=3)
        order = found["row"].tolist()
        orders.add("".join(map(str, order)))
        assert found["text"] == ["abcdefghij"[row] for row in order]
        assert (found["all"], found["none"]) == (rows["all"], None)
    # rows 6, 7 and 8 are of one prompt, 5 and 9 each of another
    assert orders == {"56789", "59678", "67859", "67895", "95678", "96785"}
