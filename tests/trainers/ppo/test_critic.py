"""The critic in real runs: what trains it and when, and what must not."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from peft import AutoPeftModelForTokenClassification, set_peft_model_state_dict
from safetensors.torch import load_file

from rlhf_cli.runs.run_folder import RunFolder
from tests.support.float64 import all_in_float64, in_float64, no_float32
from tests.support.random_reward_model import save_random_reward_model
from tests.support.tolerances import MODEL, assert_equal
from tests.support.watched_critic import BOTH, SHARED, Watched, is_same, logged, spread_adapter, spread_head

pytestmark = pytest.mark.whole


class TestWarmUp:
    @BOTH
    def test_the_critic_alone_learns_at_first(self, watch, arrangement: list[str]) -> None:
        seen = watch(*arrangement, "critic.warmup_steps=2", "trainer.args.gradient_accumulation_steps=2")
        start, first, second, third = seen.policy
        assert is_same(start, first)
        assert is_same(start, second)
        assert not is_same(start, third)
        assert [is_same(*pair) for pair in zip(seen.values, seen.values[1:], strict=False)] == [False] * 3
        assert logged(seen.folder, "grad_norm")[:2] == [0.0, 0.0]

    def test_without_one_the_policy_learns_at_once(self, watch) -> None:
        seen = watch()
        assert not is_same(seen.policy[0], seen.policy[1])
        assert logged(seen.folder, "reward")
        assert not logged(seen.folder, "frac_reward_zero_std")  # PPO has no groups


class TestOptimizer:
    @BOTH
    def test_it_follows_the_schedule_and_its_gradient_is_clipped_alone(self, watch, arrangement: list[str]) -> None:
        """The norm is logged as it was before clipping."""
        schedule = ("trainer.args.lr_scheduler_type=cosine", "critic.learning_rate=0.04")
        seen = watch(*arrangement, *schedule, "critic.max_grad_norm=0.001", "critic.loss_coef=1000")
        wanted = [0.02 * (1 + math.cos(math.pi * step / 3)) for step in range(3)]
        assert seen.used_learning_rates == pytest.approx(wanted)
        assert logged(seen.folder, "critic/learning_rate") == pytest.approx(wanted)
        assert logged(seen.folder, "learning_rate") == pytest.approx([rate / 40 for rate in wanted])
        assert max(seen.clipped) <= 0.001 * (1 + 1e-4)
        before = [torch.cat([one.flatten() for one in step.values()]).norm().item() for step in seen.gradients]
        assert logged(seen.folder, "critic/grad_norm") == pytest.approx(before, rel=1e-4)
        assert min(before) > 0.01

    @BOTH
    def test_neither_loss_reaches_the_other_s_parameters(self, watch, arrangement: list[str]) -> None:
        """However large the value loss, step 1 of the policy is the same to the last bit, as is its gradient's norm."""
        small = watch(*arrangement, "critic.loss_coef=1e-6", "trainer.args.max_steps=1", name="small")
        large = watch(*arrangement, "critic.loss_coef=1e6", "trainer.args.max_steps=1", name="large")
        assert is_same(small.policy[1], large.policy[1])
        assert not is_same(small.policy[0], small.policy[1])
        assert logged(small.folder, "grad_norm") == logged(large.folder, "grad_norm")
        norms = [logged(run.folder, "critic/grad_norm")[0] for run in (small, large)]
        assert norms[1] == pytest.approx(1e12 * norms[0], rel=1e-3)


# What checkpointing changes of the critic's gradients, and what its values are.


class TestAccumulation:
    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # of TRL's calls
    def test_gradient_checkpointing_changes_no_gradient(self, watch) -> None:
        calls: list[int] = []

        def count(seen: Watched) -> None:
            layer = seen.critic.model.model.layers[0].self_attn
            layer.register_forward_hook(lambda *args: calls.append(1) if torch.is_grad_enabled() else None)

        def begin(seen: Watched) -> None:
            all_in_float64(seen.trainer)
            count(seen)

        words = ["critic.init=./rm", "trainer.args.max_steps=1"]
        save_random_reward_model(Path("rm"))
        with no_float32():
            seen = [
                watch(*words, f"trainer.args.gradient_checkpointing={on}", name=f"checkpointing-{on}", on=begin)
                for on in ("false", "true")
            ]
        assert len(calls) == 1 + 2  # with it, a layer's forward pass is done again in the backward one
        for name, gradient in seen[0].gradients[0].items():
            assert_equal(seen[1].gradients[0][name], gradient)
            assert gradient.any() or "embed" in name, name


