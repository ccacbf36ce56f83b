"""Every seam of TRL we lean on, by name. When TRL is upgraded and one has moved, it fails here."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
import trl
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, Trainer
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.utils import RepeatSampler

from rlhf_cli.trainers.exact_resume import ExactResume
from rlhf_cli.trainers.in_run_folder import InRunFolder
from rlhf_cli.trainers.mixing import with_our_seams
from rlhf_cli.trainers.policy_evaluation import WithEvaluation
from rlhf_cli.trainers.ppo.with_critic import WithCritic
from rlhf_cli.trainers.stacked_rewards import WithRewardStack
from rlhf_cli.trainers.whole_checkpoints import WholeCheckpoints

ON_POLICY = [trl.GRPOTrainer, trl.RLOOTrainer]


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_calculate_rewards_takes_inputs_prompts_completions_and_ids(trainer) -> None:
    expected = ["self", "inputs", "prompts", "completions", "completion_ids_list"]
    assert parameters(trainer._calculate_rewards) == expected
    assert parameters(WithRewardStack._calculate_rewards) == expected


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_log_takes_logs_and_start_time(trainer) -> None:
    assert parameters(trainer.log) == ["self", "logs", "start_time"] == parameters(WithRewardStack.log)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_rewards_are_passed_as_functions_and_weights(trainer) -> None:
    assert "reward_funcs" in parameters(trainer)
    source = inspect.getsource(trainer)
    for name in ("self.reward_weights", "self._log_completion_extra", "self._pending_extra_logs", "self._logs"):
        assert name in source, name


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_tables_hold_prompt_completion_rewards_extra_advantages(trainer) -> None:
    source = inspect.getsource(trainer)
    for key in ("prompt", "completion", "rewards", "extra", "advantages"):
        assert f'self._logs["{key}"]' in source


def test_checkpoints_go_where_get_output_dir_says() -> None:
    assert parameters(Trainer._get_output_dir) == ["self", "trial"] == parameters(InRunFolder._get_output_dir)
    assert "self._get_output_dir(trial=trial)" in inspect.getsource(Trainer._save_checkpoint)


@pytest.mark.parametrize("trainer", [*ON_POLICY, trl.SFTTrainer, trl.DPOTrainer])
def test_a_checkpoint_is_saved_by_one_method_that_asks_where_to(trainer) -> None:
    assert parameters(trainer._save_checkpoint) == ["self", "model", "trial"] == parameters(Trainer._save_checkpoint)
    assert parameters(WholeCheckpoints._save_checkpoint) == ["self", "model", "trial"]
    source = inspect.getsource(trainer._save_checkpoint)
    assert ("checkpoint_folder" in source) == ("self._get_output_dir(trial=trial)" in source)
    assert parameters(WholeCheckpoints._get_output_dir) == ["self", "trial"]


def test_the_trainer_names_the_best_checkpoint_by_step_and_rotates_where_it_saves() -> None:
    source = inspect.getsource(Trainer._save_checkpoint)
    for text in ("self.state.best_global_step", "self.state.best_model_checkpoint =", "rotate_checkpoints("):
        assert text in source, text
    expected = ["output_dir", "save_total_limit", "best_model_checkpoint", "use_mtime", "checkpoint_prefix"]
    assert parameters(rotate_checkpoints) == expected
    assert parameters(Trainer._load_best_model) == ["self"] == parameters(WithCritic._load_best_model)
    assert parameters(Trainer._push_from_checkpoint) == ["self", "checkpoint_folder"]
    assert "self._push_from_checkpoint(output_dir)" in source


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_rollouts_are_buffered_in_two_attributes(trainer) -> None:
    source = inspect.getsource(trainer._prepare_inputs)
    assert "generate_every = self.args.steps_per_generation * self.num_iterations" in source
    assert "if self._step % generate_every == 0 or self._buffered_inputs is None:" in source
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in source
    assert 'self._metrics = {"train": defaultdict(list)' in inspect.getsource(trainer)
    assert "_load_optimizer_and_scheduler" in dir(trainer)
    assert parameters(trainer._load_optimizer_and_scheduler) == ["self", "checkpoint"]


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_the_sampler_draws_one_permutation_an_epoch_from_one_generator(trainer) -> None:
    assert parameters(trainer._get_train_sampler) == ["self", "dataset"] == parameters(ExactResume._get_train_sampler)
    assert "return RepeatSampler(" in inspect.getsource(trainer._get_train_sampler)
    sampler = RepeatSampler(range(7), mini_repeat_count=1, seed=3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        assert list(sampler) == torch.randperm(7, generator=generator).tolist()


def test_a_resumed_trainer_loads_state_then_optimizer_then_zeroes_its_loss_then_loads_random_numbers() -> None:
    """What is restored at one seam would be overwritten at an earlier one."""
    source = inspect.getsource(Trainer._inner_training_loop)
    order = ["self._init_training_state(", "self._prepare_for_training(", "self._tr_loss =", "self._run_epoch("]
    order.insert(0, "self.get_train_dataloader()")
    places = [source.index(text) for text in [*order[:4], "self._globalstep_last_logged =", order[4]]]
    assert places == sorted(places)
    assert "self._load_optimizer_and_scheduler(" in inspect.getsource(Trainer._prepare_for_training)
    assert inspect.getsource(Trainer._run_epoch).count("self._load_rng_state(resume_from_checkpoint)") == 2
    assert parameters(Trainer._load_rng_state) == ["self", "checkpoint"]


@pytest.mark.parametrize(
    "name", ["GRPOTrainer", "RLOOTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer"]
)
def test_a_config_class_is_named_after_its_trainer(name: str) -> None:
    assert hasattr(trl, name.removesuffix("Trainer") + "Config")


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_our_subclass_keeps_trls_name_and_puts_the_stack_first(trainer) -> None:
    ours = with_our_seams(trainer)
    assert ours.__name__ == trainer.__name__
    assert ours._calculate_rewards is WithEvaluation._calculate_rewards
    assert ours.__mro__.index(WithRewardStack) < ours.__mro__.index(trainer)
    assert ours.__mro__[1] is WholeCheckpoints
    assert issubclass(ours, ExactResume)


def test_a_trainer_without_rewards_gets_no_stack() -> None:
    ours = with_our_seams(trl.SFTTrainer)
    assert not issubclass(ours, WithRewardStack)
    assert not issubclass(ours, ExactResume)
    assert ours.__mro__[1] is WholeCheckpoints


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
        assert parameters(getattr(WithCritic, name)) == expected

    def test_log_probabilities_are_asked_for_by_one_method(self) -> None:
        ours = parameters(WithCritic._get_per_token_logps_and_entropies)
        theirs = parameters(trl.GRPOTrainer._get_per_token_logps_and_entropies)
        assert ours == [*theirs[:7], "others"]
        source = inspect.getsource(trl.GRPOTrainer._compute_loss)
        assert "per_token_logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(" in source

    def test_attributes(self) -> None:
        source = inspect.getsource(trl.GRPOTrainer)
        names = ("_buffered_inputs", "_step", "_metrics", "_logs", "beta", "loss_type", "epsilon_low", "epsilon_high")
        for name in (*names, "eos_token_ids", "_tokenizer", "max_completion_length", "num_generations_eval"):
            assert f"self.{name} = " in source, name
        assert "self.current_gradient_accumulation_steps = " in inspect.getsource(Trainer._run_epoch)

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

    def test_the_scheduler_comes_after_the_optimizer_and_the_wrapping_and_before_a_checkpoint(self) -> None:
        source = inspect.getsource(Trainer._prepare_for_training)
        texts = ["self.create_optimizer()", "self._wrap_model(", "self.accelerator.prepare(self.model, self.optimizer)"]
        texts += ["self.create_scheduler(num_training_steps=max_steps)", "self._load_optimizer_and_scheduler("]
        places = [source.index(text) for text in texts]
        assert places == sorted(places)

    def test_the_policy_s_optimizer_takes_what_requires_a_gradient_and_passes_over_what_has_none(self) -> None:
        assert inspect.getsource(Trainer.create_optimizer).count("p.requires_grad") == 2
        one = torch.nn.Parameter(torch.ones(1))
        torch.optim.AdamW([one], weight_decay=0.1).step()
        assert one.item() == 1

    def test_gradients_are_clipped_after_training_step_and_of_the_policy_s_model(self) -> None:
        source = inspect.getsource(Trainer._run_epoch)
        texts = ["self.accelerator.gradient_state._set_sync_gradients(", "self.training_step(model, inputs,"]
        texts += ["self._clip_grad_norm(model)", "self.optimizer.step()", "self.state.global_step += 1"]
        places = [source.index(text) for text in texts]
        assert places == sorted(places)
        assert "clip_grad_norm_(model.parameters()," in inspect.getsource(Trainer._clip_grad_norm)

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

    def test_a_checkpoint_with_an_adapter_in_a_folder_still_has_the_policy_s_at_its_top(self) -> None:
        """`critic/` looks like a second adapter to the Trainer: it loads the top one as `default` all the same."""
        source = inspect.getsource(Trainer._load_from_checkpoint)
        assert 'resume_from_checkpoint, "default", is_trainable=(active_adapter == "default")' in source
        assert "model.set_adapter(active_adapter)" in source

    def test_gradient_checkpointing_goes_by_one_of_two_names(self) -> None:
        options = ["activation_checkpointing_kwargs", "every_n_layers", "offload"]
        assert parameters(PreTrainedModel.activation_checkpointing_enable)[1:] == options
        both = trl.GRPOConfig(use_cpu=True, bf16=False, gradient_checkpointing=False, activation_checkpointing=True)
        assert both.activation_checkpointing
        assert both.gradient_checkpointing


@pytest.mark.parametrize("trainer", [trl.SFTTrainer, trl.DPOTrainer, trl.KTOTrainer, trl.RewardTrainer])
def test_rows_are_prepared_by_one_method_whose_third_argument_has_the_limit_and_whose_last_is_the_name(trainer) -> None:
    """trainers/lengths.py calls it once more without the limit, and with packing off where that is the fourth."""
    more = ["packing", "formatting_func"] if trainer is trl.SFTTrainer else []
    expected = ["self", "dataset", "processing_class", "args", *more, "dataset_name"]
    assert parameters(trainer._prepare_dataset) == expected
    source = inspect.getsource(trainer.__init__)
    calls = re.findall(r"self\._prepare_dataset\(([^)]*)\)", source)
    assert calls
    assert not any("=" in call for call in calls)  # by position
    assert "args.max_length" in inspect.getsource(trainer._prepare_dataset)


@pytest.mark.parametrize("trainer", [trl.GRPOTrainer, trl.RLOOTrainer])
def test_a_trainer_that_generates_prepares_no_rows(trainer) -> None:
    assert not hasattr(trainer, "_prepare_dataset")


def test_an_evaluation_is_one_loop_whose_metrics_are_logged_and_choose_the_best() -> None:
    expected = ["self", "dataloader", "description", "prediction_loss_only", "ignore_keys", "metric_key_prefix"]
    assert parameters(Trainer.evaluation_loop) == expected == parameters(WithEvaluation.evaluation_loop)
    source = inspect.getsource(Trainer.evaluate)
    assert "output = self.evaluation_loop(" in source
    assert "self.log(output.metrics)" in source
    assert parameters(Trainer._determine_best_metric) == ["self", "metrics", "trial"]
    assert parameters(InRunFolder._determine_best_metric) == ["self", "metrics", "trial"]
    assert 'f"eval_{metric_to_check}"' in inspect.getsource(Trainer._determine_best_metric)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_what_is_set_aside_for_greedy_answers(trainer) -> None:
    """Samples a prompt, generation's arguments, metrics, tables, cached dataloaders, vLLM's temperature."""
    source = inspect.getsource(trainer)
    for text in (
        "self.num_generations_eval = args.num_generations_eval or self.num_generations",
        "generation_config=self.generation_config",
        "generation_kwargs=self.generation_kwargs",
        "mini_repeat_count=self.num_generations_eval",
        "self._eval_dataloaders[dataloader_key]",
        'self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}',
        "self.use_vllm",
    ):
        assert text in source, text
    assert parameters(trainer.get_eval_dataloader) == ["self", "eval_dataset"]
    vllm = (Path(trl.__file__).parent / "generation" / "vllm_generation.py").read_text(encoding="utf-8")
    assert "temperature = self.temperature" in vllm
