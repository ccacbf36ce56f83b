"""Counts what a process holds of a model all the time: weights, and of one that is trained gradients and optimizer.

The bytes are those of ZeRO (Rajbhandari et al., arXiv 1910.02054, 3.1 and 5): of n processes each holds an n-th of the
optimizer (stage 1), of the gradients too (stage 2), of the weights too (stage 3, and FSDP 2). DeepSpeed keeps a copy
of the weights in float32 for the optimizer; without it, weights in bfloat16 have an optimizer in bfloat16.
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
"""Name in `trainer.args.optim` -> (numbers in the weight's own bytes, bytes whatever those are) beside a weight.

Adam's are m and v (arXiv 1412.6980); of 8 bits (arXiv 2110.02861) the scales of blocks of 2048 are left out, as are
Adafactor's rows and columns (arXiv 1804.04235).
"""


def optimizer_bytes(name: str, weight_bytes: float) -> float | None:
    """Return the bytes that an optimizer keeps beside a weight of so many; None for one that is not known here."""
    known = _OPTIMIZERS.get(name)
    return None if known is None else known[0] * weight_bytes + known[1]


@dataclass(frozen=True)
class Held:
    """The bytes of a model in one process. `gradients` are there from a backward pass to the optimizer's step; the
    `buckets` through which DDP exchanges them, all the time.
    """

    weights: float
    gradients: float
    optimizer: float
    buckets: float = 0.0


@dataclass(frozen=True)
class Sharing:
    """How the processes of a run share a model: by which `strategy`, `processes` of them; `offload` keeps weights and
    optimizer in the host's memory.
    """

    strategy: str
    processes: int
    offload: bool = False

    @property
    def shards_weights(self) -> bool:
        """Return whether a process holds a part of the weights alone."""
        return self.strategy == "fsdp2" or self._stage == 3

    @property
    def shards_gradients(self) -> bool:
        """Return whether a process holds a part of the gradients alone."""
        return self.shards_weights or self._stage == 2

    @property
    def is_deepspeed(self) -> bool:
        """Return whether DeepSpeed's engine trains."""
        return self._stage > 0

    @property
    def _stage(self) -> int:
        return STRATEGIES[self.strategy].zero_stage or 0

    def parts(self, *, sharded: bool) -> int:
        """Return into how many parts something is split."""
        return self.processes if sharded else 1


def weights_bytes(parameters: Parameters, precision: Precision) -> float:
    """Return the bytes of a model's weights as they are loaded."""
    rest = parameters.total - parameters.body
    return parameters.body * precision.body_bytes + rest * precision.weight_bytes


def held(
    parameters: Parameters, trained: int, precision: Precision, *, adapter: int, optimizer: float, sharing: Sharing
) -> Held:
    """Return what a process holds of a model of which `trained` parameters are trained.

    `adapter`: those of an adapter, in addition to the model's own. `optimizer`: bytes beside a trained weight.
    """
    element = precision.weight_bytes
    weights = weights_bytes(parameters, precision) + adapter * element
    gradients, states = trained * element, trained * optimizer
    if sharing.is_deepspeed and precision.autocast:
        # Its engine computes in 2 bytes, and its optimizer has float32.
        weights, gradients, states = weights * 2 / element, trained * 2.0, trained * optimizer * _FLOAT32 / element
    if sharing.is_deepspeed:
        states += trained * _FLOAT32
    if sharing.strategy == "fsdp2" and precision.autocast and element < _FLOAT32:
        # accelerate makes float32 of what is trained, and computes in 2 bytes of it
        more = _FLOAT32 / element
        weights += trained * (_FLOAT32 - element)
        gradients, states = gradients * more, states * more
    weights /= sharing.parts(sharded=sharing.shards_weights)
    states /= sharing.parts(sharded=sharing.strategy != "ddp")
    if sharing.offload:
        weights, states = (0.0 if sharing.shards_weights else weights), 0.0
    buckets = gradients if sharing.strategy == "ddp" and sharing.processes > 1 else 0.0
    return Held(weights, gradients / sharing.parts(sharded=sharing.shards_gradients), states, buckets)
