"""The advantages, returns and values of a rollout against arithmetic of our own, row by row and without padding."""

from __future__ import annotations

import json
import statistics

import pytest
import torch

from rlhf_cli.trainers.ppo.rollout import without_last
from tests.support.ppo_by_hand import GAMMA, LAMBDA, LIMIT, assert_rows, gae_of, raw_advantages, total_of, whitened
from tests.support.tolerances import MODEL

ADD = ("truncation=bootstrap", "truncation.mode=add")
"""The rewards here judge whole answers, so `replace` would be taken."""


class TestRollout:
    """The advantages, returns and values of a rollout, recomputed row by row."""

    @pytest.mark.parametrize("where", ["reward", "loss", "none"])
    def test_wherever_the_kl_penalty_is(self, rollouts, where: str) -> None:
        coef = () if where == "none" else ("kl.coef=0.3",)
        run = rollouts(f"kl.where={where}", *coef)
        (rows,), (output,) = run.rows, run.outputs
        assert {len(row.completion) for row in rows} >= {1, 2, LIMIT}  # ragged, and one is cut
        assert len({len(row.prompt) for row in rows}) > 1
        assert where == "none" or sum(abs(kl) for row in rows for kl in row.kl) > 1
        totals = [total_of(row.completion) for row in rows]
        raw = raw_advantages(rows, totals, coef=0.3 if where == "reward" else 0.0)
        assert_rows(output["advantages"], whitened(raw))
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

    @pytest.mark.parametrize(
        ("policy", "total"),
        [
            (("truncation=bootstrap", "truncation.mode=add"), lambda row: total_of(row.completion)),
            (
                ("truncation=bootstrap", "truncation.mode=replace"),
                lambda row: 0.0 if row.is_truncated else total_of(row.completion),
            ),
            (
                ("truncation=eos_penalty", "truncation.penalty=0.7"),
                lambda row: total_of(row.completion) - 0.7 * row.is_truncated,
            ),
            (
                ("truncation=eos_penalty", "truncation.penalty=0.7", "truncation.mode=replace"),
                lambda row: -0.7 if row.is_truncated else total_of(row.completion),
            ),
            (
                ("truncation=soft_overlong", "truncation.penalty=0.5", "truncation.cache=3"),
                # A ramp over the last three of six tokens.
                lambda row: total_of(row.completion) - 0.5 * max(0, len(row.completion) - 3) / 3,
            ),
        ],
        ids=["bootstrap", "bootstrap instead", "subtract", "replace", "soft_overlong"],
    )
    def test_whatever_being_cut_off_means(self, rollouts, policy: tuple[str, ...], total) -> None:
        run = rollouts(*policy, "kl.coef=0.3")
        (rows,), (output,) = run.rows, run.outputs
        assert {row.is_truncated for row in rows} == {True, False}
        is_bootstrapped = policy[0] == "truncation=bootstrap"
        raw = raw_advantages(rows, [total(row) for row in rows], coef=0.3, is_bootstrapped=is_bootstrapped)
        assert_rows(output["advantages"], whitened(raw))
        none = raw_advantages(rows, [total_of(row.completion) for row in rows], coef=0.3)
        with pytest.raises(AssertionError):  # control: it is not what `none` gives
            assert_rows(output["advantages"], whitened(none))

    def test_bootstrap_differs_from_none_in_truncated_rows_alone(self, rollouts) -> None:
        unscaled = "trainer.args.whiten_advantages=false"
        none = rollouts(unscaled, "truncation=none", name="none")
        bootstrap = rollouts(unscaled, *ADD, name="bootstrap")
        (rows,) = none.rows
        assert [row.completion for row in rows] == [row.completion for row in bootstrap.rows[0]]
        # Both runs compute the same values from the same shapes: rows that are not bootstrapped are bitwise equal.
        by = (none.outputs[0]["advantages"] - bootstrap.outputs[0]["advantages"]).abs().amax(dim=1)
        assert (by != 0).tolist() == [row.is_truncated for row in rows]
        added = [GAMMA * row.values[-1] for row in rows if row.is_truncated]
        assert by[by != 0].tolist() == pytest.approx([abs(value) for value in added], **MODEL)
        assert max(abs(value) for value in added) > 0.01
        value = bootstrap.events[0]["rewards/truncation/bootstrap_value"]
        assert value == pytest.approx(statistics.fmean(added), **MODEL)

    def test_an_excluded_row_has_no_tokens_and_no_place_in_whitening(self, rollouts) -> None:
        none = rollouts("truncation=none", "kl.coef=0.3", name="none")
        exclude = rollouts("truncation=exclude", "kl.coef=0.3", name="exclude")
        (whole,), (rows,), (output,) = none.rows, exclude.rows, exclude.outputs
        kept = [row for row in whole if not row.is_truncated]
        assert [row.completion for row in rows] == [[] if row.is_truncated else row.completion for row in whole]
        raw = iter(whitened(raw_advantages(kept, [total_of(row.completion) for row in kept], coef=0.3)))
        expected = [[] if row.is_truncated else next(raw) for row in whole]
        assert_rows(output["advantages"], expected)
        assert output["num_items_in_batch"] == sum(len(row.completion) for row in kept)

    def test_a_short_row_that_the_dataset_calls_cut_goes_on_with_its_own_last_value(self, rollouts, workplace) -> None:
        lines = [json.dumps({"prompt": f"{number}+1=", "is_truncated": True}) for number in range(5, 21)]
        (workplace / "rows.jsonl").write_text("\n".join(lines))
        data = ("data=file", "data.path=./rows.jsonl", "~data.args.num_rows")
        run = rollouts(*ADD, "kl.where=none", *data)
        (rows,) = run.rows
        assert len({len(row.completion) for row in rows}) > 2
        expected = []
        for row in rows:
            rewards = [0.0] * (len(row.completion) - 1) + [total_of(row.completion)]
            expected.append(gae_of(rewards, row.values[:-1], row.values[-1], GAMMA, LAMBDA))
        assert_rows(run.outputs[0]["advantages"], whitened(expected))

    def test_a_later_round_is_of_the_models_as_they_are_then(self, rollouts) -> None:
        run = rollouts("trainer.args.max_steps=4", *ADD, "critic.learning_rate=0.1")
        first, second = run.rows
        totals = [total_of(row.completion) for row in second]
        raw = raw_advantages(second, totals, coef=0.05, is_bootstrapped=True)
        assert_rows(run.outputs[1]["advantages"], whitened(raw))
        # Control: the critic has changed, so values of the first round would differ.
        assert abs(statistics.fmean(r.values[0] for r in first) - statistics.fmean(r.values[0] for r in second)) > 1e-2

    def test_what_is_maximised_has_no_score_that_gave_way_to_the_value(self, rollouts) -> None:
        """Under bootstrap's `replace` a row that was cut earned nothing but its KL; `reward` shows what it scored."""
        run = rollouts("truncation=bootstrap", "truncation.mode=replace", "kl.coef=0.3")
        ((rows,), event) = run.rows, run.events[0]
        given = [0.0 if row.is_truncated else total_of(row.completion) for row in rows]
        penalty = statistics.fmean(-0.3 * sum(row.kl) for row in rows)
        assert event["ppo/rlhf_reward"] == pytest.approx(statistics.fmean(given) + penalty, **MODEL)
        assert event["reward"] == pytest.approx(statistics.fmean(total_of(row.completion) for row in rows), **MODEL)
        assert abs(event["reward"] - statistics.fmean(given)) > 0.01
        added = [GAMMA * row.values[-1] for row in rows if row.is_truncated]
        assert event["rewards/truncation/bootstrap_value"] == pytest.approx(statistics.fmean(added), **MODEL)


