"""Count the weights of a transformer from its config.json, and the bytes of what a pass through it needs.

What a layer keeps for the backward pass depends on its code, so a family that was not examined raises
`UnknownArchitecture`. The families here were read in transformers 5.23. Norms and biases are below 0.1 % of the weights
and are not counted.

The activations of a layer are counted operation by operation, as in Korthikanti et al. (arXiv 2205.05198, 4.1).
Attention is torch's `sdpa`: it keeps queries, keys, values and its output, no scores. A batch with padding has a mask
of shape (rows, 1, tokens, tokens) in every layer, and copies the keys for every query head. The result is compared with
the tensors that autograd saves (tests/plan/memory/test_tensors.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import UserError
from rlhf_cli.models.tokenizer_files import language_part, read_json
from rlhf_cli.models.weight_shapes import stored_shapes
from rlhf_cli.tables.passes import MAX_SOFTMAX_BYTES
from rlhf_cli.text.json_values import JsonTree

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""Values of `model_type` with Llama's layers: RMSNorm, rotary positions, a gated MLP."""
_QWEN3_HEAD_DIM = 128
DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A weight in QLoRA: 4 bits, an 8-bit scale per 64 weights, and 32 bits per 256 scales (arXiv 2305.14314, 3)."""
QUANTIZED_BYTES = {"4bit": NF4_BYTES, "8bit": 1.0}
"""Bytes of a weight in the layers' matrices. bitsandbytes leaves embedding and head as they are."""


class UnknownArchitecture(ValueError):
    """Raised for a model whose memory use is unknown."""


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder. `hidden` is the width of the residual stream, `ffn` of the MLP, `head_dim` of one head.

    There are `heads` query heads and `kv_heads` key and value heads. `ties_head`: the output head is the embedding.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    ties_head: bool

    @property
    def queries(self) -> int:
        """Return the numbers of all heads' queries for one token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Return the numbers of all heads' keys for one token; the values have the same size."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Return (inputs, outputs) of every matrix in a layer."""
        h, q, kv, f = self.hidden, self.queries, self.keys, self.ffn
        return (h, q), (h, kv), (h, kv), (q, h), (h, f), (h, f), (f, h)


