"""Compare the rows of the tables with the libraries, and test what is computed from a row."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
import trl
from accelerate import DistributedType
from transformers.generation import logits_process as warpers
from trl.trainer import dpo_trainer, grpo_trainer

from rlhf_cli.config.trl_args import fields_of, package_dir
from rlhf_cli.tables.passes import DEFAULTS_IF_OMITTED, why_config_not_packed, why_values_not_packed
from rlhf_cli.tables.resume_keys import RESUME_KEYS, ResumeRow, row_of
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.tables.trl_trainers import CLIPPED_PPO_LOSSES, POLICY_LOSSES, SEQUENCE_LOSSES, TRAINERS, UNSUPPORTED
from rlhf_cli.tables.trl_values import CHOICES, RANGES, REWARD_ARGUMENTS, SIZES, Range, _is_malformed
from rlhf_cli.trainers.ppo.critic import KlPenalty

Try = Callable[[float], object]


def adam(**named: Any) -> Try:
    """AdamW with one argument of its own, where `value` is what is tried."""
    name, fill = next(iter(named.items()))
    return lambda value: torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], **{name: fill(value)})


def arguments(**named: Any) -> Try:
    name, more = next(iter(named.items()))
    return lambda value: transformers.TrainingArguments("x", use_cpu=True, report_to=[], **{name: value, **more})


def length(value: float) -> None:
    """A generation of no token ends in an error of transformers' own, before its first pass."""
    config = transformers.GenerationConfig(max_new_tokens=int(value))
    config.validate()


TRIED: dict[str, Try] = {
    "temperature": lambda value: warpers.TemperatureLogitsWarper(float(value)),
    "top_p": lambda value: warpers.TopPLogitsWarper(float(value)),
    "min_p": lambda value: warpers.MinPLogitsWarper(float(value)),
    "repetition_penalty": lambda value: warpers.RepetitionPenaltyLogitsProcessor(float(value)),
    "max_completion_length": length,
    "max_new_tokens": length,
    "warmup_steps": arguments(warmup_steps={}),
    "adam_beta1": adam(betas=lambda value: (float(value), 0.9)),
    "adam_beta2": adam(betas=lambda value: (0.9, float(value))),
    "adam_epsilon": adam(eps=lambda value: value),
    "weight_decay": adam(weight_decay=lambda value: value),
    "dataloader_num_workers": lambda value: torch.utils.data.DataLoader([1], num_workers=int(value)),
    "logging_steps": arguments(logging_steps={}),
}
"""Argument -> what takes it, or ends in a ValueError."""
_WHOLE = ("max_completion_length", "max_new_tokens")
_STRICTER = {("top_p", False, False), ("logging_steps", False, True), ("dataloader_num_workers", True, False)}
"""(Argument, whether above 0, whether below 0) that the library accepts: the share 0 keeps one token, transformers only
refuses a 0; and processes that would be started."""


@pytest.mark.parametrize("bounds", [row for row in RANGES if row.name in TRIED], ids=lambda row: row.name)
def test_bounds_are_those_of_the_library(bounds: Range) -> None:
    """At 0, 1 and a bound, a little above it and a little below it the library takes what the row holds to."""
    step = 1.0 if bounds.name in (*_WHOLE, "dataloader_num_workers", "warmup_steps") else 1e-3
    for bound in {0, 1, bounds.at_least, bounds.above, bounds.at_most, bounds.below} - {None}:
        for value in (bound - step, bound, bound + step):
            if (bounds.name, value > 0, value < 0) in _STRICTER:
                continue
            if bounds.holds(value):
                TRIED[bounds.name](value)
            else:
                with pytest.raises(ValueError, match=r"\w"):
                    TRIED[bounds.name](value)


BY_HAND = {
    "learning_rate": ((0, 1e-9, 9), (-1e-9, -0.0)),
    "top_k": ((0, 50), (-1,)),
    "dataloader_prefetch_factor": ((1, 2), (0, -1)),
    "max_steps": ((1, 2), (0, -1)),  # -1 is taken for not given
    **dict.fromkeys(("beta", "epsilon", "epsilon_high", "max_grad_norm"), ((0, 0.5, 2), (-1e-9,))),
    **dict.fromkeys(
        (*SIZES, "ref_model_sync_steps", "num_beams", "max_length", "pad_to_multiple_of"), ((1, 2), (0, -1))
    ),
    **dict.fromkeys(("ref_model_mixup_alpha", "top_entropy_quantile"), ((0, 0.5, 1), (-1e-9, 1.001))),
    "num_return_sequences": ((1,), (0, 2)),
    "vllm_group_port": ((1, 65535), (0, 65536)),
    "label_smoothing": ((0, 0.499), (-1e-9, 0.5)),
    **dict.fromkeys(("eval_steps", "save_steps"), ((1e-3, 0.5, 1, 2.0, 9), (0, -1, 1.5))),
}
"""Argument without a library that ends at once -> numbers within its bounds, and beyond."""


