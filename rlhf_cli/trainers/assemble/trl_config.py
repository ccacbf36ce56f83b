"""Build TRL's own config object of an experiment, and name the arguments that a library refuses while it builds.

FSDP's version is explicit because accelerate's own default is 1. The state dict is full, so that the saved model loads
without the run. DeepSpeed's numbers are "auto": transformers fills them in from the arguments of all strategies.

`TrainingArguments._setup_devices` (transformers 5.23) omits the timeout if `use_cpu` is set, and torch then waits
1800 s for a rank that hangs. accelerate uses an existing process group, but on a CPU it does not pass it to DeepSpeed:
each rank of ZeRO-3 would behave as if it were alone.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

import torch
from torch import distributed
from transformers import TrainerCallback

import rlhf_cli
from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError, ModelError, RlhfError
from rlhf_cli.plan.launch_plan import GROUP_PORT_VARIABLE, URL_VARIABLE
from rlhf_cli.rewards.stack.reward_functions import import_function
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.trainers.assemble.policy_loading import quantization

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlArguments


def import_trainer(section: Trainer) -> ModuleType:
    """Return TRL's module with the trainer and its config class, both imported: TRL does so on attribute access."""
    # TRL warns about experimental trainers; naming one in the configuration counts as consent.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    module = importlib.import_module(section.row.module)
    for name in (section.row.config_class, section.trl):
        getattr(module, name)
    return module


def trainer_class_of(section: Trainer) -> type:
    """Return the trainer's class. Raise ConfigError if the user's class does not inherit from TRL's."""
    trl_class: type = getattr(import_trainer(section), section.trl)
    if section.own_class is None:
        return trl_class
    advice = "trainer.trl names the class of TRL's that yours inherits from"
    return _own_class(section.own_class, trl_class, "trainer.class", advice)


def callbacks_of(section: Trainer) -> list[TrainerCallback]:
    """Return the user's callbacks. Raise ConfigError for a class that is no TrainerCallback of transformers."""
    named = enumerate(section.callbacks)
    return [_own_class(own, TrainerCallback, f"trainer.callbacks.{number}")() for number, own in named]


def _own_class(named: str, base: type, where: str, advice: str | None = None) -> type:
    own: object = import_function(named, where=where)
    if not (isinstance(own, type) and issubclass(own, base)):
        what, expected = f"this is no {base.__name__}", f"class {getattr(own, '__name__', 'Mine')}({base.__name__})"
        raise ConfigError(what, where=where, got=named, expected=expected, advice=advice)
    return own


def strategy_args(launch: Launch) -> dict[str, object]:
    """Return the arguments that make a trainer shard its model; empty for DDP."""
    if launch.accelerate_config is not None:  # it is in the environment of the ranks; arguments would override it
        return {}
    stage = STRATEGIES[launch.strategy].zero_stage
    if stage is not None:
        return {"deepspeed": _deepspeed(stage, offload=launch.offload)}
    if launch.strategy != "fsdp2":
        return {}
    fsdp2: JsonTree = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "state_dict_type": "FULL_STATE_DICT",
        "cpu_offload": launch.offload,
        "cpu_ram_efficient_loading": False,  # every rank loads: TRL makes its reference model and adapters after it
    }
    backend = {"ddp_backend": "cuda:nccl,cpu:gloo"} if launch.offload else {}  # sums norms of gradients on the CPU
    return {"fsdp": True, "fsdp_config": fsdp2, **backend}


def _deepspeed(stage: int, *, offload: bool) -> JsonTree:
    zero: JsonTree = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto"}
    if stage == 3:
        zero |= {f"stage3_{name}": "auto" for name in ("prefetch_bucket_size", "param_persistence_threshold")}
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    for name in ("optimizer", *(["param"] if stage == 3 else [])) if offload else ():
        zero[f"offload_{name}"] = {"device": "cpu", "pin_memory": True}
    filled_in = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size")
    return {
        "zero_optimization": zero,
        **{name: {"enabled": "auto"} for name in ("bf16", "fp16")},
        **dict.fromkeys((*filled_in, "train_micro_batch_size_per_gpu"), "auto"),
        # The Trainer creates the configured optimizer, also if it is offloaded.
        "zero_force_ds_cpu_optimizer": False,
    }


