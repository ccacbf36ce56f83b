"""What PPO leans on in TRL, transformers and PEFT: a critic beside GRPOTrainer, or on the policy's own adapters."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer

from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.ppo.critic import CriticSettings, TrainedCritic
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.signatures import parameters


class TestCritic:
    """What PPO leans on: a critic beside TRL's GRPOTrainer, or on the policy's own adapters."""

    @pytest.mark.parametrize(
        ("owner", "name", "expected"),
        [
            (Trainer, "create_optimizer", ["self", "model"]),
            (Trainer, "create_scheduler", ["self", "num_training_steps", "optimizer"]),
            (Trainer, "_save", ["self", "output_dir", "state_dict"]),
            (trl.GRPOTrainer, "training_step", ["self", "model", "inputs", "num_items_in_batch"]),
            (trl.GRPOTrainer, "_prepare_inputs", ["self", "generation_batch"]),
            (trl.GRPOTrainer, "_compute_loss", ["self", "model", "inputs"]),
            (trl.GRPOTrainer, "_generate_and_score_completions", ["self", "inputs"]),
        ],
    )
    def test_signatures(self, owner, name: str, expected: list[str]) -> None:
        assert parameters(getattr(owner, name)) == expected
        assert parameters(getattr(PpoMixin, name)) == expected

    def test_log_probabilities_are_asked_for_by_one_method(self) -> None:
        ours = parameters(PassMixin._get_per_token_logps_and_entropies)
        # PpoMixin passes its arguments on.
        assert parameters(PpoMixin._get_per_token_logps_and_entropies) == ["self", "model", "args", "named"]
        theirs = parameters(trl.GRPOTrainer._get_per_token_logps_and_entropies)
        assert ours == [*theirs[:7], "others"]
        source = inspect.getsource(trl.GRPOTrainer._compute_loss)
        assert "per_token_logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(" in source

    def test_what_a_rollout_holds(self) -> None:
        source = inspect.getsource(trl.GRPOTrainer._generate_and_score_completions)
        held = source[source.rindex("        output = {") :]
        for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"):
            assert f'"{key}": {key},' in held, key
        assert '"num_items_in_batch": num_items_in_batch,' in held
        for key in ("old_per_token_logps", "ref_per_token_logps", "tool_mask"):
            assert f'output["{key}"] = {key}' in held, key
        assert "if self.beta != 0.0:" in source[: source.rindex("        output = {")]

    def test_the_loss_takes_an_advantage_a_token_and_a_kl_only_with_beta(self) -> None:
        source = inspect.getsource(trl.GRPOTrainer._compute_loss)
        assert "if advantages.dim() == 1:" in source
        assert source.count("self.beta") == source.count("if self.beta != 0.0:") + source.count("self.beta * per")
        # the value loss is normalised by the same numbers
        assert 'inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes' in source
        assert "self.current_gradient_accumulation_steps / self.args.steps_per_generation" in source
        assert "per_token_loss.size(0) * self.max_completion_length" in source

    def test_groups_of_one_are_refused_and_can_be_set_afterwards(self, tmp_path) -> None:
        words = {"output_dir": str(tmp_path), "per_device_train_batch_size": 4, "use_cpu": True, "bf16": False}
        with pytest.raises(ValueError, match="at least 2 generations"):
            trl.GRPOConfig(**words, num_generations=1)
        args = trl.GRPOConfig(**words, num_generations=4, num_generations_eval=1)
        args.num_generations = 1
        source = inspect.getsource(trl.GRPOTrainer.__init__)
        assert "self.num_generations = args.num_generations" in source
        assert "self.num_generations_eval = args.num_generations_eval or self.num_generations" in source
        assert inspect.signature(trl.GRPOConfig).parameters["per_device_train_batch_size"].default == 8

    @pytest.mark.parametrize(("schedule", "rates"), [("reduce_lr_on_plateau", [0.4, 0.2]), ("linear", [0.2, 0.0])])
    def test_the_critic_s_rate_follows_a_schedule_that_steps_by_evaluations(
        self, tmp_path, schedule: str, rates: list[float]
    ) -> None:
        words = {"output_dir": str(tmp_path), "per_device_train_batch_size": 8, "use_cpu": True, "bf16": False}
        words |= {"learning_rate": 0.1, "gradient_checkpointing": False, "eval_strategy": "steps", "eval_steps": 1}
        args = trl.GRPOConfig(**words, lr_scheduler_type=schedule)
        policy = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
        accelerator = SimpleNamespace(distributed_type=None, prepare=lambda *given: given, device="cpu")
        trainer: Any = SimpleNamespace(args=args, optimizer=policy, accelerator=accelerator)
        trainer.get_decay_parameter_names = lambda model: ["weight"]
        critic: Any = object.__new__(TrainedCritic)
        critic.model, critic.settings = torch.nn.Linear(1, 1), CriticSettings(0.4, 0, None, 1.0, 1.0)
        critic.prepare(trainer, num_training_steps=2)
        found = []
        for factor in (1.0, 0.5):  # transformers halves the policy's rate after an evaluation
            policy.param_groups[0]["lr"] = 0.1 * factor
            critic.step()
            found.append(critic.learning_rate)
        assert found == pytest.approx(rates)

    def test_the_policy_s_optimizer_takes_what_requires_a_gradient_and_passes_over_what_has_none(self) -> None:
        assert inspect.getsource(Trainer.create_optimizer).count("p.requires_grad") == 2
        one = torch.nn.Parameter(torch.ones(1))
        torch.optim.AdamW([one], weight_decay=0.1).step()
        assert one.item() == 1

    def test_ddp_settles_in_the_forward_pass_whether_gradients_are_exchanged(self) -> None:
        source = inspect.getsource(DistributedDataParallel._pre_forward)
        source += inspect.getsource(DistributedDataParallel._post_forward)
        assert "if torch.is_grad_enabled() and self.require_backward_grad_sync:" in source
        assert "self.require_backward_grad_sync = False" in inspect.getsource(DistributedDataParallel.no_sync)
        assert "find_unused = True" in inspect.getsource(Trainer._build_accelerator_args)

    def test_peft_s_layers_read_which_adapter_is_active_from_two_attributes(self) -> None:
        for name, attribute in (("active_adapter", "_active_adapter"), ("disable_adapters", "_disable_adapters")):
            assert isinstance(getattr(BaseTunerLayer, name), property)
            assert f"self.{attribute}" in inspect.getsource(getattr(BaseTunerLayer, name).fget)
        assert "self.disable_adapters" in inspect.getsource(Linear.forward)
        assert "self.active_adapters" in inspect.getsource(Linear.forward)

    def test_peft_saves_the_adapters_it_is_asked_for_and_leaves_out_those_it_knows(self) -> None:
        assert "selected_adapters" in parameters(PeftModel.save_pretrained)
        assert "self.model.save_pretrained(output_dir, state_dict=" in inspect.getsource(Trainer._save)
        source = inspect.getsource(get_peft_model_state_dict)
        assert "unwanted_adapter_names = [name for name in model.peft_config if name != adapter_name]" in source
