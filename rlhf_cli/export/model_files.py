"""Copy the files that loading a model needs, remove traces of training, and check that the folder is complete.

Does not import torch. The checks cover what transformers and vLLM need in a folder: config.json with an architecture
and without code, safetensors, tokenizer files, generation_config.json.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rlhf_cli.export.source_model import Kind
from rlhf_cli.json_values import JsonTree
from rlhf_cli.models.config_json import architectures_of
from rlhf_cli.models.weight_shapes import stored_shapes
from rlhf_cli.runs.run_folder import read_json

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "text_endings.json")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.*",
    "additional_chat_templates/*",
    "*processor_config.json",
)
_OF_TRAINING = ("_name_or_path", "_from_model_config", "is_local", "local_files_only", "name_or_path")
"""Keys that record where and how training loaded the model, not the model itself."""
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ENDING: dict[Kind, tuple[str, ...]] = {
    "policy": ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"),
    "reward model": ("ForSequenceClassification",),
    "critic": ("ForTokenClassification",),
}


def copy_weights(source: Path, folder: Path) -> None:
    """Copy whole weights and their configuration, without other files that training left there."""
    _copy(source, folder, _WEIGHTS)


def copy_tokenizer(source: Path, folder: Path) -> bool:
    """Copy the tokenizer's files, including its chat template; return whether there was one."""
    return _copy(source, folder, _TOKENIZER) > 0


def clean_configs(folder: Path, kind: Kind) -> None:
    """Remove training settings from the configurations, and add those that generation needs.

    Training with gradient checkpointing leaves `use_cache: false`, with which generation would recompute every token
    from the beginning.
    """
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = {key: value for key, value in read_json(folder / name).items() if key not in _OF_TRAINING}
            if name == "config.json" and "use_cache" in content:
                content["use_cache"] = True
            _write(folder / name, content)
    generation = folder / "generation_config.json"
    if kind != "policy":
        generation.unlink(missing_ok=True)
    elif not generation.is_file():
        config = read_json(folder / "config.json")
        _write(generation, {name: config[name] for name in _TOKEN_IDS if config.get(name) is not None})


def problems_of(folder: Path, kind: Kind) -> list[str]:
    """Return the problems that would prevent transformers or vLLM from loading the folder; empty if there are none."""
    config = read_json(folder / "config.json")
    architectures = architectures_of(config)
    problems = []
    if not any(name.endswith(_ENDING[kind]) for name in architectures):
        problems.append(f"config.json names no architecture of a {kind}: {architectures}")
    if not isinstance(config.get("model_type"), str):
        problems.append("config.json has no model_type")
    if "auto_map" in config:
        problems.append("config.json names code of its own (auto_map)")
    if kind != "policy" and len(config.get("id2label") or {}) != 1:  # type: ignore[arg-type]
        problems.append("config.json does not say that there is one label")
    problems += _weight_problems(folder)
    if not (folder / "tokenizer_config.json").is_file():
        problems.append("no tokenizer_config.json")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        problems.append("no tokenizer.json")
    if kind == "policy" and not (folder / "generation_config.json").is_file():
        problems.append("no generation_config.json")
    return problems


def _weight_problems(folder: Path) -> list[str]:
    shapes = stored_shapes(folder)
    if shapes is None:
        return ["no safetensors that can be read"]
    names = {shape.name for shape in shapes}
    left_over = sorted(name for name in names if ".lora_" in name or name.startswith("base_model."))
    problems = [f"parts of an adapter are left: {left_over[0]}"] if left_over else []
    index = read_json(folder / "model.safetensors.index.json")
    listed = index.get("weight_map")
    if isinstance(listed, dict):
        lost = sorted(set(listed) - names)
        problems += [f"{len(lost)} tensors are in no file, {lost[0]} among them"] if lost else []
    return problems


def _copy(source: Path, folder: Path, patterns: tuple[str, ...]) -> int:
    files = {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}
    for file in sorted(files):
        place = folder / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return len(files)


def _write(file: Path, content: JsonTree) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
