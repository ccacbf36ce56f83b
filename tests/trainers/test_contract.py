"""Every method of TRL that we override or rely on, and what packed rows need. A change in a new version fails here."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from accelerate.utils import operations
from torch.nn.attention.varlen import varlen_attn
from torch.optim.lr_scheduler import LambdaLR
from transformers import AttentionInterface, LlamaConfig, LlamaModel, Trainer, get_scheduler
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.trainer_utils import rotate_checkpoints, speed_metrics
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.utils import RepeatSampler

from rlhf_cli.models.packing.row_attention import _MORE_THAN_CAUSAL
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.trainers.assemble.algorithm import _SCALES
from rlhf_cli.trainers.assemble.trainer import extended_class
from rlhf_cli.trainers.checkpoint_mixin import CheckpointMixin
from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin
from rlhf_cli.trainers.extensions import ExtendedTrainer, Extensions, KeepGroups, RewardSetup
from rlhf_cli.trainers.guard_mixin import GuardMixin
from rlhf_cli.trainers.left_out_mixin import LeftOutMixin
from rlhf_cli.trainers.logging_mixin import LoggingMixin
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.ppo.critic import PpoSetup
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from rlhf_cli.trainers.reward_mixin import RewardMixin
from rlhf_cli.trainers.rollout_mixin import RolloutMixin, SamplingMixin
from rlhf_cli.trainers.step_profile import _COLLECTIVES
from tests.support.reference_varlen import ReferenceVarlen
from tests.support.signatures import ON_POLICY, parameters


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_rewards_are_functions_and_weights_and_are_called_by_one_method(trainer) -> None:
    expected = ["self", "inputs", "prompts", "completions", "completion_ids_list"]
    assert parameters(trainer._calculate_rewards) == expected == parameters(RewardMixin._calculate_rewards)
    assert "reward_funcs" in parameters(trainer)
    source = inspect.getsource(trainer)
    for name in ("self.reward_weights", "self._log_completion_extra", "self._pending_extra_logs", "self._logs"):
        assert name in source, name


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_a_scored_round_is_a_dictionary_of_tensors_by_row_with_at_most_one_scalar(trainer) -> None:
    """trainers/rollout_mixin.py joins rows of several; prompts are padded on the left, all else on the right."""
    source = inspect.getsource(trainer._generate_and_score_completions)
    output = source[source.index("        output = {") :]
    plain = set(re.findall(r'"(\w+)": \w+,', output)) | set(re.findall(r'output\["(\w+)"\] = (?!forward)', output))
    by_row = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "old_per_token_logps"}
    by_row |= {"importance_sampling_ratio", "sampling_per_token_logps", "ref_per_token_logps", "tool_mask", "old_logps"}
    assert plain <= by_row | {"num_items_in_batch", "num_images", "num_tiles"}  # images are refused
    assert source.count('padding_side="left"') == 2
    assert re.search(r"tool_mask, padding_value=1", source) or "tool_mask" not in source
    for name in ("prompt", "completion", "advantages"):
        assert f'self._logs["{name}"].extend(' in source
    for text in ("maxlen=args.generation_batch_size", '"images": deque('):  # trainers/reward_mixin.py empties these
        assert text in inspect.getsource(trainer.__init__)


def test_a_rollout_function_gives_a_mask_and_columns_before_rewards_are_called() -> None:
    """trainers/reward_mixin.py wraps the function and reads the mask; trainers/staged_rollout.py is such a function."""
    turn = ["self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"]
    assert parameters(trl.GRPOTrainer._generate_single_turn) == turn
    assert parameters(trl.GRPOTrainer._tokenize_prompts) == ["self", "prompts"]
    generate = inspect.getsource(trl.GRPOTrainer._generate)
    assert "output = self.rollout_func(prompts, self)" in generate
    assert 'required_keys = {"prompt_ids", "completion_ids", "logprobs"}' in generate
    assert 'tool_mask = extra_fields.pop("env_mask", None)' in generate
    score = inspect.getsource(trl.GRPOTrainer._generate_and_score_completions)
    assert score.index("inp[key] = values[i]") < score.index("self._calculate_rewards(inputs, prompts, completions")


def test_rounds_of_calls_are_limited_and_end_in_messages() -> None:
    """tools_and_environments.py reads from the messages how a rollout ended; the loop knows no other way out."""
    source = inspect.getsource(trl.GRPOTrainer._tool_call_loop)
    assert "except Exception as e:" in source
    assert 'result = {"error": str(e)}' in source
    assert 'raise ValueError(f"Tool {name} not found.")' in source
    assert "while idxs_with_tool and iteration_num < self.max_tool_calling_iterations:" in source
    assert 'tool_message = {"role": "tool", "name": name, "content": content}' in source
    assert "del completions[idx_with_tool][completions_len_before[idx] :]" in source  # results that did not fit
    assert "completions[idx_with_tool].append(post_tool_completions[idx])" in source  # only if it is not empty


def test_a_round_is_shuffled_by_a_function_of_its_module() -> None:
    """trainers/ppo puts its own in that place, which keeps the answers of a prompt together."""
    source = inspect.getsource(trl.GRPOTrainer._prepare_inputs)
    assert "generation_batch = shuffle_sequence_dict(generation_batch)" in source
    assert inspect.unwrap(trl.GRPOTrainer._prepare_inputs).__globals__ is vars(grpo_trainer)


def test_an_evaluation_comes_after_the_log_and_before_the_save_and_tells_callbacks_of_every_batch() -> None:
    """So one that a callback breaks off leaves a step that is logged and not saved; asked again it saves alone."""
    source = inspect.getsource(Trainer._maybe_log_save_evaluate)
    logs = "if self.control.should_log and self.state.global_step > self._globalstep_last_logged:"
    parts = [logs, "if self.control.should_evaluate:", "if self.control.should_save:"]
    places = [source.index(part) for part in parts]
    assert places == sorted(places)
    assert "self.callback_handler.on_prediction_step(" in inspect.getsource(Trainer.evaluation_loop)


@pytest.mark.parametrize("trainer", [*ON_POLICY, trl.SFTTrainer, trl.DPOTrainer])
def test_a_checkpoint_is_saved_by_one_method_that_asks_where_to(trainer) -> None:
    assert parameters(trainer._save_checkpoint) == ["self", "model", "trial"] == parameters(Trainer._save_checkpoint)
    assert parameters(CheckpointMixin._save_checkpoint) == ["self", "model", "trial"]
    source = inspect.getsource(trainer._save_checkpoint)
    assert ("checkpoint_folder" in source) == ("self._get_output_dir(trial=trial)" in source)
    assert parameters(CheckpointMixin._get_output_dir) == ["self", "trial"]


def test_the_trainer_names_the_best_checkpoint_by_step_and_rotates_where_it_saves() -> None:
    source = inspect.getsource(Trainer._save_checkpoint)
    for text in ("self.state.best_global_step", "self.state.best_model_checkpoint =", "rotate_checkpoints("):
        assert text in source, text
    expected = ["output_dir", "save_total_limit", "best_model_checkpoint", "use_mtime", "checkpoint_prefix"]
    assert parameters(rotate_checkpoints) == expected
    assert parameters(Trainer._load_best_model) == ["self"] == parameters(PpoMixin._load_best_model)
    assert parameters(Trainer._load_from_checkpoint) == ["self", "resume_from_checkpoint", "model"]
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
    assert "self.lr_scheduler.step(metrics[metric_to_check])" in inspect.getsource(Trainer._evaluate)


@pytest.mark.parametrize("name", [name for name, row in TRAINERS.items() if row.generates])
def test_a_loss_is_asked_for_the_advantages_of_its_inputs(name: str, monkeypatch) -> None:
    """trainers/reward_mixin.py gives it larger ones, and a larger `beta` and `entropy_coef`, for a while."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer = getattr(importlib.import_module(TRAINERS[name].module), name)
    assert parameters(trainer._compute_loss) == ["self", "model", "inputs"] == parameters(RewardMixin._compute_loss)
    assert parameters(trainer._prepare_inputs) == ["self", "generation_batch"]
    assert parameters(RewardMixin._prepare_inputs) == ["self", "generation_batch"]
    source = inspect.getsource(trainer._compute_loss)
    assert 'advantages = inputs["advantages"]' in source
    assert ("self.beta * " in source) == (trainer is not trl.RLOOTrainer)  # whose KL is in the reward
    if trainer is trl.GRPOTrainer:
        assert "apply_coef = self.entropy_coef\n" in source


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_the_sampler_draws_one_permutation_an_epoch_from_one_generator(trainer) -> None:
    assert (
        parameters(trainer._get_train_sampler) == ["self", "dataset"] == parameters(CheckpointMixin._get_train_sampler)
    )
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
    made_up = ["model", "trial", "epoch", "ignore_keys_for_eval", "start_time"]  # an evaluation before the epoch
    assert all(f"{name}={name}," in source for name in [*made_up, "resume_from_checkpoint"])
    assert parameters(Trainer._maybe_log_save_evaluate)[3:8] == made_up
    assert parameters(Trainer._load_rng_state) == ["self", "checkpoint"]


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_a_trainer_that_generates_has_these_mixins_in_this_order(trainer) -> None:
    """`extended_class` says why each stands where it does."""
    rewards = RewardSetup(stack=RewardStack([]))
    inner = (GuardMixin, EvaluationMixin, PassMixin, RewardMixin, LeftOutMixin, ExtendedTrainer)
    ours = extended_class(trainer, Extensions(rewards=rewards))
    assert ours.__name__ == trainer.__name__
    assert ours.__mro__[1:] == (LoggingMixin, CheckpointMixin, RolloutMixin, *inner, *trainer.__mro__)
    kept = RewardSetup(stack=RewardStack([]), keep_groups=KeepGroups("correct", 3))
    inner_kept = (*inner[:3], SamplingMixin, *inner[3:])
    ours = extended_class(trainer, Extensions(rewards=kept))
    assert ours.__mro__[1:] == (LoggingMixin, CheckpointMixin, RolloutMixin, *inner_kept, *trainer.__mro__)
    ppo: Any = PpoSetup(None, None, None)  # type: ignore[arg-type]
    ours = extended_class(trainer, Extensions(rewards=rewards, ppo=ppo))
    assert ours.__mro__[1:] == (LoggingMixin, CheckpointMixin, RolloutMixin, PpoMixin, *inner, *trainer.__mro__)


