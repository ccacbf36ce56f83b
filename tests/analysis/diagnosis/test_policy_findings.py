"""What is found of a policy and of a critic, each with a log beside it that must not trigger."""

from __future__ import annotations

import pytest

from tests.support.planted_logs import GRPO, PPO, found, noisy, reward, seen

FLAT = reward("a", mean=noisy(0.5, 0.5, 0.02))
RISING = reward("a", mean=noisy(0.2, 0.8, 0.02))


def test_kl_far_and_ever_faster() -> None:
    (far,) = found({"kl/k1_policy_ref": noisy(0.0, 1.3, 0.05), **RISING}, PPO, kind="kl")
    assert "nats a token" in far.what
    assert far.changes[0].words == "kl.coef=0.15"  # three times 0.05
    running = [0.6 * (k / 39) ** 4 for k in range(40)]
    (faster,) = found({"kl/k1_policy_ref": running, **RISING}, PPO, kind="kl")
    assert "faster and faster" in faster.what


@pytest.mark.parametrize("end", [0.3, 0.6])
def test_negative_control_kl(end: float) -> None:
    """A divergence that grows as the square root of the steps grows ever more slowly."""
    root = [end * (k / 39) ** 0.5 for k in range(40)]
    assert found({"kl/k1_policy_ref": root, **RISING}, PPO, kind="kl") == []
    assert found({"kl/k1_policy_ref": noisy(0.0, end, 0.01), **RISING}, PPO, kind="kl") == []
    # At the end it gains more than it did, and less than twice what there was.
    late = [0.3 + 0.3 * (k / 39) ** 6 for k in range(40)]
    assert found({"kl/k1_policy_ref": late, **RISING}, PPO, kind="kl") == []


def test_kl_is_not_logged() -> None:
    assert "is not logged" in seen(RISING, kind="kl").unseen[0].why


def test_truncation() -> None:
    name = "rewards/truncation/fraction"
    (cut,) = found({name: noisy(0.6, 0.6, 0.03), **RISING}, kind="truncation")
    assert (cut.severity, cut.changes[0].words) == ("warning", "trainer.args.max_completion_length=64")
    (all_cut,) = found({name: [0.97] * 40, **RISING}, kind="truncation")
    assert all_cut.severity == "serious"
    (drift,) = found({name: noisy(0.0, 0.3, 0.03), **RISING}, kind="truncation")
    assert "more and more" in drift.what


def test_negative_control_truncation() -> None:
    name = "rewards/truncation/fraction"
    assert found({name: noisy(0.3, 0.3, 0.03), **RISING}, kind="truncation") == []
    assert found({name: noisy(0.9, 0.05, 0.03), **RISING}, kind="truncation") == []  # it learns to end
    assert found({name: noisy(0.02, 0.06, 0.01), **RISING}, kind="truncation") == []  # real, and little


def test_length_drifts() -> None:
    longer = {"completions/mean_length": noisy(20, 45, 2), **FLAT}
    (finding,) = found(longer, kind="length")
    assert "longer" in finding.what
    (shorter,) = found({"completions/mean_length": noisy(20, 5, 2), **FLAT}, kind="length")
    assert "shorter" in shorter.what


def test_negative_control_length() -> None:
    assert found({"completions/mean_length": noisy(20, 45, 2), **RISING}, kind="length") == []  # something rose with it
    assert found({"completions/mean_length": noisy(20, 24, 2), **FLAT}, kind="length") == []
    assert found({"completions/mean_length": noisy(20, 20, 8), **FLAT}, kind="length") == []


def test_entropy_collapses() -> None:
    fallen = {"entropy": noisy(1.0, 0.0, 0.0), "reward_std": [0.5] * 40}
    (finding,) = found({**fallen, "reward": noisy(0.5, 0.5, 0.02), **FLAT}, kind="entropy")
    assert finding.severity == "serious"
    assert finding.changes[0].words == "trainer.args.temperature=1.2"