def architecture_of(config: JsonTree) -> Architecture:
    """Return the shape that a config.json describes. Raise UnknownArchitecture for a family not examined yet."""
    text = language_part(config)
    family = str(text.get("model_type"))
    if family not in LLAMA_LIKE:
        raise UnknownArchitecture(f"model_type {family}")

    def whole(name: str, default: int | None = None) -> int:
        value = text.get(name)
        if isinstance(value, int):
            return value
        if default is None:
            raise UnknownArchitecture(f"its config.json says no {name}")
        return default

    hidden, heads = whole("hidden_size"), whole("num_attention_heads")
    return Architecture(
        family=family,
        hidden=hidden,
        layers=whole("num_hidden_layers"),
        heads=heads,
        kv_heads=whole("num_key_value_heads", heads),
        head_dim=whole("head_dim", _QWEN3_HEAD_DIM if family == "qwen3" else hidden // heads),
        ffn=whole("intermediate_size"),
        vocabulary=whole("vocab_size"),
        ties_head=text.get("tie_word_embeddings") is True,
    )


FolderOf = Callable[[str], Path | None]
"""Returns the folder of a model on this machine; None for a hub model that is not in the cache."""


def stored_architecture(path: str, folder_of: FolderOf) -> tuple[Architecture, float]:
    """Return the shape of a model, or of an adapter's base, and the stored bytes per weight.

    Raise UnknownArchitecture if there is no readable config.json, or its model family was not examined.
    """
    folder = folder_of(path)
    if folder is None:
        raise UnknownArchitecture(f"{path} is on the hub and not on this machine")
    adapter = folder / "adapter_config.json"
    try:
        if adapter.is_file() and not (folder / "config.json").is_file():
            return stored_architecture(str(read_json(adapter).get("base_model_name_or_path")), folder_of)
        config = read_json(folder / "config.json")
    except (OSError, UserError):
        raise UnknownArchitecture(f"{folder} has no config.json that can be read") from None
    stored = stored_shapes(folder)
    if stored is not None:
        return architecture_of(config), max(stored, key=lambda one: math.prod(one.shape)).element_bytes
    dtype = config.get("dtype") or config.get("torch_dtype") or language_part(config).get("dtype")
    return architecture_of(config), DTYPE_BYTES.get(str(dtype), 4.0)


@dataclass(frozen=True)
class LoadedModel:
    """A model as a run loads it.

    `weight_bytes` is the size of a weight that is not quantised, `quantized_bytes` that of a weight in the layers'
    matrices if they are quantised. `autocast` computes matrix products in 2 bytes. `scores`: a head of one value takes
    the place of the language model's. `lora_rank` is 0 without an adapter; with one, only the adapter is trained.
    """

    arch: Architecture
    weight_bytes: float
    autocast: bool = False
    quantized_bytes: float | None = None
    scores: bool = False
    lora_rank: int = 0

    @property
    def compute_bytes(self) -> float:
        """Return the bytes per number of a matrix product."""
        return 2.0 if self.autocast else self.weight_bytes

    @property
    def casts(self) -> bool:
        """Return whether autocast copies inputs and weights to 2 bytes."""
        return self.autocast and self.weight_bytes > self.compute_bytes

    @property
    def matrix_weights(self) -> int:
        """Count the weights in the matrices of all layers."""
        return self.arch.layers * sum(inputs * outputs for inputs, outputs in self.arch.matrices)

    @property
    def embedding_weights(self) -> int:
        """Count the weights of the embedding and the head."""
        head = 1 if self.scores else 0 if self.arch.ties_head else self.arch.vocabulary
        return (self.arch.vocabulary + head) * self.arch.hidden

    @property
    def adapter_weights(self) -> int:
        """Count the weights of a LoRA adapter on all matrices: (r, inputs) and (outputs, r) (arXiv 2106.09685, 4.1)."""
        return self.arch.layers * sum(self.lora_rank * (inputs + outputs) for inputs, outputs in self.arch.matrices)

    @property
    def trained_weights(self) -> int:
        """Count the weights that are trained, if this model is trained."""
        return self.adapter_weights if self.lora_rank else self.matrix_weights + self.embedding_weights

    @property
    def loaded_bytes(self) -> float:
        """Return the bytes of all weights as loaded."""
        in_matrices = self.weight_bytes if self.quantized_bytes is None else self.quantized_bytes
        return self.matrix_weights * in_matrices + (self.embedding_weights + self.adapter_weights) * self.weight_bytes


_FLOAT32 = 4


@dataclass(frozen=True)
class Batch:
    """A batch of `rows` rows of `tokens` tokens in one pass; `padded`: the rows differ in length.

    `prompts` is None except for packed rows (models/packing). They start with `prompts` different prompts of
    `prompt_tokens` tokens, which are stored once each.
    """

    rows: int
    tokens: int
    padded: bool = True
    prompts: int | None = None
    prompt_tokens: int = 0

    @property
    def size(self) -> int:
        """Return the number of positions that go through the model."""
        if self.prompts is None:
            return self.rows * self.tokens
        return self.prompts * self.prompt_tokens + self.rows * (self.tokens - self.prompt_tokens)

    @property
    def mask_size(self) -> int:
        """Return the number of elements of the attention masks, queries times keys; 0 without masks."""
        if self.prompts is not None:
            return self.rows * (self.tokens - self.prompt_tokens) * self.tokens
        return self.rows * self.tokens**2 if self.padded else 0


def most_prompts(rows: int, group: int) -> int:
    """Return the maximum number of prompts in a slice of `rows` rows of a list of whole groups cut into such slices.

    A slice starts at most `group - gcd(rows, group)` rows after the start of a group.
    """
    return math.ceil((group - math.gcd(rows, group) + rows) / group)


def kept_bytes(model: LoadedModel, batch: Batch, *, checkpointing: bool) -> float:
    """Return the bytes that all layers keep of `batch` from the forward pass to the backward pass.

    With gradient checkpointing a layer keeps only its input (arXiv 1604.06174; 2205.05198, 5).
    """
    arch, weight = model.arch, model.weight_bytes
    top = batch.size * (_FLOAT32 + 2 * weight) * arch.hidden  # around the last norm
    if checkpointing:
        return batch.size * arch.layers * arch.hidden * weight + top
    return arch.layers * layer_bytes(model, batch) + top


def layer_bytes(model: LoadedModel, batch: Batch) -> float:
    """Return the bytes that one layer keeps for its backward pass, without its weights.

    An adapter is assumed on every matrix.
    """
    arch, weight, compute = model.arch, model.weight_bytes, model.compute_bytes
    h, q, k = arch.hidden, arch.queries, arch.keys
    inputs = 5 if model.casts else 2  # of q, k, v and of gate, up: autocast makes a copy for each of them
    a_token = 2 * _FLOAT32 * h + inputs * compute * h  # norms keep their inputs in float32
    a_token += compute * (2 * q + 2 * (q if batch.padded and batch.prompts is None else k))
    a_token += compute * 4 * arch.ffn  # both branches, the activation of one, the product
    if not model.lora_rank:
        a_token += 2 * weight * h  # the normalised inputs, for the gradients of the norms
    if arch.family == "qwen3":
        a_token += (q + k) * (_FLOAT32 + (compute if not model.lora_rank else 0))  # queries and keys are normalised
    joined = 0.0
    if batch.prompts is not None:  # keys and values of prompt and answer are joined for each row, and the outputs
        a_token += compute * q
        joined = compute * 2 * q * batch.rows * batch.tokens
    return batch.size * a_token + joined + compute * batch.mask_size


def passing_bytes(model: LoadedModel, batch: Batch) -> float:
    """Return the peak bytes of a pass without a gradient: three tensors of the MLP's width, the residual stream, and
    two copies of it in float32.
    """
    arch = model.arch
    return batch.size * (model.compute_bytes * (3 * arch.ffn + arch.hidden) + 2 * _FLOAT32 * arch.hidden)


def backward_bytes(model: LoadedModel, batch: Batch, *, checkpointing: bool) -> float:
    """Return the bytes that the backward pass of one layer needs beside what was kept: two gradients of the MLP's width
    and two of the residual stream's; with gradient checkpointing also what the layer would have kept.
    """
    arch = model.arch
    gradients = batch.size * 2 * (model.compute_bytes * arch.ffn + model.weight_bytes * arch.hidden)
    return gradients + (layer_bytes(model, batch) if checkpointing else 0.0)


def cache_bytes(arch: Architecture, rows: int, tokens: int, number_bytes: float) -> float:
    """Return the bytes of the key-value cache of `rows` rows of `tokens` tokens: a key and a value per layer and token
    (arXiv 2211.05102, 2.1), for the key heads only (arXiv 2305.13245).
    """
    return 2 * arch.layers * arch.keys * tokens * rows * number_bytes


_SAMPLING_COPIES = 4


def sampling_bytes(arch: Architecture, rows: int, number_bytes: float) -> float:
    """Return the bytes of the next token's logits of `rows` rows and of the float32 copies that sampling makes."""
    return rows * arch.vocabulary * (number_bytes + _SAMPLING_COPIES * _FLOAT32)


_TILE_TOKENS, _TILE_WORDS = 4096, 32768
_CPU_TILES_FORWARD, _CPU_TILES_BACKWARD = 4, 8.25


def logits_bytes(model: LoadedModel, tokens: int, *, learns: bool, on_gpu: bool, may_keep: bool) -> float:
    """Return the peak bytes of the head for the log-probabilities of `tokens` tokens, with their gradient if `learns`.

    `may_keep`: a small float32 softmax is kept (models/packing), with two more tensors of its size if `learns`.
    Otherwise TRL 1.16 (kernels/chunked_logprob.py) computes a tile of at most 4096 tokens x 32768 words at a time: one
    tile in a GPU's kernel, several in float32 on a CPU.
    """
    arch = model.arch
    softmax = _FLOAT32 * tokens * arch.vocabulary
    if may_keep and softmax <= MAX_SOFTMAX_BYTES:
        size: float = softmax * (3 if learns else 1)
    elif on_gpu:
        size = model.compute_bytes * min(tokens, _TILE_TOKENS) * _TILE_WORDS
    else:
        tile = _FLOAT32 * min(tokens, _TILE_TOKENS) * min(arch.vocabulary, _TILE_WORDS)
        size = tile * (_CPU_TILES_BACKWARD if learns else _CPU_TILES_FORWARD)
    if learns and not model.lora_rank:
        size += _FLOAT32 * arch.vocabulary * arch.hidden  # the head's own gradient
    return size