def test_a_trainer_of_rows_has_three_mixins() -> None:
    ours = extended_class(trl.SFTTrainer, Extensions())
    expected = (LoggingMixin, CheckpointMixin, GuardMixin, ExtendedTrainer, *trl.SFTTrainer.__mro__)
    assert ours.__mro__[1:] == expected


@pytest.mark.parametrize("trainer", [trl.SFTTrainer, trl.DPOTrainer, trl.KTOTrainer, trl.RewardTrainer])
def test_rows_are_prepared_by_one_method_whose_third_argument_has_the_limit_and_whose_last_is_the_name(trainer) -> None:
    """trainers/logging_mixin.py calls it once more without the limit, and with packing off where that is the fourth."""
    more = ["packing", "formatting_func"] if trainer is trl.SFTTrainer else []
    expected = ["self", "dataset", "processing_class", "args", *more, "dataset_name"]
    assert parameters(trainer._prepare_dataset) == expected
    source = inspect.getsource(trainer.__init__)
    calls = re.findall(r"self\._prepare_dataset\(([^)]*)\)", source)
    assert calls
    assert not any("=" in call for call in calls)  # by position
    assert "args.max_length" in inspect.getsource(trainer._prepare_dataset)


def test_an_evaluation_is_one_loop_whose_metrics_are_logged_and_choose_the_best() -> None:
    expected = ["self", "dataloader", "description", "prediction_loss_only", "ignore_keys", "metric_key_prefix"]
    assert parameters(Trainer._get_num_items_in_batch) == ["self", "batch_samples", "device"]
    assert parameters(Trainer.evaluation_loop) == expected == parameters(EvaluationMixin.evaluation_loop)
    source = inspect.getsource(Trainer.evaluate)
    assert "output = self.evaluation_loop(" in source
    assert "self.log(output.metrics)" in source
    assert parameters(Trainer._determine_best_metric) == ["self", "metrics", "trial"]
    assert parameters(CheckpointMixin._determine_best_metric) == ["self", "metrics", "trial"]
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


