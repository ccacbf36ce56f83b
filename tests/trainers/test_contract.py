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
from peft import get_peft_model_state_dict
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.nn.attention.varlen import varlen_attn
from torch.nn.parallel import DistributedDataParallel
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

GRPO = trl.GRPOTrainer
OF_ROWS = [trl.SFTTrainer, trl.DPOTrainer, trl.KTOTrainer, trl.RewardTrainer]
MIXINS = (CheckpointMixin, EvaluationMixin, LeftOutMixin, LoggingMixin, PpoMixin, *PpoMixin.__bases__, RolloutMixin)
MIXINS += (SamplingMixin,)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_what_our_mixins_override_is_called_as_before(trainer) -> None:
    """Of every method whose arguments a mixin names; others pass on what they are given."""
    compared = 0
    for mixin in (*MIXINS, GuardMixin, PassMixin, RewardMixin):
        for name, method in vars(mixin).items():
            if (
                not inspect.isfunction(method) or not hasattr(trainer, name) or name == "save_state"
            ):  # ours has a folder
                continue
            if {"args", "named", "others"}.isdisjoint(ours := parameters(method)):
                assert ours == parameters(getattr(trainer, name)), (mixin, name)
                compared += 1
    assert compared > 25


TOTALS = [
    "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)",
    "rewards[unscorable_mask] = torch.nan",
]
NO_ADVANTAGE = "advantages = torch.nan_to_num(advantages, nan=0.0)"
IN_ORDER: dict[Any, list[str]] = {
    # trainers/reward_mixin.py wraps the rollout function and reads its mask; trainers/staged_rollout.py is such a one
    GRPO._generate: [
        "output = self.rollout_func(prompts, self)",
        'required_keys = {"prompt_ids", "completion_ids", "logprobs"}',
        'tool_mask = extra_fields.pop("env_mask", None)',
    ],
    GRPO._generate_and_score_completions: [
        "inp[key] = values[i]",  # a rollout function's columns
        "self._calculate_rewards(inputs, prompts, completions",
        *TOTALS,
        "mean_grouped_rewards = torch.nanmean(rewards.view(-1, num_generations), dim=1)",
        "std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)",
        "std_rewards = nanstd(rewards).expand_as(rewards)",
        "advantages = rewards - mean_grouped_rewards",
        "advantages = advantages / (std_rewards + 1e-4)",
        NO_ADVANTAGE,
    ],
    trl.RLOOTrainer._generate_and_score_completions: [
        *TOTALS,
        "rewards = rewards.clamp(min=self.reward_clip_range[0], max=self.reward_clip_range[1])",
        "rewards = rewards - self.beta * kl",
        "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)",
        "advantages = (advantages - torch.nanmean(advantages)) / (nanstd(advantages) + 1e-4)",
        NO_ADVANTAGE,
    ],
    # tools_and_environments.py reads from the messages how a rollout ended; the loop knows no other way out
    GRPO._tool_call_loop: [
        "while idxs_with_tool and iteration_num < self.max_tool_calling_iterations:",
        'raise ValueError(f"Tool {name} not found.")',
        "except Exception as e:",
        'result = {"error": str(e)}',
        'tool_message = {"role": "tool", "name": name, "content": content}',
        "del completions[idx_with_tool][completions_len_before[idx] :]",  # results that did not fit
        "completions[idx_with_tool].append(post_tool_completions[idx])",  # only if it is not empty
    ],
    # trainers/ppo puts its own in that place, which keeps the answers of a prompt together
    GRPO._prepare_inputs: ["generation_batch = shuffle_sequence_dict(generation_batch)"],
    GRPO.__init__: ["self.num_generations = args.num_generations"],  # PPO sets one that GRPOConfig refuses
    # a KL only with beta, as the count in ppo/test_critic_contract.py says; the value loss divides by the same numbers
    GRPO._compute_loss: [
        "per_token_logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(",
        "if advantages.dim() == 1:",
        "per_token_loss.size(0) * self.max_completion_length",
        'inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes',
        "self.current_gradient_accumulation_steps / self.args.steps_per_generation",
    ],
    GRPO.log: ['f"completions_{self.state.global_step:05d}.parquet"'],
    # an evaluation that a callback breaks off leaves a step that is logged and not saved; asked again it saves alone
    Trainer._maybe_log_save_evaluate: [
        "if self.control.should_log and self.state.global_step > self._globalstep_last_logged:",
        'logs["loss"] = ',
        "if self.control.should_evaluate:",
        "if self.control.should_save:",
    ],
    Trainer.evaluation_loop: ["self.callback_handler.on_prediction_step("],
    Trainer.evaluate: ["output = self.evaluation_loop(", "self.log(output.metrics)"],
    Trainer._evaluate: ["self.lr_scheduler.step(metrics[metric_to_check])"],
    Trainer._determine_best_metric: ['f"eval_{metric_to_check}"'],
    Trainer._save_checkpoint: [
        "self.state.best_global_step",
        "self.state.best_model_checkpoint =",
        "self._push_from_checkpoint(output_dir)",
        "rotate_checkpoints(",
    ],
    # trainers/checkpoint_mixin.py takes secrets out of them
    Trainer._save: [
        "self.model.save_pretrained(output_dir, state_dict=",
        "torch.save(self.args, os.path.join(output_dir, TRAINING_ARGS_NAME))",
    ],
    Trainer.log: ["self.state.log_history.append(output)"],
    Trainer._finalize_training: ["self.log(metrics)"],
    # what is restored at one seam would be overwritten at an earlier one
    Trainer._inner_training_loop: [
        "self.get_train_dataloader()",
        "self._init_training_state(",
        "self._prepare_for_training(",
        "self._tr_loss =",
        "self._globalstep_last_logged =",
        "self._run_epoch(",
        "if self.control.should_training_stop:",
    ],
    Trainer._prepare_for_training: ["self._load_optimizer_and_scheduler("],
    Trainer._run_epoch: [
        "self.get_batch_samples(epoch_iterator, num_batches, self.args.device)",
        "self.training_step(model, inputs, num_items_in_batch)",
        "self._clip_grad_norm(model)",
        "self.callback_handler.on_pre_optimizer_step(",
        "self.optimizer.step()",
        "self.callback_handler.on_optimizer_step(",
    ],
    Trainer._build_accelerator_args: ["find_unused = True"],
    # DDP settles in the forward pass whether gradients are exchanged
    DistributedDataParallel._pre_forward: ["if torch.is_grad_enabled() and self.require_backward_grad_sync:"],
    DistributedDataParallel.no_sync: ["self.require_backward_grad_sync = False"],
    # PEFT's layers read which adapter is active from two attributes
    Linear.forward: ["self.disable_adapters", "self.active_adapter"],
    BaseTunerLayer.active_adapter.fget: ["self._active_adapter"],
    BaseTunerLayer.disable_adapters.fget: ["self._disable_adapters"],
    get_peft_model_state_dict: [
        "unwanted_adapter_names = [name for name in model.peft_config if name != adapter_name]"
    ],
    trl.DPOTrainer._compute_loss: ["self.ref_model(**"],
    trl.KTOTrainer._compute_loss: ["self.ref_model(**"],
    GRPOConfig.__post_init__: [
        'self.scale_rewards = {True: "group", False: "none"}.get(self.scale_rewards, self.scale_rewards)'
    ],
}