class TestShares:
    """GAE is linear: with one component's rewards alone it gives that component's part of every advantage."""

    def test_equal_brute_force_and_add_up(self, rollouts) -> None:
        run = rollouts("truncation=eos_penalty", "kl.coef=0.3")
        (rows,), event = run.rows, run.events[0]
        parts = {
            "first": lambda row: ([0.0] * (len(row.kl) - 1) + [row.completion[0] % 5 / 4], None),
            "length": lambda row: ([0.0] * (len(row.kl) - 1) + [0.5 * len(row.completion) / 3], None),
            "truncation": lambda row: ([0.0] * (len(row.kl) - 1) + [-1.0 * row.is_truncated], None),
            "kl": lambda row: ([-0.3 * kl for kl in row.kl], None),
            "value": lambda row: ([0.0] * len(row.kl), row.values[:-1]),
        }
        alone = {}
        for name, part in parts.items():
            alone[name] = []
            for row in rows:
                rewards, values = part(row)
                alone[name] += gae_of(rewards, values or [0.0] * len(rewards), 0.0, GAMMA, LAMBDA)
        raw = [sum(values) for values in zip(*alone.values(), strict=True)]
        used = whitened([raw])[0]
        energy = sum(a * b for a, b in zip(raw, used, strict=True))
        expected = {
            f"rewards/{name}/advantage_share": sum(p * a for p, a in zip(values, used, strict=True)) / energy
            for name, values in alone.items()
        }
        found = {name: value for name, value in event.items() if name.endswith("/advantage_share")}
        assert found == pytest.approx(expected, abs=1e-4)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)


class TestEvaluation:
    EVERY_STEP = ("data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")

    def test_is_of_the_models_as_they_are_and_moves_no_coefficient(self, rollouts) -> None:
        run = rollouts(*self.EVERY_STEP, "kl.controller={target: 1.5, horizon: 400}", "kl.coef=0.3")
        training, evaluations = run.rows[0], run.rows[1:]
        assert len(training) == 16
        assert {len(rows) for rows in evaluations} == {8}
        divergence = statistics.fmean(sum(row.kl) for row in training)
        coef = 0.3 * (1 + min(max(divergence / 1.5 - 1, -0.2), 0.2) * 16 / 400)
        assert run.trainer.kl.coef == pytest.approx(coef, **MODEL)
        for rows, output in zip(evaluations, run.outputs[1:], strict=True):
            totals = [total_of(row.completion) for row in rows]
            assert_rows(output["advantages"], whitened(raw_advantages(rows, totals, coef=coef)))

    def test_of_more_rows_than_a_round(self, rollouts) -> None:
        small = ("trainer.args.per_device_train_batch_size=4", "trainer.args.steps_per_generation=1")
        run = rollouts(*self.EVERY_STEP, *small)
        assert {len(rows) for rows in run.rows} == {4, 8}


def test_a_score_that_gives_way_is_the_last_token_s_alone() -> None:
    """By hand: two components, and three rows of 3, 1 and 4 tokens; the second row keeps its score."""
    scores = torch.arange(1.0, 25.0).view(2, 3, 4)
    kept = [[[1, 2, 0, 4], [5, 6, 7, 8], [9, 10, 11, 0]], [[13, 14, 0, 16], [17, 18, 19, 20], [21, 22, 23, 0]]]
    assert without_last(scores, torch.tensor([3, 1, 4]), torch.tensor([True, False, True])).tolist() == kept
