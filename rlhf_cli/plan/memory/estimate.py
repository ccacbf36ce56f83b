"""Estimate the memory of one device in the moments of a run.

Memory freed below a block in use stays with the process. mallopt(3): M_MMAP_THRESHOLD, initially 128 KiB, grows to the
size of the largest freed block, up to 32 MiB. Smaller blocks come from one heap; larger ones have their own mapping,
which is returned at once. So the process retains the gaps between what the layers keep, until the backward pass has
gone through them. It also retains the gaps that the logit tiles leave, and the gradients, which are freed after every
step. The optimizer's state, created after the first passes, fills some of the gaps; an adapter's state is too small for
that.

These amounts are measured, not derived: docs/memory.md has the runs.

Moments must not be added up, because they reuse the same memory. Generation and training each have their own peak.

It counts tensors: what torch.cuda.max_memory_allocated measures on a GPU. A process on a CPU holds about ten megabytes
more, plus the freed memory that malloc retains (malloc_keeps.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.plan.memory import parts as activations
from rlhf_cli.plan.memory import parts as kv_cache
from rlhf_cli.plan.memory.models_of_run import (
    Held,
    Loaded,
    PolicyHead,
    RunLoad,
    Sharing,
    critic_of,
    has_reference,
    held,
    optimizer_bytes,
    policy_of,
    reward_models_of,
    weights_bytes,
)
from rlhf_cli.plan.memory.parts import TILE_TOKENS, TILE_WORDS, Batch
from rlhf_cli.plan.memory.shapes import Architecture, Precision, UnknownArchitecture

_FLOAT32 = 4
_LARGEST_IN_HEAP = 32 * 2**20
"""DEFAULT_MMAP_THRESHOLD_MAX on systems where a long has 8 bytes."""
_GIVES_BACK_BELOW = 2 * 2**20
_OF_ACTIVATIONS, _OF_LOGITS, _OF_GRADIENTS = 0.3, 0.75, 0.75
"""Retained memory as a fraction of what the layers keep, of the head's tiles, and of all gradients."""
_OF_ACTIVATIONS_WITH_ADAPTER = 0.8
_MLP_TENSORS = 4
"""Tensors of the MLP's width per layer: both branches, the activation of one, their product."""


def malloc_keeps(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether processes here use glibc's malloc without a setting that makes it return freed memory."""
    try:
        is_glibc = os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (ValueError, OSError):
        return False
    told = environment.get("MALLOC_MMAP_THRESHOLD_", "")
    is_told = told.isdigit() and int(told) <= _GIVES_BACK_BELOW
    return is_glibc and not is_told and not environment.get("LD_PRELOAD")


def kept_by_malloc(
    arch: Architecture,
    precision: Precision,
    batch: Batch,
    *,
    activations: float,
    logits: float,
    scored: int,
    gradients: float = 0.0,
    trains_adapter: bool = False,
) -> float:
    """Return the bytes that are retained outside of tensors when the backward pass of `batch` begins.

    `activations` is what the layers keep and `logits` what the head's tiles of `scored` tokens take, in bytes.
    `gradients` are those of all trained weights. `trains_adapter`: the other weights are frozen.
    """
    of_mlp = min(activations, arch.layers * batch.size * _MLP_TENSORS * arch.ffn * precision.compute_bytes)
    by_width = {arch.ffn: of_mlp, arch.hidden: activations - of_mlp}
    in_heap = sum(
        size for width, size in by_width.items() if batch.size * width * precision.compute_bytes < _LARGEST_IN_HEAP
    )
    tile = _FLOAT32 * min(scored, TILE_TOKENS) * min(arch.vocabulary, TILE_WORDS)
    share = _OF_ACTIVATIONS_WITH_ADAPTER if trains_adapter else _OF_ACTIVATIONS
    matrix = arch.hidden * arch.ffn * precision.weight_bytes
    of_gradients = _OF_GRADIENTS * gradients if matrix < _LARGEST_IN_HEAP else 0.0
    return of_gradients + share * in_heap + (_OF_LOGITS * logits if tile < _LARGEST_IN_HEAP else 0.0)


Phase = Literal["generation", "training"]
Part = Literal[
    "weights",
    "gradients",
    "optimizer",
    "reference",
    "critic",
    "reward models",
    "activations",
    "logits",
    "KV cache",
    "vLLM",
    "kept by malloc",
]


@dataclass(frozen=True)
class Moment:
    """The memory of a device at one moment of a `phase`: bytes by part, without empty parts.

    `what` describes the activity in words.
    """

    phase: Phase
    what: str
    parts: Mapping[Part, int]

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts.values())

    @property
    def largest(self) -> Part:
        """Return the largest part. What malloc retains depends on the other parts and shrinks with them, so it comes
        last.
        """
        return max(self.parts, key=lambda part: (part != "kept by malloc", self.parts[part]))

    def as_json(self) -> dict[str, object]:
        """Return the moment as JSON values, with sizes in bytes."""
        parts = {part.replace(" ", "_"): size for part, size in self.parts.items()}
        return {"phase": self.phase, "what": self.what, "total_bytes": self.total, "parts_bytes": parts}


