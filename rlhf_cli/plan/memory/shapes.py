"""Read the shape of a transformer and count its parameters by kind.

What a model family keeps for the backward pass depends on how its layers are written, so a family that was not examined
raises `UnknownArchitecture` instead of a guess. The families here were read in transformers 5.23 and are checked
against the tensors that autograd saves (tests/plan/memory/test_saved_tensors.py).

LoRA adapts and bitsandbytes quantises the matrices of the body; embedding and head stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_cli.models.model_folders import TINY_VOCABULARY
from rlhf_cli.models.tokenizer_files import language_part
from rlhf_cli.models.weight_shapes import is_target, stored_shapes
from rlhf_cli.text.json_values import JsonTree

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""Values of `model_type` with Llama's layers: RMSNorm, rotary positions, a gated MLP."""
_WITHOUT_BIASES = ("mistral",)
"""Families that ignore `attention_bias`."""
_MAY_HAVE_FFN_BIASES = ("llama", "smollm3")
"""Families that read `mlp_bias`; the MLP of the others never has biases."""


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder. Sizes count numbers: `hidden` is the width of the residual stream, `ffn` of the MLP.

    `head_dim` is the width of one attention head; there are `heads` query heads and `kv_heads` key and value heads.
    `ties_head`: the output head is the embedding. `norms_heads`: queries and keys are normalised (Qwen3).
    `projection_biases` and `output_bias`: whether q, k, v and o have biases; `ffn_biases`: whether the MLP's matrices
    have. `gated`: the MLP multiplies two branches.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    context: int
    ties_head: bool
    gated: bool = True
    norms_heads: bool = False
    projection_biases: bool = False
    output_bias: bool = False
    ffn_biases: bool = False

    @property
    def queries(self) -> int:
        """Return the size of all heads' queries for one token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Return the size of all heads' keys for one token; the values have the same size."""
        return self.kv_heads * self.head_dim

    def as_json(self) -> dict[str, object]:
        """Return a dict of the fields."""
        return asdict(self)


class UnknownArchitecture(ValueError):
    """Raised for a model whose memory use is unknown."""


def architecture_of(config: JsonTree) -> Architecture:
    """Return the shape that a config.json describes. Raise UnknownArchitecture for a family not examined yet."""
    text = language_part(config)
    kind = str(text.get("model_type"))
    if kind == "gpt2":
        return _gpt2(text)
    if kind not in LLAMA_LIKE:
        raise UnknownArchitecture(f"model_type {kind}")
    hidden, heads = _whole(text, "hidden_size"), _whole(text, "num_attention_heads")
    has_biases = kind not in _WITHOUT_BIASES and text.get("attention_bias") is True
    return Architecture(
        family=kind,
        hidden=hidden,
        layers=_whole(text, "num_hidden_layers"),
        heads=heads,
        kv_heads=_whole(text, "num_key_value_heads", heads),
        head_dim=_whole(text, "head_dim", 128 if kind == "qwen3" else hidden // heads),
        ffn=_whole(text, "intermediate_size"),
        vocabulary=_whole(text, "vocab_size"),
        context=_whole(text, "max_position_embeddings", 0),
        ties_head=text.get("tie_word_embeddings", False) is True,
        norms_heads=kind == "qwen3",
        projection_biases=kind == "qwen2" or has_biases,
        output_bias=kind != "qwen2" and has_biases,
        ffn_biases=kind in _MAY_HAVE_FFN_BIASES and text.get("mlp_bias") is True,
    )


def _gpt2(text: JsonTree) -> Architecture:
    hidden, heads = _whole(text, "n_embd"), _whole(text, "n_head")
    return Architecture(
        family="gpt2",
        hidden=hidden,
        layers=_whole(text, "n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=_whole(text, "n_inner", 4 * hidden),
        vocabulary=_whole(text, "vocab_size"),
        context=_whole(text, "n_positions"),
        ties_head=text.get("tie_word_embeddings", True) is True,
        gated=False,
        projection_biases=True,
        output_bias=True,
        ffn_biases=True,
    )


def _whole(config: JsonTree, name: str, default: int | None = None) -> int:
    value = config.get(name)
    if isinstance(value, int):
        return value
    if default is None:
        raise UnknownArchitecture(f"its config.json says no {name}")
    return default


DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model, and the stored bytes per weight."""

    architecture: Architecture
    stored_bytes: float


def tiny_shape(hidden_size: int, num_layers: int, num_heads: int, context_tokens: int) -> ModelShape:
    """Return the shape of the Llama that `model.build` makes (models/tiny.py), in float32."""
    architecture = Architecture(
        family="llama",
        hidden=hidden_size,
        layers=num_layers,
        heads=num_heads,
        kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        ffn=4 * hidden_size,
        vocabulary=TINY_VOCABULARY,
        context=context_tokens,
        ties_head=True,
    )
    return ModelShape(architecture, 4.0)


def model_shape(path: str, *, revision: str | None = None) -> ModelShape:
    """Return the shape of the model in a folder or, for a hub id, in the hub's cache on this machine.

    Raise UnknownArchitecture if there is no readable config.json, or its model family was not examined.
    """
    folder = _folder(path, revision)
    adapter = folder / "adapter_config.json"
    if adapter.is_file() and not (folder / "config.json").is_file():
        return model_shape(str(_read(adapter).get("base_model_name_or_path")))
    config = _read(folder / "config.json")
    architecture = architecture_of(config)
    stored = stored_shapes(folder)
    if stored is not None:  # the dtype of the largest weight: a head may have another
        return ModelShape(architecture, max(stored, key=lambda shape: shape.numel).element_bytes)
    text = language_part(config)
    said = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    return ModelShape(architecture, DTYPE_BYTES.get(str(said), 4.0))


def _folder(path: str, revision: str | None) -> Path:
    folder = Path(path).expanduser()
    if folder.exists():
        return folder
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "adapter_config.json"):
        file = try_to_load_from_cache(path, name, revision=revision)
        if isinstance(file, str):
            return Path(file).parent
    raise UnknownArchitecture(f"{path} is on the hub and not on this machine")


def _read(file: Path) -> JsonTree:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UnknownArchitecture(f"{file} cannot be read") from None
    if not isinstance(content, dict):
        raise UnknownArchitecture(f"{file} is no JSON object")
    return content


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


NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A weight in QLoRA: 4 bits, an 8-bit scale per 64 weights, and 32 bits per 256 scales (arXiv 2305.14314, 3)."""
INT8_BYTES = 1.0
"""A weight in LLM.int8() (arXiv 2208.07339), without its scales (one per row of a matrix)."""


@dataclass(frozen=True)
class Precision:
    """Bytes per number. `weight_bytes` is the size of a weight that is not quantised; `autocast` computes matrices in 2
    bytes in any case. `quantised_bytes` is the size of a weight in the body's matrices, None if they are not quantised.
    """

    weight_bytes: float
    autocast: bool = False
    quantised_bytes: float | None = None

    @property
    def compute_bytes(self) -> float:
        """Return the bytes per element of a matrix product."""
        return 2.0 if self.autocast else self.weight_bytes

    @property
    def body_bytes(self) -> float:
        """Return the bytes of a weight in the body's matrices."""
        return self.weight_bytes if self.quantised_bytes is None else self.quantised_bytes

    @property
    def copies_weights(self) -> bool:
        """Return whether autocast keeps a 2-byte copy of the body's matrices until a backward pass ends."""
        return self.autocast and self.quantised_bytes is None and self.weight_bytes > self.compute_bytes
