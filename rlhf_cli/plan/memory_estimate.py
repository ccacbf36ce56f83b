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

from rich.filesize import decimal as size

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.models.weight_shapes import DTYPE_BYTES, TINY_VOCABULARY
from rlhf_cli.plan import memory_tensors as tensors
from rlhf_cli.plan.batches import RowLengths
from rlhf_cli.plan.devices import Device
from rlhf_cli.tables.passes import PassMode
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES

Phase = Literal["generation", "training"]
PHASES: tuple[Phase, ...] = ("generation", "training")
Parts = Mapping[str, float]  # bytes by the name of a part, for example `KV cache`


@dataclass(frozen=True)
class Moment:
    """The memory of a device at one moment of a `phase`: bytes by part. `what` describes the activity in words."""

    phase: Phase
    what: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts.values())

    def as_json(self) -> dict[str, object]:
        """Return the moment as JSON values, with sizes in bytes."""
        parts = {part.replace(" ", "_"): size for part, size in self.parts.items()}
        return {"phase": self.phase, "what": self.what, "total_bytes": self.total, "parts_bytes": parts}


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs of the memory of one device, as far as that is known before it starts. `moments` is empty if
    that is unknown, and `unknown` says why. `leaves_out` lists in words what is not counted.
    """

    device: Device
    moments: Sequence[Moment] = ()
    unknown: str = ""
    leaves_out: Sequence[str] = ()

    def fullest(self, phase: Phase | None = None) -> Moment | None:
        """Return the peak moment of a phase, or of the run; None if the run has no such phase."""
        moments = (moment for moment in self.moments if phase in (None, moment.phase))
        return max(moments, key=lambda moment: moment.total, default=None)

    @property
    def too_large(self) -> str | None:
        """Return a message if the run needs more memory than its device has; None if it fits or is unknown."""
        there, peak = self.device.num_bytes, self.fullest()
        if peak is None or there is None or peak.total <= there:
            return None
        return f"more than the {size(there)} of the {self.device.kind}: it will not fit"

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON values, with sizes in bytes; do not add up generation and training."""
        peak = self.fullest()
        return {
            "device": self.device.kind,
            "device_bytes": self.device.num_bytes,
            "peak_bytes": peak.total if peak is not None else None,
            "fullest": {moment.phase: moment.as_json() for moment in map(self.fullest, PHASES) if moment is not None},
            "moments": [moment.as_json() for moment in self.moments],
            "unknown": self.unknown or None,
            "leaves_out": list(self.leaves_out),
        }


_OPTIMIZERS: dict[str, tuple[float, float]] = {
    **{f"adamw_{kind}": (2, 0) for kind in ("torch", "torch_fused", "torch_xla", "torch_npu_fused", "apex_fused")},
    **{"adamw_32bit": (0, 8), "lion_32bit": (0, 4), "lion_8bit": (0, 1), "adamw_torch_4bit": (0, 1)},
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), (0, 2)),
    **{"adafactor": (0, 0), "sgd": (0, 0), "adagrad": (1, 0), "rmsprop": (1, 0)},
}
"""`trainer.args.optim` -> (numbers in the weight's dtype, fixed bytes) per weight (arXiv 1412.6980, 2110.02861)."""


