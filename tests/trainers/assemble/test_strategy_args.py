"""A strategy in TRL's arguments: taken by TRL, and by what accelerate makes of them."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import CPUOffloadPolicy
from trl import GRPOConfig

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.trainers.assemble import trl_config as trl_config_module
from rlhf_cli.trainers.assemble.policy_loading import quantization
from rlhf_cli.trainers.assemble.trl_config import (
    precision_args,
    rollout_args,
    start_process_group,
    strategy_args,
    trl_config,
)

CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 8, "report_to": "none"}


def args_of(**launch: object) -> dict[str, Any]:
    return strategy_args(Launch.model_validate(launch))


@pytest.mark.parametrize("offload", [False, True])
def test_accelerate_s_plugin_is_as_asked(tmp_path, monkeypatch: pytest.MonkeyPatch, offload: bool) -> None:
    """What transformers makes of the arguments, given to accelerate's own plugin: version 2, full state dict,
    wrapped by the model's layers, resharded after the forward pass.
    """
    monkeypatch.setenv("FSDP_VERSION", "1")  # accelerate's default
    given = args_of(strategy="fsdp2", offload=offload)
    assert given.pop("ddp_backend", None) == ("cuda:nccl,cpu:gloo" if offload else None)
    config = GRPOConfig(output_dir=str(tmp_path), **CPU, **given)
    plugin = FullyShardedDataParallelPlugin(**config.fsdp_plugin_args)
    assert plugin.fsdp_version == 2
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.reshard_after_forward is True
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) is offload
    assert plugin.cpu_ram_efficient_loading is False  # every rank loads


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("offload", [False, True])
def test_the_stage_and_what_is_offloaded(name: str, offload: bool) -> None:
    config = args_of(strategy=name, offload=offload)["deepspeed"]
    zero = config["zero_optimization"]
    assert zero["stage"] == STRATEGIES[name].zero_stage
    assert config["zero_force_ds_cpu_optimizer"] is False  # the optimizer that was configured takes the steps
    offloaded = {key for key in zero if key.startswith("offload_")}
    params = {"offload_param"} if name == "zero3" else set()
    assert offloaded == ({"offload_optimizer"} | params if offload else set())
    assert all(zero[key] == {"device": "cpu", "pin_memory": True} for key in offloaded)
    assert zero["overlap_comm"] is zero["contiguous_gradients"] is True
    saves_whole = zero.get("stage3_gather_16bit_weights_on_model_save")
    assert saves_whole is (True if name == "zero3" else None)


def test_transformers_fills_in_every_number(tmp_path) -> None:
    """transformers' own reader of such a dictionary; the expected numbers are the arguments, worked by hand."""
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    class Reader(HfTrainerDeepSpeedConfig, HfDeepSpeedConfig):
        """Without DeepSpeed transformers leaves out the base that accelerate has all the same."""

    config = args_of(strategy="zero3")["deepspeed"]
    args = GRPOConfig(output_dir=str(tmp_path), **CPU, max_grad_norm=0.7, gradient_accumulation_steps=3)
    filled = Reader.__new__(Reader)
    filled.config, filled.mismatches, filled._dtype = config, [], None
    filled.trainer_config_process(args)
    assert filled.config["train_micro_batch_size_per_gpu"] == 8
    assert filled.config["train_batch_size"] == 8 * 3
    assert filled.config["gradient_accumulation_steps"] == 3
    assert filled.config["gradient_clipping"] == 0.7
    assert filled.config["bf16"]["enabled"] is False
    assert filled.mismatches == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_file_of_accelerate_s_is_not_overruled(name: str) -> None:
    assert args_of(strategy=name, accelerate_config="mine.yaml") == {}


def rollout_of(*words: str) -> dict[str, object]:
    return rollout_args(prepare(["exp=quickstart", *words]).experiment)


@pytest.mark.usefixtures("place")
def test_who_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rollout_of() == {}
    assert rollout_of("launch.rollout=continuous") == {"use_transformers_continuous_batching": True}
    assert rollout_of("launch.rollout=vllm") == {"use_vllm": True, "vllm_mode": "colocate"}
    monkeypatch.setenv("RLHF_VLLM_URL", "http://127.0.0.1:8123")
    monkeypatch.setenv("RLHF_VLLM_GROUP_PORT", "777")
    server = {"use_vllm": True, "vllm_mode": "server"}
    found = {"vllm_server_base_url": "http://127.0.0.1:8123", "vllm_group_port": 777}
    own = ("launch.rollout=vllm_server", "launch.rollout_gpus=1")
    assert rollout_of(*own) == server | found
    found.pop("vllm_group_port")
    assert rollout_of(*own, "trainer.args.vllm_group_port=5") == server | found
    theirs = ("launch.rollout=vllm_server", "trainer.args.vllm_server_base_url=http://host:1")
    assert rollout_of(*theirs) == server