def test_negative_control_entropy() -> None:
    total = {"reward": noisy(0.5, 0.5, 0.02), "reward_std": [0.5] * 40}
    assert (
        found({"entropy": noisy(1.0, 0.0, 0.0), **total, "reward": noisy(0.2, 0.8, 0.02), **RISING}, kind="entropy")
        == []
    )
    assert found({"entropy": noisy(1.0, 0.3, 0.0), **total, **FLAT}, kind="entropy") == []


def test_clipping() -> None:
    (much,) = found({"ppo/clip_fraction": noisy(0.4, 0.4, 0.02), **RISING}, PPO, kind="clipping")
    assert {change.words for change in much.changes} == {
        "trainer.args.learning_rate=0.00033",
        "trainer.args.num_iterations=1",
    }
    (never,) = found({"ppo/clip_fraction": [0.0] * 40, **RISING}, PPO, kind="clipping")
    assert never.severity == "note"


def test_negative_control_clipping() -> None:
    assert found({"ppo/clip_fraction": noisy(0.2, 0.2, 0.02), **RISING}, PPO, kind="clipping") == []
    assert found({"ppo/clip_fraction": [*[0.0] * 39, 0.01], **RISING}, PPO, kind="clipping") == []
    assert found({"clip_ratio/region_mean": [0.0] * 40, **RISING}, GRPO, kind="clipping") == []  # used once: never
    assert found({"ppo/clip_fraction": [0.0] * 40, **RISING}, PPO, max_steps=100, kind="clipping") == []


def test_explained_variance() -> None:
    (finding,) = found({"ppo/explained_variance": noisy(-0.3, -0.3, 0.05), **RISING}, PPO, kind="explained_variance")
    assert finding.changes[1].words == "critic.warmup_steps=32"


def test_negative_control_explained_variance() -> None:
    name = "ppo/explained_variance"
    assert found({name: noisy(-1.0, 0.6, 0.05), **RISING}, PPO, kind="explained_variance") == []
    assert found({name: noisy(0.0, 0.0, 0.1), **RISING}, PPO, kind="explained_variance") == []
    assert found({name: noisy(-0.6, -0.1, 0.05), **RISING}, PPO, kind="explained_variance") == []  # it learns, slowly
    assert found({name: noisy(-0.3, -0.3, 0.05), **RISING}, PPO, max_steps=100, kind="explained_variance") == []
    assert found({name: noisy(-0.3, -0.3, 0.05), **RISING}, GRPO, kind="explained_variance") == []


def test_value_loss_grows() -> None:
    grown = {"ppo/value_loss": noisy(0.1, 0.5, 0.02), "ppo/returns_std": noisy(1.0, 1.0, 0.02)}
    (finding,) = found({**grown, **RISING}, PPO, kind="value_loss")
    assert "times what it was" in finding.what


def test_value_loss_grows_from_its_lowest_quarter_on() -> None:
    """It falls from 1.2 to 0.1 in a quarter of the run and grows to 0.4 in the rest: over the whole run it falls."""
    valley = [*noisy(1.2, 0.1, 0.01, n=10), *noisy(0.1, 0.4, 0.01, n=30)]
    curves = {"ppo/value_loss": valley, "ppo/returns_std": noisy(1.0, 1.0, 0.02), **RISING}
    (finding,) = found(curves, PPO, kind="value_loss")
    assert "2.4 times what it was" in finding.what  # quarters: 0.65, 0.147, 0.25, 0.353


def test_negative_control_value_loss() -> None:
    """A loss that grows by as much as the variance of the returns, from 1 to 4, is no fault of the critic's."""
    spread = {"ppo/returns_std": noisy(1.0, 2.2, 0.02)}
    with_returns = {"ppo/value_loss": [0.1 * float(std) ** 2 for std in spread["ppo/returns_std"]], **spread}
    assert found({**with_returns, **RISING}, PPO, kind="value_loss") == []
    assert found({"ppo/value_loss": noisy(0.5, 0.1, 0.02), **RISING}, PPO, kind="value_loss") == []
    assert found({"ppo/value_loss": noisy(0.3, 0.3, 0.15), **RISING}, PPO, kind="value_loss") == []