@dataclass(frozen=True)
class Lowering:
    """The words to type to lower a part, and why that is cheap."""

    part: Part
    words: tuple[str, ...]
    why: str

    def as_json(self) -> dict[str, object]:
        """Return a dict of the fields."""
        return asdict(self) | {"words": list(self.words)}


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs of the memory of one device, as far as that is known before it starts.

    `moments` is empty if that is unknown, and `unknown` says why. `leaves_out` lists in words what is not counted.
    `device_bytes` is the memory of the device, None if unknown. `cheapest` lowers the largest part of the peak for
    which there is a suggestion.
    """

    moments: Sequence[Moment] = ()
    unknown: str = ""
    leaves_out: tuple[str, ...] = ()
    device: Literal["GPU", "CPU"] = "CPU"
    device_bytes: int | None = None
    cheapest: Lowering | None = None

    def fullest(self, phase: Phase) -> Moment | None:
        """Return the peak moment of a phase, or None if the run has no such phase."""
        of_phase = [moment for moment in self.moments if moment.phase == phase]
        return max(of_phase, key=lambda moment: moment.total) if of_phase else None

    @property
    def peak(self) -> Moment | None:
        """Return the peak moment of the run."""
        return max(self.moments, key=lambda moment: moment.total) if self.moments else None

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON values, with sizes in bytes; do not add up generation and training."""
        peak, phases = self.peak, ("generation", "training")
        fullest = {phase: moment.as_json() for phase in phases if (moment := self.fullest(phase)) is not None}  # type: ignore[arg-type]
        return {
            "device": self.device,
            "device_bytes": self.device_bytes,
            "peak_bytes": peak.total if peak is not None else None,
            "fullest": fullest,
            "moments": [moment.as_json() for moment in self.moments],
            "unknown": self.unknown or None,
            "leaves_out": list(self.leaves_out),
            "cheapest": self.cheapest.as_json() if self.cheapest is not None else None,
        }


_GATHERED_LAYERS = 2
"""FSDP and ZeRO-3 gather a layer's weights to compute with them, and prefetch those of the next layer."""

Parts = dict[Part, float]