def rollout_args(experiment: Experiment) -> dict[str, object]:
    """Return the arguments that select the generation backend; empty if the model itself generates."""
    launch = experiment.launch
    args: dict[str, object] = {}
    if launch.rollout == "continuous":
        args["use_transformers_continuous_batching"] = True
    if launch.rollout in ("vllm", "vllm_server"):
        args |= {"use_vllm": True, "vllm_mode": "colocate" if launch.rollout == "vllm" else "server"}
    if launch.rollout == "vllm_server" and launch.rollout_gpus:  # an external server is configured in `trainer.args`
        # Known only after the run's own server has started: the launcher puts both into the environment of the ranks.
        if url := os.environ.get(URL_VARIABLE):
            args["vllm_server_base_url"] = url
        if "vllm_group_port" not in experiment.trainer.args and (port := os.environ.get(GROUP_PORT_VARIABLE)):
            args["vllm_group_port"] = int(port)
    return args


def start_process_group(trainer: Trainer, *, deepspeed: bool = False) -> None:
    """Join the other ranks on a CPU within `ddp_timeout` seconds, unless done; one process joins for DeepSpeed only."""
    seconds = trainer.whole("ddp_timeout")
    assert seconds is not None
    timeout = timedelta(seconds=seconds)
    if deepspeed:
        from deepspeed import comm

        comm.init_distributed("gloo", auto_mpi_discovery=False, timeout=timeout)
    elif os.environ.get("WORLD_SIZE", "1") != "1" and not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=timeout)


def trl_config(experiment: Experiment, folder: RunFolder) -> TrlArguments:
    """Return TRL's own config object. Raise ConfigError with TRL's message if it rejects a value."""
    trainer, model = experiment.trainer, experiment.model
    model_init_kwargs: dict[str, object] = {"dtype": model.dtype, "revision": model.revision}
    if model.quantize is not None:
        model_init_kwargs["quantization_config"] = quantization(model.quantize)
    config_class: Callable[..., TrlArguments] = getattr(import_trainer(trainer), trainer.row.config_class)
    reserved: dict[str, object] = {
        "output_dir": str(folder.path),
        "run_name": folder.label,
        "seed": experiment.seed,
        "report_to": "none",  # rlhf_cli/runs/tracking mirrors the run folder; TRL's own would send all arguments
        "disable_tqdm": True,
        "model_init_kwargs": model_init_kwargs,
        "trust_remote_code": model.trust_remote_code,
        **precision_args(experiment),
        **strategy_args(experiment.launch),
        **rollout_args(experiment),
    }
    if experiment.rewards:
        # The stack sets them before every batch; TRL requires one per reward.
        reserved["reward_weights"] = [1.0] * (len(experiment.rewards) + experiment.truncation.rule.changes_total)
    if experiment.aggregate == "normalize_then_sum" and hasattr(config_class, "scale_rewards"):
        # The stack z-scores each reward within its group; TRL still has to divide by the batch's deviation.
        reserved["scale_rewards"] = "batch"
    if (teacher := experiment.teacher) is not None:
        reserved["teacher_model_init_kwargs"] = {"dtype": teacher.dtype, "revision": teacher.revision}
    if experiment.reward_model is not None:
        reserved["center_rewards_coefficient"] = experiment.reward_model.center or None
    if reserved["use_cpu"]:
        start_process_group(trainer, deepspeed="deepspeed" in reserved)
    try:
        if experiment.critic is not None:
            from rlhf_cli.trainers.assemble.ppo_setup import ppo_args

            return ppo_args(experiment, config_class, reserved)
        return config_class(**reserved, **trainer.args)
    except (ValueError, TypeError) as error:
        raise refusal(trainer, error) from error