@pytest.mark.parametrize("bounds", [row for row in RANGES if row.name not in TRIED], ids=lambda row: row.name)
def test_bounds_that_no_library_checks(bounds: Range) -> None:
    inside, outside = BY_HAND[bounds.name]
    assert [bounds.holds(value) for value in inside] == [True] * len(inside)
    assert [bounds.holds(value) for value in outside] == [False] * len(outside)


def test_bounds_in_words() -> None:
    assert all(row.why for row in RANGES)
    told = {row.name: row.in_words() for row in RANGES}
    assert (told["top_p"], told["adam_beta1"]) == ("above 0 and at most 1", "at least 0 and below 1")
    assert Range("x").holds(-1e9)


@pytest.mark.parametrize("name", TRAINERS)
def test_the_row_of_a_trainer_agrees_with_trl(name: str) -> None:
    row, module = TRAINERS[name], importlib.import_module(TRAINERS[name].module)
    made = getattr(module, name)
    source = inspect.getsource(inspect.getmodule(made))  # type: ignore[arg-type]
    assert hasattr(module, row.config_class)
    assert row.generates == hasattr(made, "_calculate_rewards")
    assert ("rewards" in row.sections) == ("truncation" in row.sections) == row.generates
    assert bool(row.learns_from) == bool(row.expected_columns) == (not row.generates)
    assert (row.advantages is not None) == row.generates
    assert (row.answers_up_to in fields_of(name)) == ("GenerationConfig(" in source and not row.generates)
    assert row.same_vocabulary == ("requires a shared vocabulary" in source)
    assert issubclass(made, trl.RewardTrainer) == (row.trains == "reward model")
    assert row.can_have_critic == (name == "GRPOTrainer")
    assert row.splits_pairs == (name == "KTOTrainer")
    # Log-probabilities in chunks; the loss of distillation has chunks of its own, GMPO is GRPO's subclass.
    is_chunked = "add_fused_lm_head(" in source or name in ("DistillationTrainer", "GMPOTrainer")
    assert row.bounds_logits == is_chunked
    for column in ("tools", "chat_template_kwargs"):
        assert f'example.get("{column}"' not in source or column in row.along
    assert ("margin" in row.along) == ('"margin"' in source)
    assert row.copies_policy == ("ref_model_path" in source or "self.teacher_model = self.model" in source)
    if row.measured is not None:
        assert all(f'"{column}"' in source for column in (*row.measured[0], *row.measured[1]))
        assert row.measured[0] == (("prompt_ids",) if '"prompt_ids"' in source else ())
    models = {one for one in inspect.signature(made).parameters if one.endswith("_model")} - {"ref_model"}
    assert models == ({"teacher_model"} if "teacher" in row.sections else set())


def test_trainers_that_differ_from_the_others() -> None:
    unmeasured = {name for name, row in TRAINERS.items() if not row.generates and row.measured is None}
    assert unmeasured == {f"{name}Trainer" for name in ("ORPO", "CPO", "Distillation", "GKD", "IWOPD", "SDFT")}
    texts = {name.removesuffix("Trainer"): row.texts_per_row for name, row in TRAINERS.items() if row.texts_per_row > 1}
    assert texts == {"DPO": 2, "ORPO": 2, "CPO": 2, "TPO": 3, "Reward": 2}
    assert [name for name, row in TRAINERS.items() if row.kl_in_reward] == ["RLOOTrainer"]
    assert [name for name, row in TRAINERS.items() if row.advantages == "token"] == ["GRPOTrainer"]
    assert {name for name, row in TRAINERS.items() if row.loss_divisor == "rows"} == {"RLOOTrainer", "GMPOTrainer"}
    assert TRAINERS["GRPOTrainer"].sections == {"rewards", "truncation", "critic", "kl"}
    assert TRAINERS["RewardTrainer"].sections == {"reward_model"}


def test_every_trainer_of_trl_runs_or_is_refused_by_name() -> None:
    """A new release of TRL's may bring one: this test fails until a row covers it."""
    files = [*package_dir("trl").glob("trainer/*.py"), *package_dir("trl").glob("experimental/*/*.py")]
    classes = {name for file in files for name in re.findall(r"^class ([A-Za-z0-9]+Trainer)\b", file.read_text(), re.M)}
    assert classes == {*TRAINERS, *UNSUPPORTED}
    assert all(row.why and row.instead for row in UNSUPPORTED.values())


