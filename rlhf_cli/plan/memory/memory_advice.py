"""Suggest keys to change when an experiment does not fit into memory, cheapest first.

The first suggestions cost no quality, the last ones change what is learned. No suggestion leads to a configuration that
would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.plan.memory.estimate import Part
from rlhf_cli.runs import heartbeat

_LEARNING = "smaller parts, recomputation, vLLM, critic, adapter, fewer bits, sharding, shorter"
_BY_PHASE = {
    heartbeat.LOADING: "vLLM, fewer bits, reward models, adapter, sharding",
    heartbeat.GENERATION: "vLLM, fewer at once, shorter, fewer bits, sharding",
    heartbeat.REWARDS: "reward batches, reward models, vLLM, fewer at once",
    heartbeat.ROLLOUT: "smaller parts, vLLM, shorter, fewer bits, sharding",
    heartbeat.OPTIMIZER: "adapter, optimizer, vLLM, sharding",
    heartbeat.EVALUATION: "evaluation, fewer bits, sharding",
    heartbeat.SAVING: "checkpoint, adapter",
    heartbeat.ENDING: "checkpoint, adapter",
}
_BY_PART: dict[Part, str] = {
    "weights": "fewer bits, sharding",
    "gradients": "adapter, sharding",
    "optimizer": "optimizer, adapter, sharding",
    "reference": "adapter, sharding",
    "critic": "critic",
    "reward models": "reward models, reward batches",
    "activations": "recomputation, smaller parts, shorter",
    "logits": "smaller parts, shorter",
    "KV cache": "fewer at once, shorter",
    "vLLM": "vLLM",
}


@dataclass(frozen=True)
class Advice:
    """The words to type, and their effect with the current values of these keys."""

    words: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return " ".join(self.words) + f"  ({self.why})"


def memory_advice(
    experiment: Experiment, phases: Sequence[str], *, world_size: int, on_gpu: bool, rewards: Sequence[str] = ()
) -> list[Advice]:
    """Return what to change when memory ran out in `phases` (named as in runs/heartbeat.py, the innermost last).

    `rewards` are the names of the rewards that were running, if known.
    """
    phases = heartbeat.whole_phases(phases) or (heartbeat.LOADING,)
    kinds = _BY_PHASE.get(phases[-1], _LEARNING)
    if heartbeat.EVALUATION in phases[:-1]:
        kinds = f"evaluation, {kinds}"
    return _Suggestions(experiment, world_size, on_gpu, rewards).of(kinds)


def part_advice(experiment: Experiment, part: Part, *, world_size: int, on_gpu: bool) -> Advice | None:
    """Return the cheapest change that lowers one part of a run's memory, or None without a suggestion."""
    return next(iter(_Suggestions(experiment, world_size, on_gpu, ()).of(_BY_PART[part])), None)