def missing_from_trl(names: set[str]) -> set[str]:
    """Return the names that no trainer below our mixins defines or sets on itself."""
    classes = {one for trainer in (*ON_POLICY, trl.SFTTrainer) for one in trainer.__mro__ if one is not object}
    source = "\n".join(inspect.getsource(one) for one in classes)
    return {name for name in names if not re.search(rf"def {name}\b|\bself\.{name}\b", source)}


def test_every_name_of_trl_that_our_mixins_use_is_there() -> None:
    mixins = (CheckpointMixin, EvaluationMixin, LeftOutMixin, LoggingMixin, PpoMixin, *PpoMixin.__bases__, RolloutMixin)
    mixins += (SamplingMixin,)
    source = "\n".join(inspect.getsource(one) for one in mixins)
    ours = {name for one in (ExtendedTrainer, *mixins) for name in (*vars(one), *one.__annotations__)}
    ours |= {"__dict__", "_clip_range", "aggregate", "critic", "is_dense", "keep_groups", "kl", "ppo", "reward_stack"}
    ours |= {"truncation"}
    own = {"_trained", "load_state", "save_state", "slow_paths"}
    overridden = set(re.findall(r"super\([^)]*\)\.(\w+)", source)) - own
    names = set(re.findall(r"\bself\.(\w+)", source)) - ours | overridden
    names |= {"_entropy_bonus_enabled", "entropy_coef", "importance_sampling_level", "top_entropy_quantile"}
    names |= {"add_callback", "compute_loss_context_manager", "data_collator", "eval_dataset", "remove_callback"}
    names |= {"get_decay_parameter_names", "train", "train_dataset", "use_adaptive_entropy"}
    assert len(names) > 80
    assert missing_from_trl(names | {"_buffered_outputs"}) == {"_buffered_outputs"}
    assert ExtendedTrainer.__bases__ == (object,)  # nothing stands between a mixin and TRL
    fields = {name for one in (trl.GRPOConfig, trl.RLOOConfig, trl.SFTConfig) for name in one.__dataclass_fields__}
    read = set(re.findall(r"\bself\.args\.(\w+)", source)) - {"should_save"}  # a property
    read |= {"lr_scheduler_kwargs", "max_length", "packing_strategy", "pad_token"}
    assert {"log_completions", "output_dir"} < read <= fields