@pytest.mark.parametrize(
    ("row", "key", "fits"),
    [
        ("model", "model", True), ("model", "model.path", True), ("model", "models", False), ("model", "a.b", False),
        ("trainer.args.save_*", "trainer.args.save_steps", True), ("trainer.args.save_*", "trainer.args.save", False),
        ("a.*", "a.b.c", True), ("a.b", "a", False), ("a.b c.*", "c.d", True), ("a.b c.*", "a.d", False),
    ],
)  # fmt: skip
def test_a_row_applies_to_a_key_and_the_keys_below_it(row: str, key: str, *, fits: bool) -> None:
    assert ResumeRow(row, "taken", "").fits(key) is fits


@pytest.mark.parametrize(
    ("key", "effect", "only_if"),
    [
        ("trainer.args.max_steps", "taken", "steps do not shape the run"),
        ("trainer.args.save_only_model", "taken", None),
        ("trainer.args.save_steps", "taken", "no best is chosen"),
        ("trainer.args.learning_rate", "by name", "steps alone set the learning rate"),
        ("trainer.args.temperature", "by name", None),
        ("trainer.args.optim_args", "never", None),
        ("trainer.name", "never", None),
        ("model.trust_remote_code", "taken", None),
        ("launch.processes", "taken", "as many processes"),
        ("rewards.a.weight", "by name", None),
    ],
)
def test_the_first_matching_row_counts(key: str, effect: str, only_if: str | None) -> None:
    row = row_of(key)
    assert (row.effect, row.only_if) == (effect, only_if)
    assert row.else_never == (key in ("launch.processes", "trainer.args.learning_rate"))
    assert row.reason
    assert RESUME_KEYS[-1].keys == ""


LLAMA: dict[str, object] = {"model_type": "llama"}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (LLAMA, None),
        ({**LLAMA, "rope_scaling": {"type": "dynamic"}}, "(dynamic) change with the longest row"),
        ({**LLAMA, "rope_scaling": {"type": "dynamic", "rope_type": "linear"}}, None),
        ({**LLAMA, "rope_parameters": {"rope_type": "longrope"}, "rope_scaling": {"type": "linear"}}, "(longrope)"),
        ({**LLAMA, "rope_parameters": {"rope_type": "default"}}, None),
        ({**LLAMA, "layer_types": ["full_attention"] * 2}, None),
        ({**LLAMA, "layer_types": ("full_attention", "sliding_attention", "chunked")},
         "layers of chunked and sliding_attention"),
        ({"model_type": "mistral"}, "sliding window of 4096 tokens"),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral", "sliding_window": 16}, "sliding window of 16 tokens"),
        ({"model_type": "qwen2", "sliding_window": 16}, None),
        ({"model_type": "qwen3", "sliding_window": 16}, None),
        ({"model_type": "smollm3", "sliding_window": 16}, None),
        ({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True}, "sliding window of 16 tokens"),
        ({"model_type": "gpt2"}, "its positions are learned, not rotary"),
        ({**LLAMA, "rope_theta": None}, "not rotary"),
    ],
)  # fmt: skip
def test_configurations_that_prevent_packing(config: dict[str, object], why: str | None) -> None:
    found = why_config_not_packed(config, "sdpa")
    assert found is None if why is None else found is not None and why in found
    assert "its attention is eager" in str(why_config_not_packed(config, "eager"))


def test_defaults_of_omitted_keys_are_transformers() -> None:
    for model_type, values in DEFAULTS_IF_OMITTED.items():
        config = transformers.AutoConfig.for_model(model_type)
        for key, value in values.items():
            if key == "rope_theta":
                taken = config.rope_parameters["rope_theta"]
                assert bool(taken) == bool(value)
                assert taken == value or model_type in ("smollm3",)
            else:
                assert getattr(config, key) == value
    with pytest.raises(KeyError):
        why_config_not_packed({"model_type": "another"}, "sdpa")
    assert why_values_not_packed({"rope_parameters": {"rope_type": "default"}}, "sdpa") is None


def test_strategies_by_their_stage() -> None:
    """ZeRO's stages are in its names, and FSDP 2 shards what stage 3 does (arXiv 1910.02054, 2304.11277)."""
    assert {name: (row.zero_stage, row.memory_stage) for name, row in STRATEGIES.items()} == {
        **{"ddp": (None, 0), "fsdp2": (None, 3)},
        **{f"zero{stage}": (stage, stage) for stage in (1, 2, 3)},
    }
    assert [name for name, row in STRATEGIES.items() if not row.runs_on_cpu] == ["fsdp2"]
    refused = [set(STRATEGIES[f"zero{stage}"].conflicts) for stage in (1, 2, 3)]
    assert refused[0] == refused[1] == refused[2] - {"model.quantize"}
    assert len(refused[0]) == 3
    more = {"fsdp2": {*refused[2], "rollout=continuous", "teacher"}, "ddp": {"offload"}}
    assert {name: set(STRATEGIES[name].conflicts) for name in more} == more
    assert all(hasattr(DistributedType, kind) for row in STRATEGIES.values() for kind in row.distributed_types)