@pytest.mark.parametrize("computes", [True, False])
def test_a_gpu_that_emulates_bfloat16_trains_in_float32(monkeypatch: pytest.MonkeyPatch, *, computes: bool) -> None:
    """torch counts a T4's emulation as support by default; bf16 is slower there than float32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: computes or including_emulation
    )
    asked: Any = SimpleNamespace(launch=Launch(device="auto", precision="auto"))
    assert precision_args(asked) == {"use_cpu": False, "bf16": computes, "fp16": False}
    for precision in ("float32", "bf16", "fp16"):
        asked.launch = Launch(device="cpu", precision=precision)
        assert precision_args(asked) == {"use_cpu": True, "bf16": precision == "bf16", "fp16": precision == "fp16"}


def test_a_gpu_that_is_not_there_is_not_replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        precision_args(cast(Experiment, SimpleNamespace(launch=Launch(device="cuda"))))
    assert (caught.value.where, caught.value.hint) == ("launch.device", "launch=cpu")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("+exp=quickstart", "truncation=eos_penalty", "seed=7", "model.dtype=bfloat16"),
            {
                "reward_weights": [1.0] * 4,
                "scale_rewards": "group",
                "model_init_kwargs": {"dtype": "bfloat16", "revision": None},
                "seed": 7,
                "disable_tqdm": True,
                "report_to": [],
            },
        ),
        (("+exp=quickstart", "aggregate=normalize_then_sum"), {"reward_weights": [1.0] * 3, "scale_rewards": "batch"}),
        (("+exp=toy_ppo",), {"disable_dropout": True}),
        (("+exp=toy_ppo", "~trainer.args.disable_dropout"), {"disable_dropout": True}),
        (("+exp=toy_ppo", "+trainer.args.disable_dropout=false"), {"disable_dropout": False}),
        (("+exp=quickstart",), {"disable_dropout": False}),
        (("+exp=toy_reward", "reward_model.center=0.5"), {"center_rewards_coefficient": 0.5}),
        (("+exp=toy_reward", "reward_model.center=0"), {"center_rewards_coefficient": None}),
        (
            ("trainer=gkd", "data=toy_demonstrations", "model=tiny", "teacher.path=big", "teacher.dtype=bfloat16"),
            {"teacher_model_init_kwargs": {"dtype": "bfloat16", "revision": None}},
        ),
        (
            ("+exp=toy_sft", "model.quantize=4bit", "model.lora.r=2"),
            {"model_init_kwargs": {"dtype": "auto", "revision": None, "quantization_config": quantization("4bit")}},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_the_sections_put_into_trl_s_config(
    place: Path, words: tuple[str, ...], expected: dict[str, object]
) -> None:
    made = vars(trl_config(prepare([*words, "launch=cpu"]).experiment, RunFolder(place / "run")))
    assert {name: made[name] for name in expected} == expected


def test_quantisation_is_that_of_qlora_and_spares_heads() -> None:
    """arXiv 2305.14314: NormalFloat of 4 bits, quantised twice, and products in bfloat16."""
    four, eight = quantization("4bit"), quantization("8bit")
    assert (four.load_in_4bit, four.bnb_4bit_quant_type, four.bnb_4bit_use_double_quant) == (True, "nf4", True)
    assert four.bnb_4bit_compute_dtype is torch.bfloat16
    assert (eight.load_in_8bit, eight.load_in_4bit) == (True, False)
    assert four.llm_int8_skip_modules == eight.llm_int8_skip_modules == ["lm_head", "score", "classifier"]


@pytest.mark.parametrize(("strategy", "needs_deepspeed"), [("ddp", False), ("zero2", True)])
def test_ranks_on_a_cpu_join_before_the_config_is_made(
    place: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, needs_deepspeed: bool
) -> None:
    def join(trainer: Trainer, *, deepspeed: bool) -> None:
        assert (trainer.name, deepspeed) == ("grpo", needs_deepspeed)
        raise TimeoutError

    monkeypatch.setattr(trl_config_module, "start_process_group", join)
    experiment = prepare(["+exp=quickstart", "launch=cpu", f"launch.strategy={strategy}"]).experiment
    with pytest.raises(TimeoutError):
        trl_config(experiment, RunFolder(place / "run"))


# gloo waits for a hanging rank as long as `ddp_timeout` says: transformers tells it to every backend but gloo.


def test_what_torch_and_deepspeed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed starts the group itself, also for a single process: ZeRO-3 reads the number of ranks from it."""
    told = Mock()
    comm = SimpleNamespace(init_distributed=told.deepspeed)
    monkeypatch.setattr(torch.distributed, "init_process_group", told.torch)
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(comm=comm))
    typed, default = (Trainer(name="grpo", trl="GRPOTrainer", args=args) for args in ({"ddp_timeout": 60}, {}))
    monkeypatch.setenv("WORLD_SIZE", "2")
    start_process_group(typed)
    start_process_group(default)
    monkeypatch.setenv("WORLD_SIZE", "1")
    start_process_group(typed)
    start_process_group(typed, deepspeed=True)
    minute, half_an_hour = timedelta(seconds=60), timedelta(seconds=1800)
    assert told.mock_calls == [
        call.torch("gloo", timeout=minute),
        call.torch("gloo", timeout=half_an_hour),
        call.deepspeed("gloo", auto_mpi_discovery=False, timeout=minute),
    ]
