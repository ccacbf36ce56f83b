"""Reads the shape of a model without loading it: from its folder, the hub's cache, or the settings of a tiny model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.json_values import JsonTree
from rlhf_cli.memory.architecture import Architecture, UnknownArchitecture, architecture_of
from rlhf_cli.models.config_json import language_part
from rlhf_cli.models.model_folders import TINY_VOCABULARY
from rlhf_cli.models.weight_shapes import stored_shapes

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
