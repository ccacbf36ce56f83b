"""Read how large the weights of a model are, and which modules LoRA adapts.

A string is a regular expression for the whole module name; a list contains name suffixes (peft's
`check_target_module_exists`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.regular_files import parse_json, read_object

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY_VOCABULARY = 2 + 256
"""The tokens of the embedded model: padding, end of sequence and the bytes (byte_tokenizer.py is heavier)."""
DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_STORED_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LONGEST_HEADER = 100_000_000
"""The largest header that safetensors accepts, in bytes."""


@dataclass(frozen=True)
class WeightShape:
    """A tensor of a model: its name, its shape, and its stored bytes per element."""

    name: str
    shape: tuple[int, ...]
    element_bytes: float


def stored_shapes(folder: Path) -> list[WeightShape] | None:
    """Return the tensors in the headers of a folder's safetensors files, or None without such files."""
    shapes = []
    for file in sorted(folder.glob("*.safetensors")):
        try:
            shapes += [
                WeightShape(name, tuple(entry["shape"]), _STORED_BYTES.get(entry["dtype"], 1))
                for name, entry in _header(file)[1].items()
            ]
        except _MALFORMED:
            return None  # loading the model reports the error
    return shapes or None


def load_renamed(model: PreTrainedModel, folder: Path) -> bool:
    """Load those of a folder's weights that have other names in its files than in the model; return whether there are.

    `save_pretrained` renames the experts of a mixture and much of a model that reads images. What reads the files by
    itself, as transformers' Trainer does on resume, passes over the other names without a word.
    """
    stored = {shape.name for shape in stored_shapes(folder) or ()}
    if stored <= set(model.state_dict()):
        return False
    found = type(model).from_pretrained(folder, dtype=model.dtype).state_dict()
    model.load_state_dict({name: value for name, value in found.items() if name not in stored}, strict=False)
    return True


def damaged_weights(folder: Path) -> str | None:
    """Return what is wrong with the safetensors files of a model folder, or None if they are intact or missing.

    Check that each file has the length in its header, and that every file listed in the index exists.
    """
    names = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "pytorch_model.bin.index.json")
    is_whole = (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file()
    if is_whole and not any(os.path.lexists(folder / name) for name in names) and not any(folder.glob("*.gguf")):
        return f"no {names[0]} and no {names[2]}, by which transformers finds the weights"
    index = folder / names[2]
    if index.is_file():
        try:
            weights: Any = read_object(index)["weight_map"]
            parts = set(weights.values())
        except _MALFORMED as error:
            return f"{index.name} is not an index: {error!r}"
        missing = sorted(str(part) for part in parts if not (folder / str(part)).is_file())
        if missing:
            return f"{len(missing)} of {len(parts)} parts are missing, the first is {missing[0]}"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                if stream.read(8) == b"version ":
                    return f"{file.name} is a pointer of Git LFS, not the file itself: git lfs pull"
            length, entries = _header(file)
            wanted = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            if file.stat().st_size != wanted:
                return f"{file.name} has {file.stat().st_size} bytes, but its header says {wanted}"
        except OSError as error:  # a link to a file that is gone, or another user's file
            return f"{file.name} cannot be read: {error.strerror}"
        except _MALFORMED:
            return f"{file.name} has no safetensors header"
    return None


_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_NUM_LAYERS = re.compile(r"(?:n|num|decoder)_(?:\w+_)?layers?")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")


def unlike_config(shapes: Sequence[WeightShape], config: JsonTree) -> str | None:
    """Return how stored weights differ from the config of their language model, or None.

    transformers fills layers that no file holds with random numbers, and refuses an embedding of another size. A model
    with several stacks of layers is not judged, and an embedding may have more rows than tokens (Llama 3.2 Vision).
    """
    found = [(shape.name[: match.start(1)], int(match[1])) for shape in shapes if (match := _LAYER.search(shape.name))]
    stated, held = config.get("num_hidden_layers", config.get("n_layer")), {number + 1 for _, number in found}
    if len({stack for stack, _ in found}) == 1:
        if isinstance(stated, int) and max(held) < stated:
            return f"config.json has {stated} layers, the weights have {max(held)}"
        if config.get("architectures") and not any(_NUM_LAYERS.fullmatch(key) for key in config):
            return f"config.json has no number of layers, the weights have {max(held)}"
    rows = [shape.shape[0] for shape in shapes if shape.name.endswith(_EMBEDDINGS) and shape.element_bytes > 1]
    size, padding = config.get("vocab_size"), config.get("pad_token_id")
    if isinstance(size, int) and len(rows) == 1 and rows[0] < size:
        return f"config.json has vocab_size {size}, the embedding has {rows[0]} rows"
    if isinstance(size, int) and isinstance(padding, int) and padding >= max(size, *rows, 0):  # no model loads with it
        return f"config.json has pad_token_id {padding}, and vocab_size {size}"
    return None


_MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


def _header(file: Path) -> tuple[int, dict[str, Any]]:
    """Return the length of a safetensors header in bytes, and its entries by tensor name."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header: Any = parse_json(stream.read(min(length, _LONGEST_HEADER)))
    return length, {name: entry for name, entry in header.items() if name != "__metadata__"}


def tiny_shapes(hidden_size: int, num_layers: int) -> list[WeightShape]:
    """Return the tensors of the embedded Llama: the MLP is four times as wide, the head is the embedding."""
    h = hidden_size
    shapes = {"model.embed_tokens.weight": (TINY_VOCABULARY, h), "model.norm.weight": (h,)}
    for layer in range(num_layers):
        place = f"model.layers.{layer}"
        shapes |= {f"{place}.self_attn.{name}_proj.weight": (h, h) for name in "qkvo"}
        shapes |= {f"{place}.mlp.{name}_proj.weight": (4 * h, h) for name in ("gate", "up")}
        shapes |= {f"{place}.mlp.down_proj.weight": (h, 4 * h)}
        shapes |= {f"{place}.{name}_layernorm.weight": (h,) for name in ("input", "post_attention")}
    return [WeightShape(name, shape, 4) for name, shape in shapes.items()]


_PREFIXES = ("", "model.", "transformer.", "base_model.model.")
"""Prefixes of module names that the model has and its weight files may lack."""


def is_target(name: str, targets: str | Sequence[str]) -> bool:
    """Return whether peft would put an adapter on the module `name`; an invalid pattern matches no module."""
    if not isinstance(targets, str):
        return any(name == target or name.endswith(f".{target}") for target in targets)
    try:
        return any(re.fullmatch(targets, prefix + name) for prefix in _PREFIXES)
    except re.error:
        return False