def test_a_saved_model_has_the_arguments_beside_it() -> None:
    """trainers/checkpoint_mixin.py takes secrets out of them."""
    assert "torch.save(self.args, os.path.join(output_dir, TRAINING_ARGS_NAME))" in inspect.getsource(Trainer._save)
    assert parameters(CheckpointMixin._save) == ["self", "output_dir", "state_dict"] == parameters(Trainer._save)
    assert "self.state.log_history.append(output)" in inspect.getsource(Trainer.log)


def test_torch_has_the_kernel() -> None:
    """packing/row_attention.py passes seven positional and three keyword arguments; so does the reference."""
    parameters = inspect.signature(varlen_attn).parameters
    by_place = ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert list(parameters)[:7] == by_place
    by_name = {name: parameters[name].default for name in ("scale", "window_size", "enable_gqa")}
    assert by_name == {"scale": None, "window_size": (-1, -1), "enable_gqa": False}
    assert "(-1, 0) for causal" in (varlen_attn.__doc__ or "")
    ours = inspect.signature(ReferenceVarlen.__call__).parameters
    assert [name for name in ours if name != "self"] == [*by_place, *by_name]
    assert all(ours[name].kind is parameters[name].kind for name in [*by_place, *by_name])


def test_torch_s_kernel_says_where_it_is_not() -> None:
    """The trial of a pass takes a RuntimeError for that; on a CPU there is none."""
    one, ends = torch.randn(2, 1, 8, dtype=torch.bfloat16), torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="_flash_attention_forward"):
        varlen_attn(one, one, one, ends, ends, 2, 2, window_size=(-1, 0))


