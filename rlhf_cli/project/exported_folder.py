"""Write the folder of an exported model. Does not import torch unless an adapter must be merged."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from rlhf_cli.errors import ModelError, RunError
from rlhf_cli.models.weight_shapes import stored_shapes
from rlhf_cli.project.model_card import model_card
from rlhf_cli.project.source_model import Kind, SourceModel
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.redaction import redacted, redacted_tree

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "*.tiktoken"),
    *("vocab.*", "merges.txt", "*.model", "chat_template.*", "additional_chat_templates/*", "*processor_config.json"),
)
_OF_TRAINING = ("_name_or_path", "_from_model_config", "is_local", "local_files_only", "name_or_path")
"""Keys that record where and how training loaded the model, not the model itself."""
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class ExportedModel:
    """An exported folder: its contents, the hash of its weights, and notes about them."""

    folder: Path
    kind: str
    step: int
    merged: bool
    files: list[str]
    weights_sha256: str | None
    notes: list[str]


def export_model(source: SourceModel, folder: Path, say: Callable[[str], None]) -> ExportedModel:
    """Write the model of a run into `folder`, new or empty, all of it or nothing. Raise RunError or ModelError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError("the export needs a new or empty folder", where=str(folder), hint=f"--out {folder}-2")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        staged = Path(temporary, folder.name)
        staged.mkdir()
        _write_model(source, staged, say)
        notes = _write_documents(source, staged)
        if folder.is_dir():
            folder.rmdir()
        staged.rename(folder)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    is_merged = source.base is not None
    return ExportedModel(folder, source.kind, source.step, is_merged, files, weights_hash(folder), notes)


def _write_model(source: SourceModel, folder: Path, say: Callable[[str], None]) -> None:
    """Write weights, configuration and tokenizer. Raise ModelError if the weights are incomplete."""
    if source.base is None:
        say("copying the weights")
        _copy(source.folder, folder, _WEIGHTS)
    else:
        say(f"merging the adapter into {source.base}")
        write_merged_weights(source, source.base, folder)
    code = ["*.py"] if source.trust_remote_code else []
    _copy(source.folder, folder, ("text_endings.json", "training_format.json", *code))
    if not _copy(source.folder, folder, _TOKENIZER):  # an adapter that was saved without its base's
        from rlhf_cli.models.model_folders import loaders_of

        place, trusted = source.base or str(source.folder), source.trust_remote_code
        try:
            load = loaders_of(place, trust_remote_code=trusted)[2]
            load(place, trust_remote_code=trusted).save_pretrained(str(folder))
        except (OSError, ValueError) as error:
            raise ModelError("the model has no tokenizer", where=place, got=f"{error!s:.300}") from error
    clean_configs(folder, source.kind)
    shapes = stored_shapes(folder)
    named = section(read_json(folder / "model.safetensors.index.json"), "weight_map")
    if shapes is None or (lost := sorted(set(named) - {shape.name for shape in shapes})):
        got = "no safetensors that can be read" if shapes is None else f"no file holds {lost[0]}"
        expected = "whole weights, as save_pretrained writes them"
        raise ModelError("the exported weights are incomplete", where=str(source.folder), got=got, expected=expected)


def write_merged_weights(source: SourceModel, base: str, folder: Path) -> None:
    """Write an adapter merged into its base as config.json and safetensors. Raise ModelError.

    The sum W + s B A is computed in float32 and rounded once, to the dtype in which the base is stored.
    """
    from torch import nn
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        dtype = _stored_dtype(base, trust_remote_code=source.trust_remote_code)
        model = merged(source)
        nn.Module.to(model, dtype)
        model.save_pretrained(str(folder))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        got, expected = f"{type(error).__name__}: {error!s:.400}", f"the adapter as saved, and its base {base}"
        what = f"this {source.kind} cannot be loaded"
        raise ModelError(what, where=str(source.folder), got=got, expected=expected) from error


def merged(source: SourceModel) -> PreTrainedModel:
    """Return an adapter merged into its base, in float32."""
    import torch
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTuner

    from rlhf_cli.models.model_folders import loaders_of
    from rlhf_cli.models.scalar_heads import load_reward_model

    path, trusted = str(source.folder), source.trust_remote_code
    if source.kind == "reward model":
        loaded = load_reward_model(path, dtype="float32", trust_remote_code=trusted).model
    else:
        loaded = loaders_of(path, trust_remote_code=trusted)[1](path, dtype=torch.float32, trust_remote_code=trusted)
    assert isinstance(loaded, PeftModel)
    tuner = loaded.base_model
    assert isinstance(tuner, BaseTuner)
    model = cast("PreTrainedModel", tuner.merge_and_unload(safe_merge=True))
    model.eval()
    return model


def _stored_dtype(base: str, *, trust_remote_code: bool) -> torch.dtype:
    """Return the dtype in which the base's weights are stored. Raise ModelError if they are quantised or missing."""
    import torch
    from transformers import AutoConfig

    from rlhf_cli.models.gguf import model_folder

    folder = Path(str(model_folder(base, where=base))).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or base.startswith(".")):
        advice = "put it back, or set base_model_name_or_path in adapter_config.json to its new place"
        expected = "the folder that the adapter was trained on"
        raise ModelError("the base model of this adapter is missing", where=base, expected=expected, advice=advice)
    config = AutoConfig.from_pretrained(folder if folder.is_dir() else base, trust_remote_code=trust_remote_code)
    if quantized := getattr(config, "quantization_config", None):
        raise ModelError(
            "an adapter cannot be merged into a quantised base: rounding would lose what it learnt",
            where=base,
            got=f"quantization_config: {quantized}",
            expected="an adapter on weights in float32, bfloat16 or float16",
            advice="publish the adapter as it is, RUN/model: transformers and vLLM load it on its base",
        )
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32


def _write_documents(source: SourceModel, folder: Path) -> list[str]:
    """Write the configuration and the card without secrets and this machine's folders; return the card's notes.

    The folder in which the run started becomes `.`, the home `~`.
    """
    card, notes = model_card(source, folder)
    config = yaml.safe_dump(redacted_tree(source.run.read_config()), sort_keys=False, allow_unicode=True, width=120)
    start = str(read_json(source.run.provenance).get("cwd") or source.run.path.parent)
    places = {start: ".", os.path.realpath(start): ".", str(Path.home()): "~"}
    for name, text in (("training_config.yaml", config), ("README.md", redacted(card))):
        for place, short in sorted(places.items(), key=lambda item: -len(item[0])):
            text = text.replace(place, short) if len(place) > 1 else text
        (folder / name).write_text(text, encoding="utf-8")
    return notes


def _copy(source: Path, folder: Path, patterns: tuple[str, ...]) -> int:
    files = {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}
    for file in files:
        place = folder / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return len(files)


def clean_configs(folder: Path, kind: Kind) -> None:
    """Remove training's settings from the configurations (`use_cache: false` for one), and add generation's."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = {key: value for key, value in read_json(folder / name).items() if key not in _OF_TRAINING}
            _write(folder / name, {**content, **({"use_cache": True} if "use_cache" in content else {})})
    generation = folder / "generation_config.json"
    if kind != "policy":
        generation.unlink(missing_ok=True)
    elif not generation.is_file():
        config = read_json(folder / "config.json")
        _write(generation, {name: config[name] for name in _TOKEN_IDS if config.get(name) is not None})


def _write(file: Path, content: JsonTree) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
