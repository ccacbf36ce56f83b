"""Counts what a process holds of a model all the time: weights and, if it is trained, gradients and optimizer state.

The bytes are those of ZeRO (Rajbhandari et al., arXiv 1910.02054, 3.1 and 5): each of n processes holds 1/n of the
optimizer (stage 1), also of the gradients (stage 2), also of the weights (stage 3, and FSDP 2). DeepSpeed keeps a
float32 copy of the weights for the optimizer; without it, weights in bfloat16 have an optimizer in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.memory.parameters import Parameters
from rlhf_cli.memory.precision import Precision
from rlhf_cli.tables.strategies import STRATEGIES

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