def test_transformers_sdpa_knows_what_is_looked_for() -> None:
    """packing/row_attention.py attends row by row if any of them is given."""
    parameters = set(inspect.signature(sdpa_attention_forward).parameters)
    source = inspect.getsource(sdpa_attention_forward)
    named = parameters - {"module", "query", "key", "value", "attention_mask", "kwargs"}
    every = {"dropout", "scaling", "is_causal", "position_bias"}
    assert every <= named <= every | {"cache"}, "another argument changes the result"  # transformers 5.24 has no cache
    read = {*re.findall(r'kwargs\.get\("(\w+)"', source), *re.findall(r'kwargs\["(\w+)"\]', source)}
    assert "output_attentions" in read, "the source is read wrongly"
    assert read <= {"softcap", "output_attentions", "dropout", "scale", "enable_gqa"}, "another argument is read"
    assert set(_MORE_THAN_CAUSAL) <= named | read | {"cache", "softcap"}


def test_a_layer_gives_it_by_name() -> None:
    """Layers that pass them by position would attend row by row."""
    given: list[tuple[int, set[str]]] = []

    def attention(_module: object, query: torch.Tensor, *others: object, **named: object) -> tuple[torch.Tensor, None]:
        given.append((len(others), set(named)))
        return query.transpose(1, 2), None

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaModel(LlamaConfig(vocab_size=8, **shape))
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    AttentionInterface.register("sdpa", attention)
    try:
        model(input_ids=torch.tensor([[1, 2]]), packed_rows="seen")
    finally:
        AttentionInterface.register("sdpa", before)
    ((num_by_place, names),) = given
    assert num_by_place == 3  # key, value, mask
    assert {"dropout", "scaling", "packed_rows"} <= names


OF_ROWS = [trl.SFTTrainer, trl.DPOTrainer, trl.KTOTrainer, trl.RewardTrainer]


def test_an_epoch_reads_rows_takes_steps_and_clips_by_one_method_each() -> None:
    source = inspect.getsource(Trainer._run_epoch)
    calls = [
        "self.get_batch_samples(epoch_iterator, num_batches, self.args.device)",
        "self.training_step(model, inputs, num_items_in_batch)",
        "self._clip_grad_norm(model)",
        "self.callback_handler.on_pre_optimizer_step(",
        "self.optimizer.step()",
        "self.callback_handler.on_optimizer_step(",
    ]
    places = [source.index(call) for call in calls]
    assert places == sorted(places)


@pytest.mark.parametrize("trainer", [*OF_ROWS, *ON_POLICY])
def test_a_loss_is_asked_for_a_model_and_a_batch(trainer: Any) -> None:
    assert (
        parameters(trainer.compute_loss)[:3] == ["self", "model", "inputs"] == parameters(LoggingMixin.compute_loss)[:3]
    )


def test_what_is_logged_while_it_trains_has_a_loss_and_in_the_end_a_runtime() -> None:
    assert 'logs["loss"] = ' in inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert "train_runtime" in speed_metrics("train", 0.0)
    assert "self.log(metrics)" in inspect.getsource(Trainer._finalize_training)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_log_probabilities_are_computed_by_one_method_that_is_given_the_reference(trainer: Any) -> None:
    expected = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    theirs = trainer._get_per_token_logps_and_entropies
    for method in (theirs, PassMixin._get_per_token_logps_and_entropies):
        assert parameters(method)[: len(expected)] == expected
    source = inspect.getsource(trainer._generate_and_score_completions)
    assert "self._get_per_token_logps_and_entropies(\n                        self.ref_model," in source
    assert 'use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)' in source


