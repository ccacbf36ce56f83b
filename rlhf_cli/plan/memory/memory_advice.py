"""Suggests keys to change when an experiment does not fit into memory: those that matter in its phase, cheapest first.

A suggestion names keys with new and current values. The first ones cost no quality, the last ones change what is
learned. No suggestion leads to a configuration that would be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.plan.memory.estimate import Part
from rlhf_cli.runs.heartbeat import (
    ENDING,
    EVALUATION,
    GENERATION,
    LOADING,
    LOSS,
    OPTIMIZER,
    REWARDS,
    ROLLOUT,
    SAVING,
    whole_phases,
)


@dataclass(frozen=True)
class Advice:
    """The words to type, and their effect; `now` are the current values of these keys, '' if the words are enough."""

    words: tuple[str, ...]
    why: str
    now: str = ""

    def __str__(self) -> str:
        return " ".join(self.words) + f"  ({self.why}{f'; now {self.now}' if self.now else ''})"


def memory_advice(
    experiment: Experiment, phases: Sequence[str], *, world_size: int, on_gpu: bool, rewards: Sequence[str] = ()
) -> list[Advice]:
    """Return what to change when memory ran out in `phases` (named as in runs/heartbeat.py, the innermost last).

    `rewards` are the names of the rewards that were running, if known.
    """
    found = _Advisor(experiment, world_size, on_gpu)
    phases = whole_phases(phases)
    phase = phases[-1] if phases else LOADING
    kinds = {
        LOADING: (found.rollout_engine, found.smaller_weights, found.reward_models, found.adapter, found.sharding),
        GENERATION: (found.rollout_engine, found.fewer_at_once, found.shorter, found.smaller_weights, found.sharding),
        REWARDS: (partial(found.reward_batches, rewards), found.rollout_engine, found.fewer_at_once),
        ROLLOUT: (found.smaller_parts, found.rollout_engine, found.shorter, found.smaller_weights, found.sharding),
        LOSS: (
            *(found.smaller_parts, found.recomputation, found.rollout_engine, found.shared_critic, found.adapter),
            *(found.smaller_weights, found.sharding, found.shorter),
        ),
        OPTIMIZER: (found.adapter, found.optimizer, found.rollout_engine, found.sharding),
        EVALUATION: (found.smaller_evaluation, found.smaller_weights, found.sharding),
        SAVING: (found.smaller_checkpoint, found.adapter),
        ENDING: (found.smaller_checkpoint, found.adapter),
    }
    first = [found.smaller_evaluation] if EVALUATION in phases[:-1] else []
    chosen = kinds.get(phase, kinds[LOSS])
    kinds_of_phase: list[Callable[[], Iterator[Advice]]] = [*first, *chosen]
    return list(dict.fromkeys(advice for kind in kinds_of_phase for advice in kind()))


def part_advice(experiment: Experiment, part: Part, *, world_size: int, on_gpu: bool) -> Advice | None:
    """Return the cheapest change that lowers one part of a run's memory, or None without a suggestion."""
    found = _Advisor(experiment, world_size, on_gpu)
    kinds: dict[Part, tuple[Callable[[], Iterator[Advice]], ...]] = {
        "weights": (found.smaller_weights, found.sharding),
        "gradients": (found.adapter, found.sharding),
        "optimizer": (found.optimizer, found.adapter, found.sharding),
        "reference": (found.adapter, found.sharding),
        "critic": (found.shared_critic,),
        "reward models": (found.reward_models, partial(found.reward_batches, ())),
        "activations": (found.recomputation, found.smaller_parts, found.shorter),
        "logits": (found.smaller_parts, found.shorter),
        "KV cache": (found.fewer_at_once, found.shorter),
        "vLLM": (found.rollout_engine,),
        "kept by malloc": (),
    }
    return next((advice for kind in kinds[part] for advice in kind()), None)


