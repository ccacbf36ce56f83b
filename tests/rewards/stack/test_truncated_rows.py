"""Which completions count as cut off, and what each policy makes of them: by hand, and in real GRPO and RLOO runs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from rlhf_cli.rewards.stack.reward_matrix import add_truncation, find_truncated, truncation_metrics
from rlhf_cli.truncation import POLICIES, Bootstrap, Endings, EosPenalty, Exclude, SoftOverlong, TruncationPolicy
from tests.rewards.stack.given_completions import EOS, LIMIT, OTHER_EOS, PENALTY, RAMP, REPLACE, grpo
from tests.support.settled_columns import NAN, Case, Rule, column
from tests.support.tolerances import ARITHMETIC, assert_close

CUT = Endings(torch.tensor([False, True, False, True]), torch.tensor([2, 4, 3, 4]), 4)


def rows(*scores: float, weight: float = 2.0):
    return Case([column(*scores)], [Rule("one")], [weight]).settle()


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_affects_truncated_rows_in_one_way(name: str) -> None:
    """It adds to totals, excludes rows, asks the critic, or does nothing; rows that ended are unchanged."""
    policy, cut = POLICIES[name](), CUT.is_truncated.tolist()
    changes = policy.added(torch.tensor([1.0, 2.0, 3.0, 6.0]), CUT) != 0
    left_out, goes_on = policy.leaves_out(CUT), policy.goes_on(CUT)
    effects = [changes, torch.zeros(4) if left_out is None else left_out, goes_on]
    flags = [policy.changes_total, policy.excludes, policy.needs_critic]
    assert [effect.bool().tolist() == cut for effect in effects] == flags
    assert [not effect.any() for effect in effects] == [not flag for flag in flags]
    assert sum(flags) == (name != "none")


def test_a_policy_shows_its_mode_and_its_penalty() -> None:
    shown = [policy.in_words for policy in (SoftOverlong(3.0), EosPenalty(0.5, "replace"), Bootstrap(), Exclude())]
    assert shown == ["soft_overlong 3", "eos_penalty, replace 0.5", "bootstrap, replace", "exclude"]


@pytest.mark.parametrize(
    ("truncation", "added", "totals"),
    [
        (EosPenalty(0.5), [0.0, -0.5, 0.0, -0.5], [2.0, 3.5, 6.0, 11.5]),
        # What was earned, 4 and 12, gives way to -1/2.
        (EosPenalty(0.5, "replace"), [0.0, -4.5, 0.0, -12.5], [2.0, -0.5, 6.0, -0.5]),
        # From 2 tokens on a half of the penalty a token, whether or not the row was cut.
        (SoftOverlong(3.0, cache=2), [0.0, -3.0, -1.5, -3.0], [2.0, 1.0, 4.5, 9.0]),
    ],
)
def test_what_is_added(truncation: TruncationPolicy, added: list[float], totals: list[float]) -> None:
    settled = add_truncation(rows(1, 2, 3, 6), truncation, CUT)
    assert settled.names == ("one", "truncation")
    assert settled.raw[:, 1].tolist() == added
    assert settled.totals.tolist() == totals
    assert settled.contributions.sum(dim=1).tolist() == totals
    # On tokens, an added 0 is not a reward.
    assert [value == value for value in settled.unfilled[:, 1].tolist()] == [value != 0.0 for value in added]


def equation_13(length: int, longest: int, cache: int) -> float:
    """DAPO's soft punishment (arXiv 2503.14476) by its three branches."""
    if length <= longest - cache:
        return 0.0
    return ((longest - cache) - length) / cache if length <= longest else -1.0


@pytest.mark.parametrize(
    ("longest", "cache", "expected"),
    [(12, 1, 1), (12, 5, 5), (12, 12, 12), (10, None, 2), (19, None, 3), (3, None, 1)],  # a fifth in whole tokens
)
def test_a_ramp_over_the_last_tokens(longest: int, cache: int | None, expected: int) -> None:
    lengths = torch.arange(0, 2 * longest)

    def found(limit: int) -> torch.Tensor:
        endings = Endings(torch.zeros(len(lengths), dtype=torch.bool), lengths, limit)
        return SoftOverlong(1.0, cache=cache).added(lengths.float(), endings)

    by_hand = [equation_13(length, longest, expected) for length in lengths.tolist()]
    assert_close(found(longest), torch.tensor(by_hand))
    assert not torch.equal(found(longest + 1), found(longest))  # control: the numbers tell where it begins


def test_logged() -> None:
    """The two that were cut had 4 and 12, and have 3 and 11."""
    before = rows(1, 2, 3, 6)
    names = [f"rewards/truncation/{name}" for name in ("fraction", "score_before", "score_after")]
    found = truncation_metrics(add_truncation(before, EosPenalty(), CUT), CUT)
    assert [found[name] for name in names] == [0.5, 8.0, 7.0]
    assert [truncation_metrics(before, CUT)[name] for name in names] == [0.5, 8.0, 8.0]
    none_cut = Endings(torch.zeros(4, dtype=torch.bool), CUT.lengths, 4)
    assert [truncation_metrics(before, none_cut)[name] for name in names] == pytest.approx([0.0, NAN, NAN], nan_ok=True)
    unscored = truncation_metrics(rows(1, NAN, 3, 6), CUT)
    assert [unscored[name] for name in names] == [0.5, 12.0, 12.0]


def rloo(totals: list[float | None]) -> list[float]:
    present = [total for total in totals if total is not None]
    return [0.0 if t is None else t - (sum(present) - t) / (len(present) - 1) for t in totals]


ADVANTAGES = {"grpo": (grpo, "trainer.args.scale_rewards=none"), "rloo": (rloo, "trainer.args.beta=0.0")}


@pytest.mark.whole
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


def test_an_excluded_row_has_no_tokens_in_the_loss(group) -> None:
    output = group("truncation=exclude").outputs[0]
    assert output["completion_mask"].sum(dim=1).tolist() == [3, 0, 4, 0]
    assert output["num_items_in_batch"] == 7
    assert group("truncation=none", name="none").outputs[0]["num_items_in_batch"] == 15


@pytest.mark.parametrize(
    ("ids", "limit", "expected"),
    [
        ([5, 6, 7, 8], LIMIT, True),
        ([5, 6, 7, EOS], LIMIT, False),
        ([5, 6, 7, OTHER_EOS], LIMIT, False),
        ([5, 6, 7], LIMIT, False),  # a stop string, or an environment that was done
        ([5, EOS, 7, 8], LIMIT, True),
        ([], LIMIT, False),
        # Longer than the limit, as a tool's answer may make it.
        *(([5, 6, 7, 8, 9], LIMIT, True), ([5, 6, 7, 8, EOS], LIMIT, False)),
        # Without a limit only an ending ends.
        *(([5], None, True), ([5, EOS], None, False), ([], None, True)),
    ],
)
def test_which_rows_count_as_cut_off(ids: list[int], limit: int | None, expected: bool) -> None:
    assert find_truncated([[5, EOS], ids], {EOS, OTHER_EOS}, limit) == [False, expected]


def test_a_column_of_the_dataset_says_that_a_row_was_cut_off(group, workplace: Path) -> None:
    lines = [json.dumps({"prompt": "1+1=", "is_truncated": True})] * 8
    (workplace / "rows.jsonl").write_text("\n".join(lines))
    run = group(*PENALTY, "data=file", "data.path=./rows.jsonl", "~data.args.num_rows")
    assert run.event["rewards/truncation/fraction"] == 1.0
    assert run.event["rewards/truncation/score_after"] == pytest.approx(2.0, **ARITHMETIC)
