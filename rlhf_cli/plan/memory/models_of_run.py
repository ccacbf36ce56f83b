"""List the models that a run holds, their states, and the rows that go through them at a time.

The bytes are those of ZeRO (Rajbhandari et al., arXiv 1910.02054, 3.1 and 5): each of n processes holds 1/n of the
optimizer (stage 1), also of the gradients (stage 2), also of the weights (stage 3, and FSDP 2). DeepSpeed keeps a
float32 copy of the weights for the optimizer; without it, weights in bfloat16 have an optimizer in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.plan.memory import parts
from rlhf_cli.plan.memory.parts import Adapter, Batch, entropy_learns, most_prompts, prompts_learned_from
from rlhf_cli.plan.memory.shapes import (
    DTYPE_BYTES,
    INT8_BYTES,
    NF4_BYTES,
    Architecture,
    ModelShape,
    Parameters,
    Precision,
    UnknownArchitecture,
    adapted,
    count_adapter,
    count_parameters,
    model_shape,
    tiny_shape,
)
from rlhf_cli.tables.modes import PassMode
from rlhf_cli.tables.strategies import STRATEGIES

_ONE_SCORE = 1


@dataclass(frozen=True)
class Loaded:
    """A model as a run loads it. With an `adapter`, only `adapter_parameters` and `head_parameters` are trained."""

    architecture: Architecture
    parameters: Parameters
    precision: Precision
    adapter: Adapter | None = None
    adapter_parameters: int = 0
    head_parameters: int = 0
    """Parameters of a new head, which is trained together with an adapter."""

    @property
    def trained(self) -> int:
        """Return how many parameters are trained, if this model is trained."""
        return self.parameters.total if self.adapter is None else self.adapter_parameters + self.head_parameters


def policy_of(experiment: Experiment, *, bf16: bool) -> Loaded:
    """Return the model that is trained. `bf16`: its matrices are computed in 2 bytes.

    Raise UnknownArchitecture if its shape is unknown.
    """
    model = experiment.model
    shape = _policy_shape(experiment)
    arch = shape.architecture
    element = shape.stored_bytes if model.dtype == "auto" else DTYPE_BYTES[model.dtype]
    quantised = {None: None, "4bit": NF4_BYTES, "8bit": INT8_BYTES}[model.quantize]
    precision = Precision(element, autocast=bf16, quantised_bytes=quantised)
    scores = "reward_model" in experiment.trainer.row.sections
    parameters = count_parameters(arch, head=_ONE_SCORE if scores else None)
    if model.lora is None:
        return Loaded(arch, parameters, precision)
    targets = model.lora.target_modules
    return Loaded(
        arch,
        parameters,
        precision,
        Adapter(model.lora.r, tuple(name.rpartition(".")[2] for name in adapted(arch, targets))),
        count_adapter(arch, model.lora.r, targets),
        parameters.head if scores else 0,
    )


def critic_of(experiment: Experiment, policy: Loaded) -> Loaded | None:
    """Return the critic with its head of one value if it is a separate model, else None.

    Without a `model.dtype` its weights are in float32 (assemble/ppo_parts.py).
    """
    critic = experiment.critic
    if critic is None or critic.share != "none":
        return None
    arch = policy.architecture if critic.init == "policy" else model_shape(critic.init).architecture
    element = DTYPE_BYTES.get(experiment.model.dtype, 4.0)
    precision = Precision(element, autocast=policy.precision.autocast)
    return Loaded(arch, count_parameters(arch, head=_ONE_SCORE), precision)


def reward_models_of(experiment: Experiment, *, on_gpu: bool) -> tuple[dict[str, Loaded], list[str]]:
    """Return the reward models on the training device, keyed by reward, and the names of those of unknown shape."""
    known: dict[str, Loaded] = {}
    unknown: list[str] = []
    for name, reward in experiment.rewards.items():
        if reward.model is None or (on_gpu and reward.device == "cpu"):
            continue
        try:
            shape = model_shape(reward.model)
        except UnknownArchitecture:
            unknown.append(name)
            continue
        element = DTYPE_BYTES.get(reward.dtype, shape.stored_bytes)
        parameters = count_parameters(shape.architecture, head=_ONE_SCORE)
        known[name] = Loaded(shape.architecture, parameters, Precision(element))
    return known, unknown


def has_reference(experiment: Experiment) -> bool:
    """Return whether a separate frozen copy of the policy is held. With an adapter, the policy without it is the
    reference.
    """
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    if experiment.model.lora is not None:
        return False
    if experiment.trainer.trl in ("DPOTrainer", "KTOTrainer"):
        return setting(fields, args, "precompute_ref_log_probs") is not True
    if not experiment.trainer.row.generates:
        return False
    kl = experiment.kl
    if kl is not None:
        return kl.coef != 0 and kl.form.needs_reference
    return setting(fields, args, "beta") not in (0, 0.0, None)


def _policy_shape(experiment: Experiment) -> ModelShape:
    model, build = experiment.model, experiment.model.build
    if build is not None:
        return tiny_shape(build.hidden_size, build.num_layers, build.num_heads, build.context_tokens)
    return model_shape(str(model.path), revision=model.revision)


_FLOAT32 = 4

_OPTIMIZERS: dict[str, tuple[float, float]] = {
    **{f"adamw_{kind}": (2, 0) for kind in ("torch", "torch_fused", "torch_xla", "torch_npu_fused", "apex_fused")},
    **{f"{paged}adamw_32bit": (0, 8) for paged in ("", "paged_")},
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"), (0, 2)),
    "adamw_torch_8bit": (0, 2),
    "adamw_torch_4bit": (0, 1),
    **{f"{paged}lion_32bit": (0, 4) for paged in ("", "paged_")},
    **{f"{paged}lion_8bit": (0, 1) for paged in ("", "paged_")},
    "adafactor": (0, 0),
    "sgd": (0, 0),
    "adagrad": (1, 0),
    "rmsprop": (1, 0),
    "rmsprop_bnb": (0, 4),
    "rmsprop_bnb_8bit": (0, 1),
}
"""Name in `trainer.args.optim` -> (numbers in the weight's dtype, fixed bytes) per weight.

Adam's are m and v (arXiv 1412.6980). The scales of 8-bit blocks of 2048 (arXiv 2110.02861) and Adafactor's rows and
columns (arXiv 1804.04235) are left out.
"""


def optimizer_bytes(name: str, weight_bytes: float) -> float | None:
    """Return the bytes that an optimizer keeps per weight of `weight_bytes`; None for an optimizer not listed here."""
    known = _OPTIMIZERS.get(name)
    return None if known is None else known[0] * weight_bytes + known[1]


@dataclass(frozen=True)
class Held:
    """The bytes of a model in one process. `gradients` exist from a backward pass to the optimizer's step; DDP's
    `buckets` for exchanging them, all the time.
    """

    weights: float
    gradients: float
    optimizer: float
    buckets: float = 0.0


@dataclass(frozen=True)
class Sharing:
    """How the processes of a run share a model: the `strategy` and the number of `processes`; `offload` keeps weights
    and optimizer in the host's memory.
    """

    strategy: str
    processes: int
    offload: bool = False

    @property
    def shards_weights(self) -> bool:
        """Return whether a process holds only a part of the weights."""
        return self.strategy == "fsdp2" or self._stage == 3

    @property
    def shards_gradients(self) -> bool:
        """Return whether a process holds only a part of the gradients."""
        return self.shards_weights or self._stage == 2

    @property
    def is_deepspeed(self) -> bool:
        """Return whether DeepSpeed's engine is used."""
        return self._stage > 0

    @property
    def _stage(self) -> int:
        return STRATEGIES[self.strategy].zero_stage or 0

    def parts(self, *, sharded: bool) -> int:
        """Return the number of parts that something is split into."""
        return self.processes if sharded else 1


def weights_bytes(parameters: Parameters, precision: Precision) -> float:
    """Return the bytes of a model's weights as loaded."""
    rest = parameters.total - parameters.body
    return parameters.body * precision.body_bytes + rest * precision.weight_bytes


def held(
    parameters: Parameters, trained: int, precision: Precision, *, adapter: int, optimizer: float, sharing: Sharing
) -> Held:
    """Return what a process holds of a model with `trained` trained parameters.

    `adapter`: parameters of an adapter, in addition to the model's own. `optimizer`: bytes per trained weight.
    """
    element = precision.weight_bytes
    weights = weights_bytes(parameters, precision) + adapter * element
    gradients, states = trained * element, trained * optimizer
    if sharing.is_deepspeed and precision.autocast:
        # DeepSpeed computes in 2 bytes, and its optimizer uses float32.
        weights, gradients, states = weights * 2 / element, trained * 2.0, trained * optimizer * _FLOAT32 / element
    if sharing.is_deepspeed:
        states += trained * _FLOAT32
    if sharing.strategy == "fsdp2" and precision.autocast and element < _FLOAT32:
        # accelerate converts trained weights to float32, and computes in 2 bytes
        more = _FLOAT32 / element
        weights += trained * (_FLOAT32 - element)
        gradients, states = gradients * more, states * more
    weights /= sharing.parts(sharded=sharing.shards_weights)
    states /= sharing.parts(sharded=sharing.strategy != "ddp")
    if sharing.offload:
        weights, states = (0.0 if sharing.shards_weights else weights), 0.0
    buckets = gradients if sharing.strategy == "ddp" and sharing.processes > 1 else 0.0
    return Held(weights, gradients / sharing.parts(sharded=sharing.shards_gradients), states, buckets)


_PAIRED = ("DPOTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer")
_TRIPLES = ("TPOTrainer",)


@dataclass(frozen=True)
class Lengths:
    """The tokens of the longest prompt and of the longest row that is trained on as it is, 0 for unknown. `padded`: the
    rows differ in length.
    """

    prompt: int
    row: int
    padded: bool = True


@dataclass(frozen=True)
class RunLoad:
    """What one process puts through its models at a time, in rows; `tokens` is the maximum per row.

    `completions` are generated at once, with `prompt_tokens` and `completion_tokens`; 0 for trainers that do not
    generate.
    """

    micro_batch: int
    tokens: int
    accumulation: int
    completions: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    evaluated_at_once: int = 0
    generates_between: bool = False
    """Whether it generates in the middle of an optimizer step, while gradients are held."""
    padded: bool = True
    passes: PassMode = "plain"
    """How the rows of a round go through the models (docs/passes.md)."""
    group: int = 1
    """Completions per prompt; `evaluated_group` in an evaluation."""
    evaluated_group: int = 1
    prompts: int = 0
    """The maximum number of prompts in a training micro-batch."""

    def learned(self, *, with_last: bool = False) -> Batch:
        """Return a training micro-batch; `with_last`: include the position after a row's last token."""
        return self._batch(self.micro_batch, self.prompts, with_last=with_last)

    def passed(self) -> Batch:
        """Return the batch of a pass without a gradient, before a round is trained on."""
        return self._batch(self.micro_batch, most_prompts(self.micro_batch, self.group))

    def evaluated(self) -> Batch:
        """Return the batch of a pass for an evaluation's loss."""
        return self._batch(self.evaluated_at_once, most_prompts(self.evaluated_at_once, self.evaluated_group))

    def _batch(self, rows: int, prompts: int, *, with_last: bool = False) -> Batch:
        if self.passes != "packed":
            return Batch(rows, self.tokens, self.padded)
        return Batch(rows, self.tokens + with_last, self.padded, prompts, self.prompt_tokens)


def run_load(experiment: Experiment, lengths: Lengths, completions: int, passes: PassMode = "plain") -> RunLoad:
    """Return what one process of an experiment puts through its models; it generates `completions` at once, or 0.

    `passes` is how rows go through the models of a trainer that generates.
    """
    row, args = experiment.trainer.row, experiment.trainer.args
    fields = trainer(experiment.trainer.trl)

    def whole(name: str, default: int) -> int:
        value = setting(fields, args, name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    per_device, accumulation = whole("per_device_train_batch_size", 8), whole("gradient_accumulation_steps", 1)
    evaluates = setting(fields, args, "eval_strategy") not in (None, "no")
    at_once = whole("per_device_eval_batch_size", 8) if evaluates else 0
    if row.generates:
        answer = whole("max_completion_length", 256)
        micro_batches = completions // per_device
        is_between = 0 < micro_batches < accumulation
        group = max(1, whole("num_generations", 1))
        return RunLoad(
            per_device,
            lengths.prompt + answer,
            accumulation,
            completions,
            lengths.prompt,
            answer,
            at_once,
            is_between,
            lengths.padded,
            passes,
            group,
            max(1, whole("num_generations_eval", group)),
            prompts_learned_from(experiment, per_device, completions),
        )
    limit = whole("max_length", 0)
    is_packed = setting(fields, args, "packing") is True
    tokens = limit if is_packed or not lengths.row else min(lengths.row, limit or lengths.row)
    name = experiment.trainer.trl
    answers = 2 if name in _PAIRED else 3 if name in _TRIPLES else 1
    return RunLoad(
        per_device * answers,
        tokens,
        accumulation,
        evaluated_at_once=at_once * answers,
        padded=lengths.padded and not is_packed,
    )


_FUSED_HEAD = ("GRPOTrainer", "RLOOTrainer", "GMPOTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer")


class PolicyHead:
    """The head of a policy: the bytes it needs for rows with and without a gradient."""

    def __init__(self, experiment: Experiment, load: RunLoad, policy: Loaded, sharing: Sharing, *, on_gpu: bool):
        self._experiment, self._load, self._policy, self._on_gpu = experiment, load, policy, on_gpu
        self._is_gathered = sharing.is_deepspeed and sharing.shards_weights  # gathered only in the forward pass
        self.is_fused = experiment.trainer.trl in _FUSED_HEAD

    def forward_bytes(self, rows: int) -> float:
        """Return the bytes for the log-probabilities of `rows` rows without a gradient."""
        if not self.is_fused:
            return 0.0
        arch, precision, tokens = self._policy.architecture, self._policy.precision, self.scored(rows)
        if self._is_one_pass(tokens):
            return parts.one_pass_forward_bytes(arch, precision, tokens, has_entropy=False)
        return parts.forward_bytes(arch, precision, tokens, on_gpu=self._on_gpu)

    def learning_bytes(self, rows: int) -> float:
        """Return the peak bytes for the gradient of `rows` rows, forward or backward."""
        arch, precision, tokens = self._policy.architecture, self._policy.precision, self.scored(rows)
        trains_head = self._policy.adapter is None
        if not self._is_one_pass(tokens):
            return parts.head_backward_bytes(arch, precision, tokens, trains_head=trains_head, on_gpu=self._on_gpu)
        return max(
            parts.one_pass_forward_bytes(arch, precision, tokens, has_entropy=True),
            parts.one_pass_backward_bytes(
                arch, precision, tokens, trains_head=trains_head, entropy_learns=entropy_learns(self._experiment)
            ),
        )

    def scored(self, rows: int) -> int:
        """Return the tokens of `rows` rows that go through the head: without Triton, TRL includes the prompt."""
        load = self._load
        is_answer_alone = load.completion_tokens and (self._on_gpu or load.passes != "plain")
        return rows * (load.completion_tokens if is_answer_alone else load.tokens)

    def _is_one_pass(self, tokens: int) -> bool:
        if self._load.passes == "plain" or self._is_gathered:
            return False
        return parts.fits_one_pass(self._policy.architecture, tokens)