class Estimate:
    """The models of a run on one device, and the bytes they need at each moment.

    `on_gpu`: the run computes on a GPU, in bfloat16 if `bf16`. `device_bytes` is the memory of the device, None if
    unknown. `malloc_keeps`: also count what malloc retains. Raise UnknownArchitecture if the shape of the policy or the
    critic is unknown.
    """

    def __init__(
        self,
        experiment: Experiment,
        load: RunLoad,
        *,
        processes: int,
        on_gpu: bool,
        bf16: bool,
        device_bytes: int | None = None,
        malloc_keeps: bool = False,
    ) -> None:
        self._experiment, self._load = experiment, load
        self._fields, self._args = trainer(experiment.trainer.trl), experiment.trainer.args
        self._device_bytes, self._malloc_keeps = device_bytes, malloc_keeps
        self._sharing = Sharing(experiment.launch.strategy, processes, experiment.launch.offload)
        self.policy = policy_of(experiment, bf16=bf16)
        self.critic = critic_of(experiment, self.policy)
        self._head = PolicyHead(experiment, load, self.policy, self._sharing, on_gpu=on_gpu)
        self.reward_models, unknown = reward_models_of(experiment, on_gpu=on_gpu)
        self.leaves_out = tuple(f"the reward model {name}, whose shape is not known" for name in unknown)
        name = str(self._setting("optim") or "adamw_torch_fused").removeprefix("OptimizerNames.").lower()
        states = optimizer_bytes(name, self.policy.precision.weight_bytes)
        if states is None:
            self.leaves_out += (f"the state of the optimizer {name}",)
        if not self._head.is_fused and experiment.trainer.row.trains != "reward model":
            self.leaves_out += (f"the logits of {experiment.trainer.trl}, which are all there at once",)
        self._held = self._held_of(self.policy, states or 0.0, self._sharing)
        alone = Sharing("ddp", processes)  # every process has the whole critic, even if the policy is sharded
        self._critic_held = Held(0.0, 0.0, 0.0)
        if self.critic is not None:
            beside = optimizer_bytes(name, self.critic.precision.weight_bytes) or 0.0
            self._critic_held = self._held_of(self.critic, beside, alone)

    def moments(self) -> list[Moment]:
        """Return the moments of the run that use much memory."""
        found: list[tuple[Phase, str, Parts]] = [*self._generation(), *self._training()]
        return [
            Moment(phase, what, {part: math.ceil(size) for part, size in parts.items() if size})
            for phase, what, parts in found
        ]

    def _always(self) -> Parts:
        """Return what is held all the time, once the optimizer has made a step."""
        critic = self._critic_held
        shared = 1 / self._sharing.parts(sharded=self._sharing.shards_weights)
        reference = weights_bytes(self.policy.parameters, self.policy.precision) * shared
        scored = sum(weights_bytes(one.parameters, one.precision) for one in self.reward_models.values())
        gathered = 0.0
        if self._sharing.shards_weights:
            a_layer = self.policy.parameters.body / self.policy.architecture.layers
            gathered = _GATHERED_LAYERS * a_layer * self.policy.precision.compute_bytes
        return {
            "weights": self._held.weights + gathered,
            "gradients": self._held.buckets,
            "optimizer": self._held.optimizer,
            "reference": reference if has_reference(self._experiment) else 0.0,
            "critic": critic.weights + critic.optimizer + critic.buckets,
            "reward models": scored,
            "vLLM": 0.0 if self._vllm_sleeps else self._vllm,
        }

    # --- generation ---

    def _generation(self) -> Iterator[tuple[Phase, str, Parts]]:
        load = self._load
        if not load.completions:
            return
        between: Parts = {"gradients": self._held.gradients if load.generates_between else 0.0}
        rounds = [("generating", load.completions)]
        if load.evaluated_at_once > load.completions:
            rounds.append(("an evaluation generating", load.evaluated_at_once))
        for what, rows in rounds:
            parts = _sum(self._always(), between)
            if self._experiment.launch.rollout == "vllm":
                yield "generation", f"{what} {rows} completions with vLLM", parts | {"vLLM": self._vllm}
            elif self._experiment.launch.rollout != "vllm_server":
                said = f"{what} {rows} completions of {load.prompt_tokens} + {load.completion_tokens} tokens"
                yield "generation", said, _sum(parts, self._generating(rows))
        for name, model in self.reward_models.items():
            rows = min(self._experiment.rewards[name].batch_size, load.completions)
            passing = activations.passing_bytes(model.architecture, model.precision, Batch(rows, load.tokens))
            yield "generation", f"{name} scoring {rows} texts", _sum(self._always(), between, {"activations": passing})
        passes = self._passes()
        if passes:
            said = f"log-probabilities of {load.micro_batch} completions at a time"
            yield "generation", said, _sum(self._always(), between, passes)

    def _generating(self, rows: int) -> Parts:
        arch, load = self.policy.architecture, self._load
        precision = Precision(self.policy.precision.weight_bytes)  # TRL generates outside of autocast
        tokens, element = load.prompt_tokens + load.completion_tokens, precision.weight_bytes
        prefill = activations.passing_bytes(arch, precision, Batch(rows, load.prompt_tokens, load.padded))
        gathered = 0.0
        if self._sharing.is_deepspeed and self._sharing.shards_weights:  # TRL's ds3_gather_for_generation
            gathered = weights_bytes(self.policy.parameters, precision) - self._held.weights
        return {
            "weights": gathered,
            "KV cache": kv_cache.cache_bytes(arch, rows, tokens, element),
            "activations": max(prefill, kv_cache.growth_bytes(arch, rows, tokens, element)),
            "logits": kv_cache.sampling_bytes(arch, precision, rows),
        }

    def _passes(self) -> Parts:
        """Return what the passes over a rollout without a gradient need; empty if there are no such passes."""
        load, experiment = self._load, self._experiment
        if self.critic is None and not has_reference(experiment) and self._setting("beta") in (0, 0.0, None):
            micro_batches = max(1, load.completions // load.micro_batch)
            repeats = self._setting("num_iterations")
            every = micro_batches * (repeats if isinstance(repeats, int) else 1)
            if load.accumulation % every == 0 and experiment.launch.rollout not in ("vllm", "vllm_server"):
                return {}
        return self._passing(load.passed())

    def _passing(self, batch: Batch) -> Parts:
        arch, precision = self.policy.architecture, self.policy.precision
        return {
            "activations": activations.passing_bytes(arch, precision, batch),
            "logits": self._head.forward_bytes(batch.rows),
        }

    # --- learning ---

    def _training(self) -> Iterator[tuple[Phase, str, Parts]]:
        load, critic = self._load, self.critic
        again = load.accumulation > 1
        before: Parts = {"gradients": self._held.gradients if again else 0.0}
        if critic is not None and again:
            before["critic"] = self._critic_held.gradients
        rows = f"{load.micro_batch} rows of {load.tokens} tokens"
        for parts in self._backward(self.policy):
            kept = self._kept_by_malloc(self.policy, parts)
            yield "training", f"learning from {rows}", _sum(self._always(), before, parts, kept)
        done: Parts = {"gradients": self._held.gradients}
        if critic is not None:
            for parts in self._backward(critic):
                kept = self._kept_by_malloc(critic, parts)
                yield "training", f"the critic learning from {rows}", _sum(self._always(), before | done, parts, kept)
            done["critic"] = self._critic_held.gradients
        arch = self.policy.architecture
        embedding = 0.0
        if self.policy.adapter is None:  # its gradient is computed again before it is added to the head's
            embedding = arch.vocabulary * arch.hidden * self.policy.precision.weight_bytes
        last: Parts = {"activations": self._of_a_layer(self.policy), "gradients": embedding}
        yield "training", "the end of the backward pass", _sum(self._always(), done, last)
        if load.evaluated_at_once > load.micro_batch:
            said = f"evaluating {load.evaluated_at_once} rows at a time"
            yield "training", said, _sum(self._always(), self._passing(load.evaluated()))

    def _backward(self, model: Loaded) -> Iterator[Parts]:
        """Yield what is held while the head's gradient is computed, and while the last layer's is."""
        experiment, precision = self._experiment, model.precision
        batch = self._learned(model)
        kept = activations.kept_bytes(
            model.architecture, precision, batch, adapter=model.adapter, checkpointing=self._checkpoints
        )
        if model is self.policy and experiment.critic is not None and experiment.critic.share == "lora":
            kept *= 2  # both passes wait for one backward pass
        if precision.copies_weights:
            kept += model.parameters.body * precision.compute_bytes / self._sharing.parts(sharded=False)
        if self._head.is_fused and model is self.policy:
            yield {"activations": kept, "logits": self._head.learning_bytes(batch.rows)}
        yield {"activations": kept + self._of_a_layer(model)}

    def _kept_by_malloc(self, model: Loaded, parts: Parts) -> Parts:
        if not self._malloc_keeps:
            return {}
        batch = self._learned(model)
        sizes = {"activations": parts["activations"], "logits": parts.get("logits", 0.0)}
        scored = self._head.scored(batch.rows)
        held = kept_by_malloc(
            model.architecture,
            model.precision,
            batch,
            scored=scored,
            gradients=(self._critic_held if model is self.critic else self._held).gradients,
            trains_adapter=model.adapter is not None,
            **sizes,
        )
        return {"kept by malloc": held}

    def _of_a_layer(self, model: Loaded) -> float:
        """Return what a layer's backward pass needs, including recomputation under gradient checkpointing."""
        batch = self._learned(model)
        passing = activations.backward_bytes(model.architecture, model.precision, batch)
        if self._checkpoints:
            passing += activations.layer_bytes(model.architecture, model.precision, batch, adapter=model.adapter)
        return passing

    # --- what the experiment says ---

    def _held_of(self, model: Loaded, states: float, sharing: Sharing) -> Held:
        return held(
            model.parameters,
            model.trained,
            model.precision,
            adapter=model.adapter_parameters,
            optimizer=states,
            sharing=sharing,
        )

    def _learned(self, model: Loaded) -> Batch:
        return self._load.learned(with_last=model is self.critic)

    @property
    def _checkpoints(self) -> bool:
        return True in (self._setting("gradient_checkpointing"), self._setting("activation_checkpointing"))

    @property
    def _vllm(self) -> float:
        share = self._setting("vllm_gpu_memory_utilization")
        if self._experiment.launch.rollout != "vllm" or not isinstance(share, float) or self._device_bytes is None:
            return 0.0
        return share * self._device_bytes

    @property
    def _vllm_sleeps(self) -> bool:
        return self._setting("vllm_enable_sleep_mode") is True

    def _setting(self, name: str) -> object:
        return setting(self._fields, self._args, name)


def memory_plan(
    experiment: Experiment,
    load: RunLoad,
    *,
    processes: int,
    on_gpu: bool,
    bf16: bool,
    device_bytes: int | None = None,
    malloc_keeps: bool = False,
) -> MemoryPlan:
    """Return what a run needs of one device's memory, or why that is unknown; the arguments are those of `Estimate`."""
    device: Literal["GPU", "CPU"] = "GPU" if on_gpu else "CPU"
    try:
        found = Estimate(
            experiment,
            load,
            processes=processes,
            on_gpu=on_gpu,
            bf16=bf16,
            device_bytes=device_bytes,
            malloc_keeps=malloc_keeps,
        )
    except UnknownArchitecture as error:
        return MemoryPlan(unknown=str(error), device=device, device_bytes=device_bytes)
    return MemoryPlan(found.moments(), leaves_out=found.leaves_out, device=device, device_bytes=device_bytes)


def _sum(*parts: Parts) -> Parts:
    total: Parts = {}
    for some in parts:
        for part, size in some.items():
            total[part] = total.get(part, 0.0) + size
    return total
