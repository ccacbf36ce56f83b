"""Counts the parameters of a transformer by kind, because a run treats the kinds differently.

LoRA adapts and bitsandbytes quantises the matrices of the body; embedding and head stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.memory.architecture import Architecture
from rlhf_cli.models.adapter_targets import is_target

_OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Parameters:
    """Counts of a model's parameters: the `body`'s matrices, the `embedding` (with learned positions), the `head` (0 if
    it is tied to the embedding) and the `rest`: norms and biases.
    """

    body: int
    embedding: int
    head: int
    rest: int

    @property
    def total(self) -> int:
        """Return the sum of all counts."""
        return self.body + self.embedding + self.head + self.rest


def matrices(arch: Architecture) -> dict[str, tuple[int, int]]:
    """Return (inputs, outputs) of every matrix in a layer, keyed by its module name in transformers."""
    h, q, kv, f = arch.hidden, arch.queries, arch.keys, arch.ffn
    if arch.family == "gpt2":
        return {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, f), "mlp.c_proj": (f, h)}
    return {
        "q_proj": (h, q),
        "k_proj": (h, kv),
        "v_proj": (h, kv),
        "o_proj": (q, h),
        "gate_proj": (h, f),
        "up_proj": (h, f),
        "down_proj": (f, h),
    }


def count_parameters(arch: Architecture, *, head: int | None = None) -> Parameters:
    """Count the parameters of a model of this shape. `head` is the number of outputs of a head that replaces the
    language model's; None for a language model.
    """
    shapes = matrices(arch)
    body = arch.layers * sum(ins * outs for ins, outs in shapes.values())
    embedding = arch.vocabulary * arch.hidden
    of_language = 0 if arch.ties_head else embedding
    out = of_language if head is None else arch.hidden * head
    if arch.family == "gpt2":
        biases = sum(outs for _, outs in shapes.values())
        rest = arch.layers * (biases + 4 * arch.hidden) + 2 * arch.hidden  # a layer norm has a weight and a bias
        return Parameters(body, embedding + arch.context * arch.hidden, out, rest)
    a_layer = 2 * arch.hidden
    if arch.norms_heads:
        a_layer += 2 * arch.head_dim
    if arch.projection_biases:
        a_layer += arch.queries + 2 * arch.keys
    if arch.output_bias:
        a_layer += arch.hidden
    if arch.ffn_biases:
        a_layer += 2 * arch.ffn + arch.hidden
    return Parameters(body, embedding, out, arch.layers * a_layer + arch.hidden)


def count_adapter(arch: Architecture, rank: int, targets: str | Sequence[str]) -> int:
    """Count a LoRA adapter's parameters: (rank, inputs) and (outputs, rank) per matrix (arXiv 2106.09685, 4.1)."""
    each = [_adapted_in(layer, arch, targets) for layer in range(arch.layers)]
    return sum(rank * (ins + outs) for shapes in each for ins, outs in shapes.values())


def adapted(arch: Architecture, targets: str | Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the matrices, in any layer, that peft's `target_modules` selects; `all-linear` selects every one."""
    return {name: shape for layer in range(arch.layers) for name, shape in _adapted_in(layer, arch, targets).items()}


def _adapted_in(layer: int, arch: Architecture, targets: str | Sequence[str]) -> dict[str, tuple[int, int]]:
    shapes = matrices(arch)
    if targets == "all-linear":
        return shapes
    return {name: shape for name, shape in shapes.items() if is_target(_whole_name(arch, layer, name), targets)}


def _whole_name(arch: Architecture, layer: int, name: str) -> str:
    """Return the full name of a module in the model."""
    if arch.family == "gpt2":
        return f"transformer.h.{layer}.{name}"
    return f"model.layers.{layer}.{'self_attn' if name in _OF_ATTENTION else 'mlp'}.{name}"
