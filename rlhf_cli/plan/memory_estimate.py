"""Estimate the memory of one device at the fullest moments of a run.

Only tensors are counted: what torch.cuda.max_memory_allocated measures on a GPU. docs/how-to/memory.md compares the
estimate with measured processes. Moments must not be added up, because they reuse the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.models.weight_shapes import TINY_VOCABULARY
from rlhf_cli.plan import memory_tensors
from rlhf_cli.plan.memory_tensors import (
    DTYPE_BYTES,
    QUANTIZED_BYTES,
    Batch,
    FolderOf,
    LoadedModel,
    UnknownArchitecture,
    architecture_of,
    most_prompts,
    stored_architecture,
)
from rlhf_cli.runs.disk_space import size
from rlhf_cli.tables.passes import PassMode
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES
from rlhf_cli.text.json_values import JsonTree


@dataclass(frozen=True)
class RowLengths:
    """The tokens of the longest prompt and of the longest row that is trained on as it is, 0 for unknown. `padded`: the
    rows differ in length.
    """

    prompt: int
    row: int
    padded: bool = True


Phase = Literal["generation", "training"]
HeldPart = Literal["weights", "gradients", "optimizer", "reference", "critic", "reward models", "vLLM"]
Part = HeldPart | Literal["activations", "logits", "KV cache"]


@dataclass(frozen=True)
class Moment:
    """The memory of a device at one moment of a `phase`: bytes by part. `what` describes the activity in words."""

    phase: Phase
    what: str
    parts: Mapping[Part, int]

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts.values())

    @property
    def largest(self) -> Part:
        """Return the largest part."""
        return max(self.parts, key=lambda part: self.parts[part])

    def as_json(self) -> dict[str, object]:
        """Return the moment as JSON values, with sizes in bytes."""
        parts = {part.replace(" ", "_"): size for part, size in self.parts.items()}
        return {"phase": self.phase, "what": self.what, "total_bytes": self.total, "parts_bytes": parts}


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs of the memory of one device, as far as that is known before it starts.

    `moments` is empty if that is unknown, and `unknown` says why. `leaves_out` lists in words what is not counted.
    `device_bytes` is the memory of the device, None if unknown.
    """

    moments: Sequence[Moment] = ()
    unknown: str = ""
    leaves_out: tuple[str, ...] = ()
    device: Literal["GPU", "CPU"] = "CPU"
    device_bytes: int | None = None

    def fullest(self, phase: Phase) -> Moment | None:
        """Return the peak moment of a phase, or None if the run has no such phase."""
        return max((one for one in self.moments if one.phase == phase), key=lambda one: one.total, default=None)

    @property
    def peak(self) -> Moment | None:
        """Return the peak moment of the run."""
        return max(self.moments, key=lambda moment: moment.total, default=None)

    @property
    def too_large(self) -> str | None:
        """Return a message if the run needs more memory than its device has; None if it fits or is unknown."""
        if self.peak is None or self.device_bytes is None or self.peak.total <= self.device_bytes:
            return None
        return f"more than the {size(self.device_bytes)} that the {self.device} has: it will not fit"

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON values, with sizes in bytes; do not add up generation and training."""
        fullest = [moment for phase in ("generation", "training") if (moment := self.fullest(phase)) is not None]
        return {
            "device": self.device,
            "device_bytes": self.device_bytes,
            "peak_bytes": self.peak.total if self.peak is not None else None,
            "fullest": {moment.phase: moment.as_json() for moment in fullest},
            "moments": [moment.as_json() for moment in self.moments],
            "unknown": self.unknown or None,
            "leaves_out": list(self.leaves_out),
        }


@dataclass(frozen=True)
class Device:
    """The device of one of the `processes` of a run. `bf16`: matrix products are computed in bfloat16. `num_bytes` is
    its memory, None if unknown.
    """

    on_gpu: bool = False
    bf16: bool = False
    processes: int = 1
    num_bytes: int | None = None


_OPTIMIZERS: dict[str, tuple[float, float]] = {
    **{f"adamw_{kind}": (2, 0) for kind in ("torch", "torch_fused", "torch_xla", "torch_npu_fused", "apex_fused")},
    **{"adamw_32bit": (0, 8), "lion_32bit": (0, 4), "lion_8bit": (0, 1), "adamw_torch_4bit": (0, 1)},
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), (0, 2)),
    **{"adafactor": (0, 0), "sgd": (0, 0), "adagrad": (1, 0), "rmsprop": (1, 0)},
}
"""`trainer.args.optim` -> (numbers in the weight's dtype, fixed bytes) per weight (arXiv 1412.6980, 2110.02861)."""


def optimizer_bytes(name: str, weight_bytes: float) -> float | None:
    """Return the bytes that an optimizer keeps per weight of `weight_bytes`; None for an optimizer not listed here."""
    known = _OPTIMIZERS.get(name.removeprefix("paged_"))
    return None if known is None else known[0] * weight_bytes + known[1]


@dataclass(frozen=True)
class HeldBytes:
    """The bytes of a trained model in one process. `gradients` exist until the optimizer's step, DDP's `buckets`, in
    which they are exchanged, all the time.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    buckets: float = 0.0


def held_bytes(
    model: LoadedModel, optimizer: str, *, strategy: str, processes: int, offload: bool = False
) -> HeldBytes:
    """Return what a process holds of a trained model.

    Each of n processes holds 1/n of the optimizer (ZeRO stage 1), also of the gradients (stage 2), also of the weights
    (stage 3, and FSDP 2; arXiv 1910.02054, 3.1 and 5). Under bf16 DeepSpeed computes in 2 bytes and its optimizer works
    on a float32 copy; accelerate's FSDP converts trained weights to float32.
    """
    row = STRATEGIES.get(strategy, STRATEGIES["ddp"])
    stage, is_deepspeed = row.memory_stage, row.zero_stage is not None
    trained, weights = model.trained_weights, model.loaded_bytes
    number = 4.0 if stage and model.autocast else model.weight_bytes
    gradients, states = trained * number, trained * (optimizer_bytes(optimizer, number) or 0.0)
    if is_deepspeed:
        states += trained * 4
    if is_deepspeed and model.autocast:
        weights, gradients = weights * 2 / model.weight_bytes, trained * 2.0
    elif stage:
        weights += trained * (number - model.weight_bytes)
    if offload:
        weights, states = weights if stage < 3 else 0.0, 0.0
    return HeldBytes(
        weights / (processes if stage == 3 else 1),
        gradients / (processes if stage >= 2 else 1),
        states / (processes if stage >= 1 else 1),
        gradients if not stage and processes > 1 else 0.0,
    )


_ROWS_OF_EXAMPLE = {"DPOTrainer": 2, "RewardTrainer": 2, "CPOTrainer": 2, "ORPOTrainer": 2, "TPOTrainer": 3}
_FUSED_HEAD = ("GRPOTrainer", "RLOOTrainer", "GMPOTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer")
_GATHERED_LAYERS = 2
"""FSDP and ZeRO-3 gather a layer's weights to compute with them, and prefetch those of the next layer."""

Parts = dict[Part, float]


class _RunMemory:
    """The models of a run on one device, and the bytes they need at each moment; `memory_plan` has the arguments."""

    def __init__(
        self,
        experiment: Experiment,
        lengths: RowLengths,
        completions: int,
        passes: PassMode,
        device: Device,
        folder_of: FolderOf,
    ) -> None:
        self._experiment, self._lengths, self._passes, self._device = experiment, lengths, passes, device
        self._completions, self._folder_of = completions, folder_of
        self._setting, self._whole = experiment.trainer.setting, experiment.trainer.whole
        each = _ROWS_OF_EXAMPLE.get(experiment.trainer.trl, 1)
        self._rows = each * (self._whole("per_device_train_batch_size") or 1)
        self._accumulation = self._whole("gradient_accumulation_steps") or 1
        is_evaluated = self._setting("eval_strategy") not in (None, "no")
        self._eval_rows = each * (self._whole("per_device_eval_batch_size") or 0) if is_evaluated else 0
        self._answer = (self._whole("max_completion_length") or 256) if completions else 0
        limit, packing = self._whole("max_length") or 0, self._setting("packing") is True
        self.tokens = limit if packing or not lengths.row else min(lengths.row, limit or lengths.row)
        if completions:
            self.tokens = lengths.prompt + self._answer
        self._checkpointing = self._setting("gradient_checkpointing") is True
        self._is_fused = experiment.trainer.trl in _FUSED_HEAD
        launch, critic, processes = experiment.launch, experiment.critic, device.processes
        optimizer = str(self._setting("optim") or "adamw_torch_fused").removeprefix("OptimizerNames.").lower()
        self._policy = self._load_policy()
        self._held = held_bytes(
            self._policy, optimizer, strategy=launch.strategy, processes=processes, offload=launch.offload
        )
        self._strategy = STRATEGIES.get(launch.strategy, STRATEGIES["ddp"])
        self._is_sharded = self._strategy.memory_stage == 3
        self._critic, self._critic_held = None, HeldBytes()
        if critic is not None and critic.share == "none":  # in float32 unless `model.dtype` is set (trainers/assemble)
            arch = self._policy.arch if critic.init == "policy" else stored_architecture(critic.init, folder_of)[0]
            number_bytes = DTYPE_BYTES.get(experiment.model.dtype, 4.0)
            self._critic = LoadedModel(arch, number_bytes, autocast=device.bf16, scores=True)
            # every process has the whole critic, even if the policy is sharded
            self._critic_held = held_bytes(self._critic, optimizer, strategy="ddp", processes=processes)
        self.leaves_out: tuple[str, ...] = ()
        self._reward_bytes = sum(self._load_reward_models())
        if optimizer_bytes(optimizer, 4) is None:
            self.leaves_out += (f"the state of the optimizer {optimizer}",)
        if not self._is_fused and experiment.trainer.row.trains != "reward model":
            self.leaves_out += (f"the logits of {experiment.trainer.trl}, which are all there at once",)

    def moments(self) -> list[Moment]:
        """Return the moments of the run that use much memory."""
        always, moments = self._always(), list[Moment]()
        for phase, what, parts in (*self._generation(), *self._training()):
            total = _sum(always, parts)
            if phase == "training" and self._setting("vllm_enable_sleep_mode") is True:
                total["vLLM"] = 0.0
            moments.append(Moment(phase, what, {part: math.ceil(size) for part, size in total.items() if size}))
        return moments

    def _always(self) -> Parts:
        """Return what is held all the time, once the optimizer has made a step."""
        policy, critic, share = self._policy, self._critic_held, self._setting("vllm_gpu_memory_utilization")
        vllm = share * (self._device.num_bytes or 0) if isinstance(share, float) else 0.0
        gathered = _GATHERED_LAYERS * policy.matrix_weights / policy.arch.layers * policy.compute_bytes
        reference = policy.loaded_bytes / (self._device.processes if self._is_sharded else 1)
        return {
            "weights": self._held.weights + (gathered if self._is_sharded else 0.0),
            "gradients": self._held.buckets,
            "optimizer": self._held.optimizer,
            "reference": reference if self._has_reference else 0.0,
            "critic": critic.weights + critic.optimizer + critic.buckets,
            "reward models": self._reward_bytes,
            "vLLM": vllm if self._experiment.launch.rollout == "vllm" else 0.0,
        }

    def _generation(self) -> Iterator[tuple[Phase, str, Parts]]:
        rows, rollout = max(self._completions, self._eval_rows), self._experiment.launch.rollout
        if not self._completions or rollout == "vllm_server":
            return
        is_between = self._completions // self._rows < self._accumulation
        waiting: Parts = {"gradients": self._held.gradients if is_between else 0.0}
        if rollout == "vllm":
            yield "generation", f"generating {rows} completions with vLLM", waiting
            return
        model = replace(self._policy, autocast=False)  # TRL generates outside of autocast
        gathered = 0.0
        if self._strategy.zero_stage == 3:  # TRL's ds3_gather_for_generation
            gathered = model.loaded_bytes - self._held.weights
        generating: Parts = {
            "weights": gathered,
            "KV cache": memory_tensors.cache_bytes(model.arch, rows, self.tokens, model.weight_bytes),
            "activations": memory_tensors.passing_bytes(model, Batch(rows, self._lengths.prompt)),
            "logits": memory_tensors.sampling_bytes(model.arch, rows, model.weight_bytes),
        }
        what = f"generating {rows} completions of {self._lengths.prompt} + {self._answer} tokens"
        yield "generation", what, _sum(waiting, generating)

    def _training(self) -> Iterator[tuple[Phase, str, Parts]]:
        """Yield learning, of the policy and then the critic, the end of a backward pass, and an evaluation's pass."""
        policy, batch = self._policy, self._batch(self._rows)
        rows = f"{self._rows} rows of {self.tokens} tokens"
        again = self._accumulation > 1
        done: Parts = {"gradients": self._held.gradients}
        before: Parts = {"gradients": self._held.gradients * again, "critic": self._critic_held.gradients * again}
        yield "training", f"learning from {rows}", _sum(before, self._learning(policy))
        if self._critic is not None:
            yield "training", f"the critic learning from {rows}", _sum(before | done, self._learning(self._critic))
            done["critic"] = self._critic_held.gradients
        last: Parts = {"activations": memory_tensors.backward_bytes(policy, batch, checkpointing=self._checkpointing)}
        if not policy.lora_rank:  # the embedding's gradient is added to the head's
            last["gradients"] = policy.arch.vocabulary * policy.arch.hidden * policy.weight_bytes
        yield "training", "the end of the backward pass", _sum(done, last)
        if self._eval_rows > self._rows:
            passing = memory_tensors.passing_bytes(policy, self._batch(self._eval_rows))
            evaluating: Parts = {"activations": passing, "logits": self._logits(self._eval_rows, learns=False)}
            yield "training", f"evaluating {self._eval_rows} rows at a time", evaluating

    def _learning(self, model: LoadedModel) -> Parts:
        """Return the larger of what is held while the head's gradient is computed and while the last layer's is."""
        batch = self._batch(self._rows)
        kept = memory_tensors.kept_bytes(model, batch, checkpointing=self._checkpointing)
        if self._experiment.critic is not None and self._experiment.critic.share == "lora":
            kept *= 2  # the passes of policy and critic wait for one backward pass
        if model.casts and model.quantized_bytes is None:  # autocast keeps its copies of the weights
            kept += model.matrix_weights * model.compute_bytes
        a_layer = memory_tensors.backward_bytes(model, batch, checkpointing=self._checkpointing)
        logits = self._logits(self._rows, learns=True) if model is self._policy else 0.0
        return {"activations": kept, "logits": logits} if logits > a_layer else {"activations": kept + a_layer}

    def _logits(self, rows: int, *, learns: bool) -> float:
        if not self._is_fused:
            return 0.0
        on_gpu, keeps = self._device.on_gpu, self._passes != "plain" and bool(self._completions)
        tokens = rows * (self._answer if self._answer and (on_gpu or keeps) else self.tokens)
        return memory_tensors.logits_bytes(self._policy, tokens, learns=learns, on_gpu=on_gpu, may_keep=keeps)

    def _batch(self, rows: int) -> Batch:
        """Return `rows` rows at their longest.

        A packed micro-batch has each prompt once. TRL shuffles a round; its rows are sorted by prompt again if an
        optimizer step has the whole round and the loss allows it (trainers/pass_mixin.py).
        """
        if self._passes != "packed" or not self._completions:
            return Batch(rows, self.tokens, self._lengths.padded and self._setting("packing") is not True)
        micro_batches = max(1, self._completions // self._rows)
        may_sort = POLICY_LOSSES.get(str(self._setting("loss_type"))) != "micro-batch"
        is_sorted = micro_batches == 1 or (may_sort and self._accumulation % micro_batches == 0)
        slice_rows = rows if is_sorted else max(rows, self._completions)
        prompts = min(rows, most_prompts(slice_rows, self._whole("num_generations") or 1))
        return Batch(rows, self.tokens, prompts=prompts, prompt_tokens=self._lengths.prompt)

    @property
    def _has_reference(self) -> bool:
        """Return whether a frozen copy of the policy is held; with an adapter, the policy without it serves as one."""
        experiment = self._experiment
        if experiment.model.lora is not None:
            return False
        if experiment.trainer.trl in ("DPOTrainer", "KTOTrainer"):
            return self._setting("precompute_ref_log_probs") is not True
        if experiment.kl is not None:
            return experiment.kl.where != "none"
        return experiment.trainer.row.generates and self._setting("beta") not in (0, 0.0, None)

    def _load_policy(self) -> LoadedModel:
        model, build = self._experiment.model, self._experiment.model.build
        if build is not None:  # models/tiny.py
            size = build.hidden_size
            config: JsonTree = {"model_type": "llama", "hidden_size": size, "intermediate_size": 4 * size}
            config |= {"num_hidden_layers": build.num_layers, "num_attention_heads": build.num_heads}
            config |= {"vocab_size": TINY_VOCABULARY, "tie_word_embeddings": True}
            arch, stored = architecture_of(config), 4.0
        else:
            arch, stored = stored_architecture(str(model.path), self._folder_of)
        return LoadedModel(
            arch,
            stored if model.dtype == "auto" else DTYPE_BYTES[model.dtype],
            autocast=self._device.bf16,
            quantized_bytes=QUANTIZED_BYTES.get(str(model.quantize)),
            scores="reward_model" in self._experiment.trainer.row.sections,
            lora_rank=model.lora.r if model.lora is not None else 0,
        )

    def _load_reward_models(self) -> Iterator[float]:
        """Yield the bytes of each reward model on the training device, and note those of unknown shape."""
        for name, reward in self._experiment.rewards.items():
            if reward.model is None or (self._device.on_gpu and reward.device == "cpu"):
                continue
            try:
                arch, stored = stored_architecture(reward.model, self._folder_of)
                yield LoadedModel(arch, DTYPE_BYTES.get(reward.dtype, stored), scores=True).loaded_bytes
            except UnknownArchitecture:
                self.leaves_out += (f"the reward model {name}, whose shape is not known",)


def memory_plan(
    experiment: Experiment,
    lengths: RowLengths,
    completions: int,
    *,
    passes: PassMode = "plain",
    device: Device | None = None,
    folder_of: FolderOf = Path,
) -> MemoryPlan:
    """Return what a run needs of one device's memory, or why that is unknown.

    A process generates `completions` at once, 0 if the trainer does not generate. `passes` is how their rows go through
    the models (docs/reference/passes.md).
    """
    device = device or Device()
    plan = MemoryPlan(device="GPU" if device.on_gpu else "CPU", device_bytes=device.num_bytes)
    try:
        found = _RunMemory(experiment, lengths, completions, passes, device, folder_of)
    except UnknownArchitecture as error:
        return replace(plan, unknown=str(error))
    if not found.tokens:
        return replace(plan, unknown="how long the rows are is known when they are read")
    return replace(plan, moments=found.moments(), leaves_out=found.leaves_out)


def _sum(*parts: Parts) -> Parts:
    total: Parts = {}
    for some in parts:
        for part, held in some.items():
            total[part] = total.get(part, 0.0) + held
    return total
