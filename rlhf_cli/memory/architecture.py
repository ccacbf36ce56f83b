"""Reads the shape of a transformer from its config.json, as far as its memory depends on it.

What a model family keeps for the backward pass depends on how its layers are written, so a family that was not examined
raises `UnknownArchitecture` instead of a guess. The families here were read in transformers 5.23 and are checked
against the tensors that autograd saves (tests/memory/test_saved_tensors.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rlhf_cli.json_values import JsonTree
from rlhf_cli.models.config_json import language_part

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