def test_a_coefficient_adapts_within_bounds() -> None:
    # Ziegler et al.: coef * (1 + clip(KL / target - 1, -0.2, 0.2) * n / horizon), here with a KL far above and below
    found = [KlPenalty("reward", 2.0, target=1.0, horizon=10).updated(kl, 1).coef for kl in (9.0, 0.0)]
    assert found == pytest.approx([2.04, 1.96])


def test_the_arguments_of_a_reward_are_those_that_trl_gives() -> None:
    source = inspect.getsource(trl.GRPOTrainer._calculate_rewards)
    given = set(re.findall(r'reward_kwargs\["(\w+)"\] = ', source)) | set(re.findall(r"(\w+)=\w+,? ?", source))
    assert set(REWARD_ARGUMENTS) <= given


def test_normalisers_are_those_of_trl() -> None:
    """TRL branches on the loss once more where it divides; the table names what stands in each branch."""
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    normalisation = source[source.index('if self.loss_type in ["grpo", "sapo"]:') :]
    branch = r'if self\.loss_type (?:in|==) (\[[^\]]*\]|"\w+"):\n(.*?)(?=\n        el)'
    branches = re.findall(branch, normalisation, re.DOTALL)[:5]
    assert sorted(re.findall(r"\w+", " ".join(names for names, _ in branches))) == sorted(POLICY_LOSSES)
    divided_by = {
        "max_length": "self.max_completion_length",
        "window": 'inputs["num_items_in_batch"]',
        "micro-batch": "mask.sum().clamp",
        "row": "mask.sum(-1)",
        "rows": "mask).sum(-1).mean()",
    }
    for names, body in branches:
        for name in re.findall(r"\w+", names):
            assert divided_by[POLICY_LOSSES[name]] in body, name
    by_sequence = re.findall(r'args.loss_type == "(\w+)" and args.importance_sampling_level != "sequence"',
                             inspect.getsource(trl.GRPOTrainer.__init__))  # fmt: skip
    assert by_sequence == [*SEQUENCE_LOSSES]
    clipped = re.search(r"self\.loss_type in (\[[^\]]*\]):\n +coef_2 = torch\.clamp\(", source)
    assert clipped is not None
    assert set(CLIPPED_PPO_LOSSES) == {name for name in ast.literal_eval(clipped[1]) if name not in by_sequence}


def listed(config: Any, name: str) -> set[str]:
    """The choices that a field of a config class has in its metadata."""
    return set(next(field for field in dataclasses.fields(config) if field.name == name).metadata["choices"])


def test_choices_are_those_that_the_losses_compare_and_list() -> None:
    level = set(re.findall(r'self\.importance_sampling_level == "(\w+)"', inspect.getsource(grpo_trainer)))
    assert set(CHOICES["importance_sampling_level"]) == level == {"token", "sequence"}
    source = re.sub(r'"\n\s*"', "", inspect.getsource(dpo_trainer))
    assert set(CHOICES["f_divergence_type"]) == set(re.findall(r'self\.f_divergence_type == "(\w+)"', source))
    match = re.search(r"Unknown loss type: \{loss_type\}\. Should be one of (\[.*?\])", source)
    assert match is not None
    assert set(CHOICES["DPOConfig.loss_type"]) == set(ast.literal_eval(match[1]))


def test_choices_are_those_in_the_metadata_of_fields() -> None:
    arguments = transformers.TrainingArguments
    assert set(CHOICES["truncation_mode"]) == listed(trl.DPOConfig, "truncation_mode")
    assert set(CHOICES["truncation_mode"]) == listed(trl.SFTConfig, "truncation_mode")
    assert set(CHOICES["packing_strategy"]) - {"bfd-requeue"} == listed(trl.SFTConfig, "packing_strategy")
    assert "bfd-requeue" in inspect.getsource(trl.SFTConfig)  # deprecated, and still taken
    assert set(CHOICES["KTOConfig.train_sampling_strategy"]) == listed(trl.KTOConfig, "train_sampling_strategy")
    for name in ("dataloader_multiprocessing_context", "log_level", "log_level_replica"):
        assert set(CHOICES[name]) == listed(arguments, name)
    seen = re.search(r"Must be one of (\[[^\]]*\])", arguments.__doc__ or "")
    assert seen is not None
    assert set(CHOICES["include_num_input_tokens_seen"]) == set(ast.literal_eval(seen[1]))


def test_one_pair_without_its_sign_makes_optim_args_unreadable() -> None:
    texts = (None, "a=1", "a=1,b=2", "a", "a=1,b", "a=1=2")
    assert [_is_malformed(text) for text in texts] == [False, False, False, True, True, True]