@pytest.mark.parametrize("function", IN_ORDER, ids=lambda function: function.__qualname__)
def test_lines_of_the_libraries_stand_in_this_order(function: Any) -> None:
    source, place = inspect.getsource(function), 0
    for line in IN_ORDER[function]:
        place = source.index(line, place)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_lines_of_every_trainer_that_generates(trainer) -> None:
    """Rewards, the buffer of rollouts, the tables; and for greedy answers: samples a prompt, generation's arguments,
    cached dataloaders, vLLM's temperature.
    """
    assert "reward_funcs" in parameters(trainer)
    source = inspect.getsource(trainer)
    for text in (
        *("self.reward_weights", "self._log_completion_extra"),
        "generate_every = self.args.steps_per_generation * self.num_iterations",
        "if self._step % generate_every == 0 or self._buffered_inputs is None:",
        "self._buffered_inputs[self._step % self.args.steps_per_generation]",
        'self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}',
        "self.num_generations_eval = args.num_generations_eval or self.num_generations",
        "generation_config=self.generation_config",
        "generation_kwargs=self.generation_kwargs",
        "mini_repeat_count=self.num_generations_eval",
        "self._eval_dataloaders[dataloader_key]",
        *("maxlen=args.generation_batch_size", '"images": deque('),  # trainers/reward_mixin.py empties these
        "self._get_per_token_logps_and_entropies(\n                        self.ref_model,",
        'use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)',
    ):
        assert text in source, text
    vllm = (Path(trl.__file__).parent / "generation" / "vllm_generation.py").read_text(encoding="utf-8")
    assert "temperature = self.temperature" in vllm
    expected = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    for method in (trainer._get_per_token_logps_and_entropies, PassMixin._get_per_token_logps_and_entropies):
        assert parameters(method)[: len(expected)] == expected


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


