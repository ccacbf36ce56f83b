"""Count the bytes of a transformer from its config.json: its weights, and what a pass through it needs.

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
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.errors import UserError
from rlhf_cli.models.tokenizer_files import adapter_base, dtype_of, language_part, read_json
from rlhf_cli.models.weight_shapes import DTYPE_BYTES, stored_shapes
from rlhf_cli.text.json_values import JsonTree

FolderOf = Callable[[str], Path | None]  # a model -> its folder here; None for a hub model that is not in the cache
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""Values of `model_type` with Llama's layers: RMSNorm, rotary positions, a gated MLP."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A weight in QLoRA: 4 bits, an 8-bit scale per 64 weights, and 32 bits per 256 scales (arXiv 2305.14314, 3)."""
QUANTIZED_BYTES = {"4bit": NF4_BYTES, "8bit": 1.0}
"""Bytes of a weight in the layers' matrices. bitsandbytes leaves embedding and head as they are."""
_TILE_TOKENS, _TILE_WORDS = 4096, 32768
_CPU_TILES_FORWARD, _CPU_TILES_BACKWARD = 4, 8.25
_FLOAT32 = 4


class UnknownArchitecture(ValueError):
    """Raised for a model whose memory use is unknown."""


@dataclass(frozen=True)
class Decoder:
    """A decoder as a run loads it.

    `hidden` is the width of the residual stream, `ffn` of the MLP, `queries` of all query heads, `keys` of all key
    heads; values are as wide as keys. `ties_head`: the output head is the embedding. `scores`: a head of one value is
    there instead. `weight_bytes` is the size of a weight that is not quantised, `quantized_bytes` that of a quantised
    one in the layers' matrices. `autocast` computes matrix products in 2 bytes. With a `lora_rank` (0 for no adapter)
    only the adapter is trained.
    """

    family: str
    hidden: int
    layers: int
    queries: int
    keys: int
    ffn: int
    vocabulary: int
    ties_head: bool
    weight_bytes: float = 4.0
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
        return self.compute_bytes < self.weight_bytes

    @property
    def _matrices(self) -> tuple[tuple[int, int], ...]:
        """Return (inputs, outputs) of every matrix in a layer."""
        h, q, k, f = self.hidden, self.queries, self.keys, self.ffn
        return (h, q), (h, k), (h, k), (q, h), (h, f), (h, f), (f, h)

    @property
    def matrix_weights(self) -> int:
        """Count the weights in the matrices of all layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self._matrices)

    @property
    def embedding_weights(self) -> int:
        """Count the weights of the embedding and the head."""
        head = 1 if self.scores else 0 if self.ties_head else self.vocabulary
        return (self.vocabulary + head) * self.hidden

    @property
    def adapter_weights(self) -> int:
        """Count the weights of a LoRA adapter on all matrices: (r, inputs) and (outputs, r) (arXiv 2106.09685, 4.1)."""
        return self.layers * sum(self.lora_rank * (inputs + outputs) for inputs, outputs in self._matrices)

    @property
    def trained_weights(self) -> int:
        """Count the weights that are trained, if this model is trained."""
        return self.adapter_weights if self.lora_rank else self.matrix_weights + self.embedding_weights

    @property
    def loaded_bytes(self) -> float:
        """Return the bytes of all weights as loaded."""
        in_matrices = self.weight_bytes if self.quantized_bytes is None else self.quantized_bytes
        return self.matrix_weights * in_matrices + (self.embedding_weights + self.adapter_weights) * self.weight_bytes


def decoder_of(config: JsonTree) -> Decoder:
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
    head_dim = whole("head_dim", 128 if family == "qwen3" else hidden // heads)
    return Decoder(
        family=family,
        hidden=hidden,
        layers=whole("num_hidden_layers"),
        queries=heads * head_dim,
        keys=whole("num_key_value_heads", heads) * head_dim,
        ffn=whole("intermediate_size"),
        vocabulary=whole("vocab_size"),
        ties_head=text.get("tie_word_embeddings") is True,
    )


def stored_decoder(path: str, folder_of: FolderOf) -> Decoder:
    """Return a model, or the base of an adapter, with weights in the dtype in which they are stored. Raise
    UnknownArchitecture if it is not on this machine, has no readable config.json, or its family was not examined.
    """
    folder = folder_of(path)
    if folder is None:
        raise UnknownArchitecture(f"{path} is on the hub and not on this machine")
    try:
        if (base := adapter_base(folder)) is not None:
            return stored_decoder(base, folder_of)
        config = read_json(folder / "config.json")
    except (OSError, UserError):
        raise UnknownArchitecture(f"{folder} has no config.json that can be read") from None
    stored = stored_shapes(folder)
    if stored is not None:
        largest = max(stored, key=lambda weight: math.prod(weight.shape))
        return replace(decoder_of(config), weight_bytes=largest.element_bytes)
    return replace(decoder_of(config), weight_bytes=DTYPE_BYTES.get(str(dtype_of(config)), 4.0))


@dataclass(frozen=True)
class Batch:
    """A batch of `rows` rows of `tokens` tokens in one pass; `padded`: the rows differ in length. `prompts` is 0 except
    for packed rows (models/packing). They start with `prompts` different prompts of `prompt_tokens` tokens, which are
    stored once each.
    """

    rows: int
    tokens: int
    padded: bool = True
    prompts: int = 0
    prompt_tokens: int = 0

    @property
    def size(self) -> int:
        """Return the number of positions that go through the model."""
        return self.prompts * self.prompt_tokens + self.rows * (self.tokens - self.prompt_tokens)


def kept_bytes(model: Decoder, batch: Batch, *, checkpointing: bool) -> float:
    """Return the bytes that all layers keep of `batch` from the forward pass to the backward pass: with gradient
    checkpointing only their inputs (arXiv 1604.06174; 2205.05198, 5).
    """
    top = batch.size * (_FLOAT32 + 2 * model.weight_bytes) * model.hidden  # around the last norm
    a_layer = batch.size * model.hidden * model.weight_bytes if checkpointing else layer_bytes(model, batch)
    return model.layers * a_layer + top


def layer_bytes(model: Decoder, batch: Batch) -> float:
    """Return the bytes that one layer, with an adapter on every matrix or none, keeps for its backward pass."""
    weight, compute = model.weight_bytes, model.compute_bytes
    h, q, k = model.hidden, model.queries, model.keys
    inputs = 5 if model.casts else 2  # of q, k, v and of gate, up: autocast makes a copy for each of them
    a_token = 2 * _FLOAT32 * h + inputs * compute * h  # norms keep their inputs in float32
    a_token += compute * (2 * q + 2 * (q if batch.padded and not batch.prompts else k))
    a_token += compute * 4 * model.ffn  # both branches, the activation of one, the product
    if not model.lora_rank:
        a_token += 2 * weight * h  # the normalised inputs, for the gradients of the norms
    if model.family == "qwen3":
        a_token += (q + k) * (_FLOAT32 + (compute if not model.lora_rank else 0))  # queries and keys are normalised
    queries = batch.rows * (batch.tokens - batch.prompt_tokens)
    masks = compute * queries * batch.tokens * batch.padded
    if not batch.prompts:
        return batch.size * a_token + masks
    joined = compute * 2 * q * batch.rows * batch.tokens  # keys and values of prompt and answer, joined for each row
    return batch.size * (a_token + compute * q) + joined + masks  # and the outputs once more


def passing_bytes(model: Decoder, positions: int) -> float:
    """Return the peak bytes of a pass without a gradient."""
    # Three tensors of the MLP's width, the residual stream, and two copies of it in float32.
    return positions * (model.compute_bytes * (3 * model.ffn + model.hidden) + 2 * _FLOAT32 * model.hidden)


def generating_bytes(model: Decoder, rows: int, prompt: int, tokens: int) -> dict[str, float]:
    """Return the bytes, by part, of generating `rows` rows of `tokens` tokens, `prompt` of them the prompt's.

    The cache holds a key and a value per layer and token (arXiv 2211.05102, 2.1), for the key heads only (arXiv
    2305.13245). transformers' loop makes four copies of the next token's logits in float32, ours makes three.
    """
    number = model.weight_bytes
    return {
        "KV cache": 2 * model.layers * model.keys * tokens * rows * number,
        "activations": passing_bytes(replace(model, autocast=False), rows * prompt),  # TRL generates without autocast
        "logits": rows * model.vocabulary * (number + 4 * _FLOAT32),
    }


def logits_bytes(model: Decoder, tokens: int, *, learns: bool, on_gpu: bool) -> float:
    """Return the peak bytes of the head for the log-probabilities of `tokens` tokens, with their gradient if `learns`.

    TRL 1.16 (kernels/chunked_logprob.py) computes a tile of at most 4096 tokens x 32768 words at a time: one tile in a
    GPU's kernel, several in float32 on a CPU.
    """
    if on_gpu:
        size: float = model.compute_bytes * min(tokens, _TILE_TOKENS) * _TILE_WORDS
    else:
        tile = _FLOAT32 * min(tokens, _TILE_TOKENS) * min(model.vocabulary, _TILE_WORDS)
        size = tile * (_CPU_TILES_BACKWARD if learns else _CPU_TILES_FORWARD)
    if learns and not model.lora_rank:
        size += _FLOAT32 * model.vocabulary * model.hidden  # the head's own gradient
    return size