@dataclass(frozen=True)
class HeldBytes:
    """Bytes of a trained model in a process: `gradients` until the optimizer's step, DDP's `buckets` of them always."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    buckets: float = 0.0


def held_bytes(
    model: tensors.Decoder, optimizer: str, strategy: str, processes: int, *, offload: bool = False
) -> HeldBytes:
    """Return what a process holds of a trained model; the state of an optimizer not listed here is not counted.

    Each of n processes holds 1/n of the optimizer (ZeRO stage 1), also of the gradients (stage 2), also of the weights
    (stage 3, and FSDP 2; arXiv 1910.02054, 3.1 and 5). Under bf16 DeepSpeed computes in 2 bytes and its optimizer works
    on a float32 copy; accelerate's FSDP converts trained weights to float32.
    """
    row = STRATEGIES[strategy]
    stage, is_deepspeed = row.memory_stage, row.zero_stage is not None
    trained, weights = model.trained_weights, model.loaded_bytes
    number = 4.0 if stage and model.autocast else model.weight_bytes
    numbers, fixed = _OPTIMIZERS.get(optimizer.removeprefix("paged_"), (0, 0))
    gradients, states = trained * number, trained * (numbers * number + fixed)
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


def most_prompts(rows: int, group: int) -> int:
    """Return the maximum number of prompts in a slice of `rows` rows of a list of whole groups cut into such slices."""
    # A slice starts at most `group - gcd(rows, group)` rows after the start of a group.
    return math.ceil((group - math.gcd(rows, group) + rows) / group)


@dataclass
class RunMemory:
    """The models of a run on one device, and the bytes they need at each moment; `lengths` is None if unknown. A
    process generates `completions` at once, 0 if the trainer does not generate; `passes` is how they go through the
    models (docs/development/performance.md).
    """

    experiment: Experiment
    lengths: RowLengths | None
    completions: int
    device: Device
    passes: PassMode = "plain"
    folder_of: tensors.FolderOf = Path

    def plan(self) -> MemoryPlan:
        """Return what the run needs of the memory of its device, or why that is unknown."""
        try:
            self._load()
        except tensors.UnknownArchitecture as error:
            return MemoryPlan(self.device, unknown=str(error))
        if not self._tokens:
            return MemoryPlan(self.device, unknown="the length of the rows is not known yet")
        return MemoryPlan(self.device, tuple(self._moments()), leaves_out=self._leaves_out)

    def _load(self) -> None:
        """Read the models and the sizes of batches. Raise UnknownArchitecture for a policy or critic of that kind."""
        experiment, trainer, lengths = self.experiment, self.experiment.trainer, self.lengths or RowLengths(0, 0)
        self._setting, self._whole, each = trainer.setting, trainer.whole, trainer.row.texts_per_row
        self._leaves_out = [] if self.lengths is not None else ["prompts of unknown length"]
        self._rows, self._prompt = each * (self._whole("per_device_train_batch_size") or 1), lengths.prompt
        answers = trainer.row.answers_up_to or "max_completion_length"
        self._answer = (self._whole(answers) or 256) if self.completions else 0
        limit, packing = self._whole("max_length") or 0, self._setting("packing") is True
        self._tokens = limit if packing or not lengths.row else min(lengths.row, limit or lengths.row)
        if self.completions:
            self._tokens = max(self._tokens if lengths.row else 0, lengths.prompt + self._answer)
        eval_rows = each * (self._whole("per_device_eval_batch_size") or 0)
        self._eval_rows = eval_rows if trainer.evaluates else 0
        self._batch = self._longest_batch(self._rows)
        launch, processes = experiment.launch, self.device.processes
        self._strategy = STRATEGIES[launch.strategy]
        optimizer = str(self._setting("optim") or "adamw_torch_fused").removeprefix("OptimizerNames.").lower()
        model, build = experiment.model, experiment.model.build
        if build is not None:  # models/tiny.py
            h = build.hidden_size
            stored = tensors.Decoder("llama", h, build.num_layers, h, h, 4 * h, TINY_VOCABULARY, ties_head=True)
        else:
            stored = tensors.stored_decoder(str(model.path), self.folder_of)
        self._policy = replace(
            stored,
            weight_bytes=DTYPE_BYTES.get(model.dtype, stored.weight_bytes),
            autocast=self.device.bf16,
            quantized_bytes=tensors.QUANTIZED_BYTES.get(str(model.quantize)),
            scores="reward_model" in trainer.row.sections,
            lora_rank=model.lora.r if model.lora is not None else 0,
        )
        self._held = held_bytes(self._policy, optimizer, launch.strategy, processes, offload=launch.offload)
        self._critic, self._critic_held = self._load_critic(), HeldBytes()
        if self._critic is not None:  # every process has the whole critic, even if the policy is sharded
            self._critic_held = held_bytes(self._critic, optimizer, "ddp", processes)
        self._reward_bytes = sum(
            self._loaded(f"the reward model {name}", reward.model, reward.dtype, scores=True)
            for name, reward in experiment.rewards.items()
            if reward.model is not None and not (self.device.on_gpu and reward.device == "cpu")
        )
        teacher = experiment.teacher
        self._teacher_bytes = 0.0 if teacher is None else self._loaded("the teacher", teacher.path, teacher.dtype)
        extra = model.lora.model_extra if model.lora is not None else None
        grows = ("modules_to_save", "rank_pattern", "target_parameters", "trainable_token_indices")
        self._leaves_out += [f"model.lora.{name}" for name in grows if (extra or {}).get(name)]
        if optimizer.removeprefix("paged_") not in _OPTIMIZERS:
            self._leaves_out.append(f"the state of the optimizer {optimizer}")
        if not trainer.row.bounds_logits and trainer.row.trains != "reward model":
            self._leaves_out.append(f"the logits of {trainer.trl}, all in memory at once")

    def _load_critic(self) -> tensors.Decoder | None:
        """Return a critic with weights of its own; they are in float32 unless `model.dtype` is set."""
        critic, number = self.experiment.critic, DTYPE_BYTES.get(self.experiment.model.dtype, 4.0)
        if critic is None or critic.share != "none":
            return None
        stored = self._policy if critic.init == "policy" else tensors.stored_decoder(critic.init, self.folder_of)
        whole = replace(stored, weight_bytes=number, quantized_bytes=None, lora_rank=0)
        return replace(whole, autocast=self.device.bf16, scores=True)

    def _loaded(self, what: str, path: str, dtype: str, *, scores: bool = False) -> float:
        """Return the bytes of a frozen model's weights; note one of unknown shape, and return 0."""
        try:
            stored = tensors.stored_decoder(path, self.folder_of)
        except tensors.UnknownArchitecture:
            self._leaves_out.append(f"{what}, of unknown shape")
            return 0.0
        return replace(stored, weight_bytes=DTYPE_BYTES.get(dtype, stored.weight_bytes), scores=scores).loaded_bytes

    def _longest_batch(self, rows: int) -> tensors.Batch:
        """Return a micro-batch of `rows` rows at their longest; packed, it has each prompt once.

        A round is shuffled. PPO keeps the rows of a prompt together by itself; else they are sorted by prompt again if
        an optimizer step has the whole round and the loss allows it (trainers/pass_mixin.py).
        """
        if self.passes != "packed" or not self.completions:
            return tensors.Batch(rows, self._tokens, padded=self._setting("packing") is not True)
        ppo, accumulation = self.experiment.trainer.ppo, self._whole("gradient_accumulation_steps") or 1
        micro_batches = max(1, self.completions // self._rows)
        may_sort = POLICY_LOSSES.get(str(self._setting("loss_type"))) != "micro-batch"
        is_sorted = micro_batches == 1 or (may_sort and accumulation % micro_batches == 0)
        is_sorted = is_sorted or (ppo is not None and ppo.shuffle_by == "prompt")
        slice_rows = rows if is_sorted else max(rows, self.completions)
        prompts = min(rows, most_prompts(slice_rows, self._whole("num_generations") or 1))
        return tensors.Batch(rows, self._tokens, prompts=prompts, prompt_tokens=self._prompt)

    def _moments(self) -> Iterator[Moment]:
        """Yield the moments that use much memory: generation, learning (policy, critic), all gradients, evaluation."""
        yield from self._generation()
        again = (self._whole("gradient_accumulation_steps") or 1) > 1
        rows, policy, critic = f"{self._rows} rows of {self._tokens} tokens", self._held, self._critic_held
        before = {"gradients": policy.gradients * again, "critic": critic.gradients * again}
        yield self._moment("training", f"learning from {rows}", before, self._learning(self._policy))
        done = {"gradients": policy.gradients}
        if self._critic is not None:
            parts = self._learning(self._critic)
            yield self._moment("training", f"the critic learning from {rows}", before | done, parts)
            done["critic"] = critic.gradients
        last = {"activations": tensors.layer_bytes(self._policy, self._batch)}
        yield self._moment("training", "the end of the backward pass", done, last)
        if self._eval_rows > self._rows:
            passing = tensors.passing_bytes(self._policy, self._longest_batch(self._eval_rows).size)
            parts = {"activations": passing, "logits": self._logits(self._eval_rows, learns=False)}
            yield self._moment("training", f"evaluating {self._eval_rows} rows at a time", parts)

    def _moment(self, phase: Phase, what: str, *parts: Parts) -> Moment:
        """Return the moment in which `parts` are held in addition to what is held all the time."""
        total: dict[str, float] = {}
        for some in (self._always(), *parts):
            for part, held in some.items():
                total[part] = total.get(part, 0.0) + held
        if phase == "training" and self._setting("vllm_enable_sleep_mode") is True:
            total.pop("vLLM")
        return Moment(phase, what, {part: math.ceil(held) for part, held in total.items() if held})

    def _always(self) -> Parts:
        """Return what is held all the time, once the optimizer has made a step."""
        policy, critic, share = self._policy, self._critic_held, self._setting("vllm_gpu_memory_utilization")
        vllm = share * (self.device.num_bytes or 0) if isinstance(share, float | int) else 0.0
        is_sharded = self._strategy.memory_stage == 3
        gathered = 2 * policy.matrix_weights / policy.layers * policy.compute_bytes  # a layer's, and the next one's
        shards = self.device.processes if is_sharded else 1
        experiment = self.experiment  # with an adapter, the policy without it serves as the reference
        is_computed_once = self._setting("precompute_ref_log_probs") is True
        has_reference = experiment.has_reference and experiment.model.lora is None and not is_computed_once
        return {
            "weights": self._held.weights + (gathered if is_sharded else 0.0),
            "gradients": self._held.buckets,
            "optimizer": self._held.optimizer,
            "reference": policy.loaded_bytes / shards if has_reference else 0.0,
            "teacher": self._teacher_bytes / shards,
            "critic": critic.weights + critic.optimizer + critic.buckets,
            "reward models": self._reward_bytes,
            "vLLM": vllm if experiment.launch.rollout == "vllm" else 0.0,
        }

    def _generation(self) -> Iterator[Moment]:
        rows, rollout = max(self.completions, self._eval_rows), self.experiment.launch.rollout
        if not self.completions or rollout == "vllm_server":
            return
        if rollout == "vllm":
            yield self._moment("generation", f"generating {rows} completions with vLLM")
            return
        # TRL's ds3_gather_for_generation
        gathered = self._policy.loaded_bytes - self._held.weights if self._strategy.zero_stage == 3 else 0.0
        what = f"generating {rows} completions of {self._prompt} + {self._answer} tokens"
        parts = tensors.generating_bytes(self._policy, rows, self._prompt, self._tokens)
        yield self._moment("generation", what, {"weights": gathered}, parts)

    def _learning(self, model: tensors.Decoder) -> Parts:
        """Return what is held while the head's gradient is computed, or a layer anew for its gradient: the larger."""
        checkpointing = self._setting("gradient_checkpointing") is True
        kept = tensors.kept_bytes(model, self._batch, checkpointing=checkpointing)
        if self.experiment.critic is not None and self.experiment.critic.share == "lora":
            kept *= 2  # the passes of policy and critic wait for one backward pass
        if model.casts and model.quantized_bytes is None:  # autocast keeps its copies of the weights
            kept += model.matrix_weights * model.compute_bytes
        again = tensors.layer_bytes(model, self._batch) + tensors.passing_bytes(model, self._batch.size)
        a_layer = again if checkpointing else 0.0
        logits = self._logits(self._rows, learns=True) if model is self._policy else 0.0
        return {"activations": kept, "logits": logits} if logits > a_layer else {"activations": kept + a_layer}

    def _logits(self, rows: int, *, learns: bool) -> float:
        if not self.experiment.trainer.row.bounds_logits:
            return 0.0
        on_gpu, selects = self.device.on_gpu, self.passes != "plain" and bool(self.completions)
        tokens = rows * (self._answer if self._answer and (on_gpu or selects) else self._tokens)
        return tensors.logits_bytes(self._policy, tokens, learns=learns, on_gpu=on_gpu)