class TestValues:
    def test_dropout_is_in_training_and_not_in_what_the_rollout_was_worth(self, watch) -> None:
        for arrangement in ([], SHARED):
            seen = watch(*arrangement, "critic.dropout=0.5", name=f"dropout{len(arrangement)}", on=spread_head)
            batch = seen.inputs[-1]
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            seen.trainer.model.train()
            with torch.no_grad():
                assert not torch.equal(seen.critic.values(batch), seen.critic.values(batch))
            width = batch["completion_ids"].shape[1]
            first, second = (seen.critic.rollout_values(ids, mask, width, 4) for _ in range(2))
            assert torch.equal(first, second)
            assert first.any()
            assert seen.trainer.model.training
            assert seen.critic.model.training


# A critic that is a second adapter on the policy's backbone, and does not affect policy or reference.


class TestSharedBackbone:
    def test_what_generation_and_reference_switch_off_is_switched_on_again(self, watch) -> None:
        """The guard looks at step 1 alone; PEFT freezes the adapter in every round."""
        frozen: list[bool] = []

        def look(seen: Watched) -> None:
            take = seen.critic._take_gradients

            def note() -> None:
                frozen.append(not all(parameter.requires_grad for _, parameter in seen.named()))
                take()

            seen.critic._take_gradients = note

        seen = watch(*SHARED, "critic.learning_rate=0.01", on=look)
        assert True in frozen[2:]  # else there would be nothing to see to
        assert not is_same(seen.values[-2], seen.values[-1])

    @no_float32()
    def test_its_gradient_is_that_of_a_plain_model_with_the_same_adapter(self, watch, workplace: Path) -> None:
        """In float64: in float32 both sides are 1e-5 of the norm from the exact gradient, and so from each other."""

        def save_it(seen: Watched) -> None:
            all_in_float64(seen.trainer)
            spread_head(seen)
            spread_adapter(seen)
            seen.before_last_step = lambda: seen.critic.save(workplace / "before")

        seen = watch(*SHARED, "trainer.args.max_steps=2", "critic.loss_coef=0.7", "critic.value_clip=null", on=save_it)
        batch, gradients = seen.inputs[-1], seen.gradients[-1]
        plain = AutoPeftModelForTokenClassification.from_pretrained(
            workplace / "before", num_labels=1, is_trainable=True
        )
        in_float64(plain.eval())
        set_peft_model_state_dict(plain, load_file(workplace / "before" / "adapter_model.safetensors"))
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        width = batch["completion_ids"].shape[1]
        values = plain(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1, 0]
        errors = 0.5 * (values - batch["returns"]).square() * batch["completion_mask"]
        # dapo: over the tokens of the round; this is one of its two windows
        (0.7 * errors.sum() / (batch["num_items_in_batch"] / 2)).backward()
        by_name = {
            name.replace(".default.", ".").removeprefix("base_model.model."): parameter.grad
            for name, parameter in plain.named_parameters()
            if parameter.grad is not None
        }
        for name, gradient in gradients.items():
            plainly = name.replace(".critic.", ".").removeprefix("base_model.model.")
            plainly = plainly.replace("critic_head.", "score.modules_to_save.")
            assert_equal(gradient, by_name.pop(plainly))
        assert not by_name
        assert max(gradient.abs().max() for gradient in gradients.values()) > 0.01

    def test_generation_and_reference_know_nothing_of_it(self, watch) -> None:
        """While the policy is held, a critic with another adapter reads the same completions."""
        settings = [*SHARED, "critic.warmup_steps=9", "kl.coef=0.1"]
        quiet = watch(*settings, name="quiet")
        loud = watch(*settings, name="loud", on=lambda seen: (spread_head(seen), spread_adapter(seen)))
        for step in (1, 3):
            assert completions(quiet.folder, step) == completions(loud.folder, step)
        assert logged(loud.folder, "kl/k1_policy_ref") == pytest.approx([0.0, 0.0], **MODEL)
        assert logged(quiet.folder, "entropy") == logged(loud.folder, "entropy")
        assert abs(logged(loud.folder, "ppo/values_mean")[0]) > 0.1  # it is there


def completions(folder: RunFolder, step: int) -> list[str]:
    table = pyarrow.parquet.read_table(folder.path / "completions" / f"completions_{step:05d}.parquet")
    return table.column("completion").to_pylist()