def precision_args(experiment: Experiment) -> dict[str, bool]:
    """Return the precision flags; `auto` is bf16 if the device computes in it (a T4 only emulates it), else float32."""
    use_cpu = experiment.launch.device == "cpu" or not torch.cuda.is_available()
    if experiment.launch.device == "cuda" and use_cpu:
        raise ConfigError("there is no CUDA device here", where="launch.device", got="cuda", hint="launch=cpu")
    precision = experiment.launch.precision
    if precision == "auto":
        has_bf16 = not use_cpu and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "float32"
    return {"use_cpu": use_cpu, "bf16": precision == "bf16", "fp16": precision == "fp16"}


_LIBRARIES = ("trl", "transformers", "accelerate", "peft")
_BUILDING = ("__init__", "__post_init__", "create_optimizer", "create_scheduler", "on_train_begin")
_OURS, _STANDARD = Path(rlhf_cli.__file__).parent, Path(sysconfig.get_path("stdlib"))
_LONGEST = 600


@contextlib.contextmanager
def refusals_named(trainer: Trainer) -> Iterator[None]:
    """Open a context in which a library's refusal to build something raises ConfigError.

    A refusal is an exception that a library raises by a statement of its own while it builds a trainer, an optimizer or
    a schedule, or its callback begins; any exception counts that peft raises. Other errors pass unchanged,
    and so do those with the user's code among their frames.
    """
    try:
        yield
    except (ValueError, TypeError, IndexError, AssertionError, ImportError, RuntimeError) as error:
        frames = list(traceback.walk_tb(error.__traceback__))
        packages = [_package_of(frame) for frame, _ in frames]
        is_building = any(
            package in _LIBRARIES and frame.f_code.co_name in _BUILDING
            for package, (frame, _) in zip(packages, frames, strict=True)
        )
        if isinstance(error, RlhfError) or not is_building or "" in packages or packages[-1] not in _LIBRARIES:
            raise
        last, line = frames[-1]
        if packages[-1] == "peft":
            got = f"{type(error).__name__}: {str(error)[:_LONGEST]}"
            raise ConfigError("peft refuses this adapter", where="model.lora", got=got) from error
        if not linecache.getline(last.f_code.co_filename, line).strip().startswith(("raise ", "assert ")):
            raise
        if isinstance(error, ImportError) and "quantiz" in str(error):
            package = re.search(r"pip install (?:-U )?([\w-]+)", str(error))
            what, hint = "the model is stored quantised, and its package is missing", package and package[0]
            raise ModelError(what, where="model.path", got=str(error)[:_LONGEST], hint=hint) from error
        if "ignore_mismatched_sizes" in str(error):
            what, expected = "the weights do not fit the model's config.json", "the config.json they were saved with"
            raise ModelError(what, where="model.path", got="tensors of other shapes", expected=expected) from error
        raise refusal(trainer, error) from error


def refusal(trainer: Trainer, error: Exception) -> ConfigError:
    """Return the error for a value that a library refuses; it names the given arguments in the library's message."""
    words = set(re.findall(r"\w+", str(error)))
    keys = [f"trainer.args.{name}" for name in trainer.args if name in words]
    named = (word.strip("`") for word in re.findall(r"`\w+`|\w+_\w+", str(error)))
    quoted = [name for name in named if name in trl_args.fields_of(trainer.trl)]
    where = ", ".join(keys or [f"trainer.args.{name}" for name in dict.fromkeys(quoted)]) or "trainer.args"
    got, hint = f"{type(error).__name__}: {str(error)[:_LONGEST]}", ", or ".join(f"'~{key}'" for key in keys) or None
    return ConfigError(f"{trainer.trl} refuses these arguments", where=where, got=got, hint=hint)


def _package_of(frame: FrameType) -> str:
    """Return the top package of a frame's code; empty for the user's own code."""
    file = Path(frame.f_code.co_filename)
    for place in {"site-packages", "dist-packages"} & set(file.parts):
        return file.parts[file.parts.index(place) + 1]
    is_known = file.is_relative_to(_OURS) or file.is_relative_to(_STANDARD) or file.name.startswith("<")
    return "rlhf_cli" if is_known else ""