def test_names_that_a_module_must_hold() -> None:
    assert inspect.unwrap(GRPO._prepare_inputs).__globals__ is vars(grpo_trainer)  # PPO replaces its shuffling there
    turn = ["self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"]
    assert parameters(GRPO._generate_single_turn) == turn
    assert parameters(GRPO._tokenize_prompts) == ["self", "prompts"]
    assert parameters(Trainer._get_num_items_in_batch) == ["self", "batch_samples", "device"]
    expected = ["output_dir", "save_total_limit", "best_model_checkpoint", "use_mtime", "checkpoint_prefix"]
    assert parameters(rotate_checkpoints) == expected
    assert "train_runtime" in speed_metrics("train", 0.0)
    assert {True: "group", False: "none"}.items() <= _SCALES.items()
    assert "max_steps" not in parameters(Trainer._run_epoch)  # it asks only after a step: so one step too many
    assert inspect.getsource(Trainer._run_epoch).count("self._load_rng_state(resume_from_checkpoint)") == 2
    made_up = ["model", "trial", "epoch", "ignore_keys_for_eval", "start_time"]  # an evaluation before the epoch
    loop = inspect.getsource(Trainer._inner_training_loop)
    assert all(f"{name}={name}," in loop for name in [*made_up, "resume_from_checkpoint"])
    assert parameters(Trainer._maybe_log_save_evaluate)[3:8] == made_up


@pytest.mark.parametrize("trainer", [*ON_POLICY, trl.SFTTrainer, trl.DPOTrainer])
def test_a_checkpoint_is_saved_by_one_method_that_asks_where_to(trainer) -> None:
    source = inspect.getsource(trainer._save_checkpoint)
    assert parameters(trainer._save_checkpoint) == ["self", "model", "trial"]
    assert ("checkpoint_folder" in source) == ("self._get_output_dir(trial=trial)" in source)