class _Suggestions:
    """What can be lowered in an experiment, by kind."""

    def __init__(self, experiment: Experiment, world_size: int, on_gpu: bool, rewards: Sequence[str]) -> None:
        self._experiment, self._world_size, self._on_gpu, self._rewards = experiment, world_size, on_gpu, rewards
        self._trainer = trainer(experiment.trainer.trl)
        self._shards = experiment.launch.strategy != "ddp"

    def of(self, kinds: str) -> list[Advice]:
        """Return the suggestions of these kinds, in their order."""
        every = [*self._batches(), *self._models(), *self._rewards_advice(), *self._machine()]
        return [Advice(words, why) for kind in kinds.split(", ") for one, words, why in every if one == kind]

    def _batches(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        size, parts = self._whole("per_device_train_batch_size") or 1, self._whole("gradient_accumulation_steps") or 1
        given, asked = self._whole("generation_batch_size"), self._whole("steps_per_generation")
        half = (_arg("per_device_train_batch_size", size // 2), _arg("gradient_accumulation_steps", 2 * parts))
        if size % 2 == 0:
            more = (_arg("steps_per_generation", 2 * asked),) if asked is not None else ()
            yield "smaller parts", (*half, *more), f"the same batch in smaller parts; now {size} and {parts}"
        generates, group = self._experiment.trainer.row.generates, self._whole("num_generations") or 1
        in_pass = size * self._world_size
        steps = given // in_pass if given is not None else asked or parts
        if generates and (steps * in_pass // 2) % group == 0:
            why = f"half as many completions at once; now {size * steps} completions at once in each process"
            if steps % 2 == 0:
                leave = ("'~trainer.args.generation_batch_size'",) if given is not None else ()
                yield "fewer at once", (*leave, _arg("steps_per_generation", steps // 2)), why
            elif size % 2 == 0 and given is None:
                yield "fewer at once", (*half, _arg("steps_per_generation", steps)), why
        name = "max_completion_length" if generates else "max_length"
        if (length := self._whole(name) or 0) > 1:
            why = f"it changes what can be answered or learned from; now {length}"
            yield "shorter", (_arg(name, length // 2),), why
        rows, group = self._whole("per_device_eval_batch_size") or 1, self._whole("num_generations_eval") or group
        group = group if generates else 1
        if rows % 2 == 0 and (rows // 2 * self._world_size) % group == 0:
            words = (_arg("per_device_eval_batch_size", rows // 2),)
            yield "evaluation", words, f"the same evaluation in smaller parts; now {rows}"
        elif group > 1:
            words = (_arg("num_generations_eval", 1),)
            yield "evaluation", words, f"one sampled answer a held-out prompt; now {group}"

    def _models(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        experiment, model, critic = self._experiment, self._experiment.model, self._experiment.critic
        lora = () if model.lora is not None else (f"model.lora.r={Lora().r}",)
        may_adapt = "reward_model" not in experiment.trainer.row.sections and not self._shards
        if self._value("gradient_checkpointing") is False:
            words = (_arg("gradient_checkpointing", "true"),)
            yield "recomputation", words, "activations are computed again, 20-30 % slower"
        if self._on_gpu and experiment.launch.precision == "float32":
            yield "fewer bits", ("launch.precision=bf16",), "half of the memory for activations; now float32"
        if self._on_gpu and may_adapt and model.quantize is None and model.path is not None:
            yield "fewer bits", (*lora, "model.quantize=4bit"), "the frozen weights in 4 bits, under an adapter"
        if lora and may_adapt:
            why = "an adapter is trained: gradients and optimizer for a hundredth of the weights"
            yield "adapter", lora, why
        optimizer = str(self._value("optim") or "adamw_torch_fused")
        if optimizer.startswith("adamw_torch") and not self._shards:
            if self._on_gpu:
                why = f"its state in 8 bits, needs bitsandbytes; now {optimizer}"
                yield "optimizer", (_arg("optim", "adamw_bnb_8bit"),), why
            yield "optimizer", (_arg("optim", "adafactor"),), f"it keeps no second moment a weight; now {optimizer}"
        if critic is not None and critic.share != "lora" and critic.init == "policy" and not self._shards:
            why = f"the critic is an adapter on the policy's body; now {critic.share}"
            yield "critic", (*lora, "critic.share=lora"), why

    def _rewards_advice(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        models = {name: reward for name, reward in self._experiment.rewards.items() if reward.model is not None}
        for name in [one for one in self._rewards if one in models] or models:
            key, reward = f"rewards.{name}", models[name]
            if (size := reward.batch_size) > 1:
                why = f"the reward model scores fewer texts at once; now {size}"
                yield "reward batches", (f"{key}.batch_size={size // 2}",), why
            if reward.dtype in ("auto", "float32") and self._on_gpu:
                why = f"the reward model takes half of the memory; now {reward.dtype}"
                yield "reward batches", (f"{key}.dtype=bfloat16",), why
        for name, reward in models.items():
            if self._on_gpu and reward.device != "cpu":
                yield "reward models", (f"rewards.{name}.device=cpu",), "the reward model leaves the GPU; slower"
        for name in self._rewards:
            reward_now = self._experiment.rewards.get(name)
            if reward_now is not None and name not in models and not reward_now.isolate:
                yield "reward models", (f"rewards.{name}.isolate=true",), "a row at a time, in a process of its own"

    def _machine(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        experiment, critic = self._experiment, self._experiment.critic
        share = self._value("vllm_gpu_memory_utilization")
        if experiment.launch.rollout == "vllm" and isinstance(share, float) and share > 0.1:
            words = (_arg("vllm_gpu_memory_utilization", f"{share - 0.1:.2g}"),)
            yield "vLLM", words, f"vLLM takes less of the GPU; now {share:g}"
        if experiment.launch.rollout == "vllm" and self._value("vllm_enable_sleep_mode") is False:
            words = (_arg("vllm_enable_sleep_mode", "true"),)
            yield "vLLM", words, "vLLM leaves the GPU while the policy learns"
        if self._on_gpu and not self._shards and (critic is None or critic.share != "lora"):
            needs_whole = critic is not None or experiment.model.quantize is not None
            what, word = ("optimizer", "launch=zero2") if needs_whole else ("model", "launch=fsdp2")
            yield "sharding", (word,), f"on several GPUs, each process holds a part of the {what}; now ddp"
        if self._value("save_only_model") is False:
            words = (_arg("save_only_model", "true"),)
            yield "checkpoint", words, "no optimizer in checkpoints: nothing resumes exactly"

    def _value(self, name: str) -> object:
        return setting(self._trainer, self._experiment.trainer.args, name)

    def _whole(self, name: str) -> int | None:
        value = self._value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _arg(name: str, value: object) -> str:
    return f"trainer.args.{name}={value}"
