"""A critic that is a second adapter on the policy's backbone, and does not affect policy or reference."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from peft import AutoPeftModelForTokenClassification

from rlhf_cli.runs.run_folder import RunFolder
from tests.support.tolerances import MODEL, MODEL_OF_TENSORS
from tests.support.watched_critic import SHARED, Watched, is_same, logged, spread_adapter, spread_head


class TestSharedBackbone:
    def test_every_tensor_of_it_gets_a_gradient(self, watch) -> None:
        """Head and B begin at 0, so that A has to wait for the third step until its gradient is not 0 any more."""
        seen = watch(*SHARED, "critic.learning_rate=0.01")
        assert [len(step) for step in seen.gradients] == [2 * 7 + 2] * 3  # A and B of seven layers, the head's two
        assert all(gradient.any() for gradient in seen.gradients[2].values())
        assert all(gradient.any() for name, gradient in seen.gradients[0].items() if name == "critic_head.bias")

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

    def test_the_body_stays_as_it_was_and_its_own_adapter_learns(self, watch) -> None:
        seen = watch(*SHARED)
        first, last = seen.policy[0], seen.policy[-1]
        changed = {name for name in first if not torch.equal(first[name], last[name])}
        assert changed
        assert all(".default." in name for name in changed)
        assert not any(".critic." in name or "critic_head" in name for name in first)

    def test_its_gradient_is_that_of_a_plain_model_with_the_same_adapter(self, watch, workplace: Path) -> None:
        def save_it(seen: Watched) -> None:
            spread_head(seen)
            spread_adapter(seen)
            seen.before_last_step = lambda: seen.critic.save(workplace / "before")

        seen = watch(*SHARED, "trainer.args.max_steps=2", "critic.loss_coef=0.7", "critic.value_clip=null", on=save_it)
        batch, gradients = seen.inputs[-1], seen.gradients[-1]
        plain = AutoPeftModelForTokenClassification.from_pretrained(
            workplace / "before", num_labels=1, is_trainable=True
        ).eval()
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
            torch.testing.assert_close(gradient, by_name.pop(plainly), **MODEL_OF_TENSORS)
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