@pytest.mark.parametrize("name", [name for name, row in TRAINERS.items() if row.generates])
def test_a_loss_is_asked_for_the_advantages_of_its_inputs(name: str, monkeypatch) -> None:
    """trainers/reward_mixin.py gives it larger ones, and a larger `beta` and `entropy_coef`, for a while."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer = getattr(importlib.import_module(TRAINERS[name].module), name)
    assert parameters(trainer._compute_loss) == ["self", "model", "inputs"]
    assert parameters(trainer._prepare_inputs) == ["self", "generation_batch"]
    source = inspect.getsource(trainer._compute_loss)
    assert 'advantages = inputs["advantages"]' in source
    assert ("self.beta * " in source) == (trainer is not trl.RLOOTrainer)  # whose KL is in the reward
    if trainer is GRPO:
        assert "apply_coef = self.entropy_coef\n" in source


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_the_sampler_draws_one_permutation_an_epoch_from_one_generator(trainer) -> None:
    assert "return RepeatSampler(" in inspect.getsource(trainer._get_train_sampler)
    sampler = RepeatSampler(range(7), mini_repeat_count=1, seed=3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        assert list(sampler) == torch.randperm(7, generator=generator).tolist()


OUTER, INNER = (LoggingMixin, CheckpointMixin, RolloutMixin), (RewardMixin, LeftOutMixin, ExtendedTrainer)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_a_trainer_that_generates_has_these_mixins_in_this_order(trainer) -> None:
    """`extended_class` says why each stands where it does."""
    guards = (GuardMixin, EvaluationMixin, PassMixin)
    ppo: Any = PpoSetup(None, None, None)  # type: ignore[arg-type]
    kept = RewardSetup(stack=RewardStack([]), keep_groups=KeepGroups("correct", 3))
    for extensions, between in (
        (Extensions(rewards=RewardSetup(stack=RewardStack([]))), guards),
        (Extensions(rewards=kept), (*guards, SamplingMixin)),
        (Extensions(rewards=RewardSetup(stack=RewardStack([])), ppo=ppo), (PpoMixin, *guards)),
    ):
        ours = extended_class(trainer, extensions)
        assert ours.__name__ == trainer.__name__
        assert ours.__mro__[1:] == (*OUTER, *between, *INNER, *trainer.__mro__)


def test_a_trainer_of_rows_has_three_mixins() -> None:
    ours = extended_class(trl.SFTTrainer, Extensions())
    expected = (LoggingMixin, CheckpointMixin, GuardMixin, ExtendedTrainer, *trl.SFTTrainer.__mro__)
    assert ours.__mro__[1:] == expected


@pytest.mark.parametrize("trainer", OF_ROWS)
def test_rows_are_prepared_by_one_method_whose_third_argument_has_the_limit_and_whose_last_is_the_name(trainer) -> None:
    """trainers/logging_mixin.py calls it once more without the limit, and with packing off where that is the fourth.
    Batches have ids and a mask beside them.
    """
    more = ["packing", "formatting_func"] if trainer is trl.SFTTrainer else []
    expected = ["self", "dataset", "processing_class", "args", *more, "dataset_name"]
    assert parameters(trainer._prepare_dataset) == expected
    calls = re.findall(r"self\._prepare_dataset\(([^)]*)\)", inspect.getsource(trainer.__init__))
    assert calls
    assert not any("=" in call for call in calls)  # by position
    assert "args.max_length" in inspect.getsource(trainer._prepare_dataset)
    module = inspect.getsource(inspect.getmodule(trainer))
    for name in ("input_ids", "attention_mask"):
        assert f'output["{name}"] = ' in module


@pytest.mark.parametrize("trainer", [*OF_ROWS, *ON_POLICY, LoggingMixin])
def test_a_loss_is_asked_for_a_model_and_a_batch(trainer: Any) -> None:
    assert parameters(trainer.compute_loss)[:3] == ["self", "model", "inputs"]


def missing_from_trl(names: set[str]) -> set[str]:
    """Return the names that no trainer below our mixins defines or sets on itself."""
    classes = {one for trainer in (*ON_POLICY, trl.SFTTrainer) for one in trainer.__mro__ if one is not object}
    source = "\n".join(inspect.getsource(one) for one in classes)
    return {name for name in names if not re.search(rf"def {name}\b|\bself\.{name}\b", source)}


def test_every_name_of_trl_that_our_mixins_use_is_there() -> None:
    source = "\n".join(inspect.getsource(one) for one in MIXINS)
    ours = {name for one in (ExtendedTrainer, *MIXINS) for name in (*vars(one), *one.__annotations__)}
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


def test_accelerate_asks_torch_distributed_for_its_collectives_when_it_needs_them() -> None:
    """An imported name would still be the function without timing."""
    source = inspect.getsource(operations)
    imported = " ".join(re.findall(r"from torch\.distributed import (.*)", source))
    assert not set(_COLLECTIVES) & set(re.findall(r"\w+", imported))
    for name in ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "broadcast"):
        assert name in _COLLECTIVES
        assert f"torch.distributed.{name}" in source


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