class _Advisor:
    """Finds what can be lowered in an experiment; every method yields suggestions of one kind."""

    def __init__(self, experiment: Experiment, world_size: int, on_gpu: bool) -> None:
        self._experiment = experiment
        self._args = experiment.trainer.args
        self._trainer = trainer(experiment.trainer.trl)
        self._world_size = world_size
        self._on_gpu = on_gpu

    def smaller_parts(self) -> Iterator[Advice]:
        """Yield the same batch in more parts, which does not change what is learned."""
        size, parts = self._whole("per_device_train_batch_size"), self._whole("gradient_accumulation_steps") or 1
        if not size or size % 2:
            return
        words = [_arg("per_device_train_batch_size", size // 2), _arg("gradient_accumulation_steps", 2 * parts)]
        if (rounds := self._whole("steps_per_generation")) is not None:
            words.append(_arg("steps_per_generation", 2 * rounds))
        yield Advice(tuple(words), "the same batch in smaller parts", f"{size} and {parts}")

    def fewer_at_once(self) -> Iterator[Advice]:
        """Yield a smaller round: a process generates and scores all completions of a round at once."""
        size, parts = self._whole("per_device_train_batch_size"), self._whole("gradient_accumulation_steps") or 1
        if size is None or not self._experiment.trainer.row.generates:
            return
        rounds = self._whole("steps_per_generation") or parts
        total = self._whole("generation_batch_size") or size * self._world_size * rounds
        rounds = total // (size * self._world_size)
        group = self._group
        now = f"{size * rounds} completions at once in each process"
        if rounds % 2 == 0 and (total // 2) % group == 0:
            leave = () if self._whole("generation_batch_size") is None else ("'~trainer.args.generation_batch_size'",)
            word = _arg("steps_per_generation", rounds // 2)
            yield Advice((*leave, word), "half as many completions at once", now)
        elif size % 2 == 0 and (total // 2) % group == 0 and self._whole("generation_batch_size") is None:
            words = [_arg("per_device_train_batch_size", size // 2), _arg("steps_per_generation", rounds)]
            words.append(_arg("gradient_accumulation_steps", 2 * parts))
            yield Advice(tuple(words), "half as many completions at once", now)

    def shorter(self) -> Iterator[Advice]:
        """Yield fewer tokens."""
        for name in ("max_completion_length", "max_length"):
            length = self._whole(name)
            if length is not None and length > 1:
                yield Advice((_arg(name, length // 2),), "it changes what can be answered or learned from", str(length))
                return

    def recomputation(self) -> Iterator[Advice]:
        """Yield activations that are recomputed instead of kept."""
        if self._value("gradient_checkpointing") is False:
            yield Advice((_arg("gradient_checkpointing", "true"),), "activations are computed again, 20-30 % slower")

    def smaller_evaluation(self) -> Iterator[Advice]:
        """Yield fewer evaluation rows at once."""
        size, group = self._whole("per_device_eval_batch_size"), self._group_in_evaluation
        if size is not None and size % 2 == 0 and (size // 2 * self._world_size) % group == 0:
            word = _arg("per_device_eval_batch_size", size // 2)
            yield Advice((word,), "the same evaluation in smaller parts", str(size))
        elif group > 1:
            yield Advice((_arg("num_generations_eval", 1),), "one sampled answer a held-out prompt", str(group))

    def reward_batches(self, rewards: Sequence[str]) -> Iterator[Advice]:
        """Yield smaller batches for the reward models that ran, or for all of them."""
        models = {name: reward for name, reward in self._experiment.rewards.items() if reward.model is not None}
        for name in [one for one in rewards if one in models] or models:
            if (size := models[name].batch_size) > 1:
                word = f"rewards.{name}.batch_size={size // 2}"
                yield Advice((word,), "the reward model scores fewer texts at once", str(size))
            if models[name].dtype in ("auto", "float32") and self._on_gpu:
                word = f"rewards.{name}.dtype=bfloat16"
                yield Advice((word,), "the reward model takes half of the memory", models[name].dtype)
        yield from self.reward_models()
        for name in rewards:
            if name in self._experiment.rewards and name not in models and not self._experiment.rewards[name].isolate:
                yield Advice((f"rewards.{name}.isolate=true",), "a row at a time, in a process of its own")

    def reward_models(self) -> Iterator[Advice]:
        """Yield reward models in the host's memory."""
        for name, reward in self._experiment.rewards.items():
            if reward.model is not None and self._on_gpu and reward.device != "cpu":
                yield Advice((f"rewards.{name}.device=cpu",), "the reward model leaves the GPU; slower")

    def rollout_engine(self) -> Iterator[Advice]:
        """Yield a smaller share for vLLM on the same GPU."""
        if self._experiment.launch.rollout == "vllm":
            share = self._value("vllm_gpu_memory_utilization")
            if isinstance(share, float) and share > 0.1:
                word = _arg("vllm_gpu_memory_utilization", f"{share - 0.1:.2g}")
                yield Advice((word,), "vLLM takes less of the GPU", f"{share:g}")
            if self._value("vllm_enable_sleep_mode") is False:
                yield Advice((_arg("vllm_enable_sleep_mode", "true"),), "vLLM leaves the GPU while the policy learns")

    def smaller_weights(self) -> Iterator[Advice]:
        """Yield weights with fewer bits."""
        model, launch = self._experiment.model, self._experiment.launch
        if not self._on_gpu:
            return
        if launch.precision == "float32":
            yield Advice(("launch.precision=bf16",), "half of the memory for activations", "float32")
        if model.quantize is None and model.path is not None and self._can_shrink:
            words = ["model.quantize=4bit"] if model.lora else [_LORA, "model.quantize=4bit"]
            yield Advice(tuple(words), "the frozen weights in 4 bits, under an adapter")

    def adapter(self) -> Iterator[Advice]:
        """Yield an adapter, whose gradients and optimizer are small."""
        if self._experiment.model.lora is None and self._can_shrink:
            yield Advice((_LORA,), "an adapter is trained: gradients and optimizer for a hundredth of the weights")

    def optimizer(self) -> Iterator[Advice]:
        """Yield an optimizer with a smaller state."""
        name = str(self._value("optim") or "adamw_torch_fused")
        if name.startswith("adamw_torch") and not self._shards:
            if self._on_gpu:
                yield Advice((_arg("optim", "adamw_bnb_8bit"),), "its state in 8 bits, needs bitsandbytes", name)
            yield Advice((_arg("optim", "adafactor"),), "it keeps no second moment a weight", name)

    def shared_critic(self) -> Iterator[Advice]:
        """Yield a critic on the policy's body."""
        critic = self._experiment.critic
        if critic is None or critic.share == "lora" or self._shards or critic.init != "policy":
            return
        words = ("critic.share=lora",) if self._experiment.model.lora else (_LORA, "critic.share=lora")
        yield Advice(words, "the critic is an adapter on the policy's body", critic.share)

    def sharding(self) -> Iterator[Advice]:
        """Yield a sharded model, for users with several GPUs."""
        experiment = self._experiment
        if self._shards or not self._on_gpu:
            return
        is_for_zero = experiment.critic is not None or experiment.model.quantize is not None
        if experiment.critic is not None and experiment.critic.share == "lora":
            return
        why = "each process holds a part of the optimizer" if is_for_zero else "each process holds a part of the model"
        yield Advice(("launch=zero2" if is_for_zero else "launch=fsdp2",), f"on several GPUs, {why}", "ddp")

    def smaller_checkpoint(self) -> Iterator[Advice]:
        """Yield smaller checkpoints to gather and write."""
        if self._value("save_only_model") is False:
            yield Advice((_arg("save_only_model", "true"),), "no optimizer in checkpoints: nothing resumes exactly")

    @property
    def _can_shrink(self) -> bool:
        """Return whether the model may be trained with an adapter: it is not a reward model and not sharded."""
        return "reward_model" not in self._experiment.trainer.row.sections and not self._shards

    @property
    def _shards(self) -> bool:
        return self._experiment.launch.strategy != "ddp"

    @property
    def _group(self) -> int:
        return self._whole("num_generations") or 1

    @property
    def _group_in_evaluation(self) -> int:
        if not self._experiment.trainer.row.generates:
            return 1
        return self._whole("num_generations_eval") or self._group

    def _value(self, name: str) -> object:
        return setting(self._trainer, self._args, name)

    def _whole(self, name: str) -> int | None:
        value = self._value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


_LORA = f"model.lora.r={Lora().r}"


def _arg(name: str, value: object) -> str:
    return f"trainer.args.{name}={value}"