@pytest.mark.parametrize("trainer", [trl.DPOTrainer, trl.KTOTrainer])
def test_a_trainer_of_rows_calls_its_reference_within_the_loss(trainer: Any) -> None:
    assert "self.ref_model(**" in inspect.getsource(trainer._compute_loss)


@pytest.mark.parametrize("trainer", OF_ROWS)
def test_batches_of_rows_have_ids_and_a_mask_beside_them(trainer: Any) -> None:
    source = inspect.getsource(inspect.getmodule(trainer))  # type: ignore[arg-type]
    assert 'output["input_ids"] = ' in source
    assert 'output["attention_mask"] = ' in source


def test_accelerate_asks_torch_distributed_for_its_collectives_when_it_needs_them() -> None:
    """An imported name would still be the function without timing."""
    source = inspect.getsource(operations)
    imported = " ".join(re.findall(r"from torch\.distributed import (.*)", source))
    assert not set(_COLLECTIVES) & set(re.findall(r"\w+", imported))
    for name in ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "broadcast"):
        assert name in _COLLECTIVES
        assert f"torch.distributed.{name}" in source


GRPO = [
    "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)",
    "rewards[unscorable_mask] = torch.nan",
    "mean_grouped_rewards = torch.nanmean(rewards.view(-1, num_generations), dim=1)",
    "std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)",
    "std_rewards = nanstd(rewards).expand_as(rewards)",
    "advantages = rewards - mean_grouped_rewards",
    "advantages = advantages / (std_rewards + 1e-4)",
    "advantages = torch.nan_to_num(advantages, nan=0.0)",
]
RLOO = [
    "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)",
    "rewards[unscorable_mask] = torch.nan",
    "rewards = rewards.clamp(min=self.reward_clip_range[0], max=self.reward_clip_range[1])",
    "rewards = rewards - self.beta * kl",
    "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)",
    "advantages = (advantages - torch.nanmean(advantages)) / (nanstd(advantages) + 1e-4)",
    "advantages = torch.nan_to_num(advantages, nan=0.0)",
]


@pytest.mark.parametrize(("trainer", "steps"), [(trl.GRPOTrainer, GRPO), (trl.RLOOTrainer, RLOO)])
def test_the_steps_from_totals_to_advantages(trainer: type, steps: list[str]) -> None:
    source = inspect.getsource(trainer._generate_and_score_completions)
    places = [source.index(step) for step in steps]
    assert places == sorted(places)


def test_what_scale_rewards_may_be() -> None:
    source = inspect.getsource(GRPOConfig.__post_init__)
    assert 'self.scale_rewards = {True: "group", False: "none"}.get(self.scale_rewards, self.scale_rewards)' in source
    assert {True: "group", False: "none"}.items() <= _SCALES.items()


def test_a_table_of_completions_is_written_where_ours_is() -> None:
    source = inspect.getsource(trl.GRPOTrainer.log)
    assert 'f"completions_{self.state.global_step:05d}.parquet"' in source


def test_an_epoch_is_one_method_and_what_it_leaves_in_control_ends_training() -> None:
    loop = inspect.getsource(Trainer._inner_training_loop)
    after = loop[loop.index("self._run_epoch(") :]
    assert "if self.control.should_training_stop:" in after
    assert "max_steps" not in parameters(Trainer._run_epoch)  # it asks only after a step: so one step too many


@pytest.mark.parametrize(
    "name",
    ["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_restarts"],
)
def test_schedules_are_a_factor_a_step(name: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=9)
    assert isinstance(schedule, LambdaLR)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == schedule.base_lrs[0] * schedule.lr_lambdas[0](schedule.last_epoch)
