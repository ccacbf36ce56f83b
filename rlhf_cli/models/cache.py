"""Keep models that are made here once: the embedded ones, merged adapters and converted GGUF files.

A reference model or a critic is loaded from the same path as the policy; from an adapter's folder they would be loaded
without the adapter.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock

from rlhf_cli.errors import ModelError, writing
from rlhf_cli.models.tokenizer_files import adapter_base, base_revision
from rlhf_cli.user_files import cache_folder

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

_MANIFEST = "made.json"  # sizes of the files of a model of the cache; written last


def damaged_file(name: str) -> str | None:
    """Return a file of the model called `name` that is missing, cut or unreadable, None if it is whole."""
    folder = cache_folder("models") / name
    try:
        sizes = dict(json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["sizes"])
    except (OSError, ValueError, LookupError, TypeError):
        return _MANIFEST
    files = {folder / file: size for file, size in sizes.items()}
    damaged = (file for file, size in files.items() if not os.access(file, os.R_OK) or file.stat().st_size != size)
    return next((file.name for file in damaged), None)


def build_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of the model called `name`; `make` writes it on first use, and again if it is damaged.

    Write to another folder and rename it, so that an interruption leaves no half-written model; the next call replaces
    what a killed process left. Safe to call from several processes at once: the first builds, the others wait. A whole
    model is only read, so others may have the cache. Raise UserError if it cannot be written.
    """
    folder = cache_folder("models") / name
    if damaged_file(name) is None:
        return folder
    unfinished = folder.with_name(f"{name}.unfinished")
    with writing("the cache of models", folder.parent, "export RLHF_CACHE=FOLDER"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if damaged_file(name) is not None:
                shutil.rmtree(unfinished, ignore_errors=True)
                try:
                    make(unfinished)
                    sizes = {file.name: file.stat().st_size for file in unfinished.iterdir() if file.is_file()}
                    (unfinished / _MANIFEST).write_text(json.dumps({"sizes": sizes}), encoding="utf-8")
                    shutil.rmtree(folder, ignore_errors=True)
                    unfinished.rename(folder)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def save_whole(model: PreTrainedModel, folder: Path) -> None:
    """Write a model on any rank, as the first one builds it for the cache; save_pretrained writes on rank 0 alone."""
    model.should_save_on_this_rank = lambda is_main_process: True  # type: ignore[method-assign]
    model.save_pretrained(folder)


_CONFIG = "adapter_config.json"
_READER = ("*token*", "*processor*", "chat_template*", "vocab*", "merges*")
_OF_ADAPTER = ("adapter_*", *_READER)
_OF_BASE = ("*.safetensors", "*.bin", "config.json", "generation_config.json", *_READER)


def merged_model(path: str, *, dtype: str = "auto", trust_remote_code: bool = False) -> str:
    """Return `path` itself, or for an adapter's folder, a folder with the adapter merged into its base.

    Safe to call from several processes at once. Raise ModelError if the adapter or its base cannot be loaded.
    """
    adapter = Path(path).expanduser()
    if not (adapter / _CONFIG).is_file() or (adapter / "config.json").is_file():
        return path
    digest = hashlib.sha256(f"output of its own {dtype}".encode())
    for file in sorted(file for pattern in _OF_ADAPTER for file in adapter.glob(pattern) if file.is_file()):
        digest.update(file.read_bytes())
    base = Path(adapter_base(adapter) or "").expanduser()
    for file in sorted(file for pattern in _OF_BASE for file in base.glob(pattern) if file.is_file()):
        # Gigabytes: their times show whether they were written again.
        digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    name = f"merged-{digest.hexdigest()[:12]}"
    return str(build_once(name, lambda folder: _merge(adapter, folder, dtype, trust_remote_code)))


def merged_into_base(model: PeftModel) -> PreTrainedModel:
    """Return a model with its adapter merged into it. Raise ValueError for a change that is not finite.

    peft adds a change in place: where the output shares the weights of an adapted input embedding, it would get that
    change too. So it first gets weights of its own, and peft sets `tie_word_embeddings` to false.
    """
    from torch import nn

    base: Any = model.get_base_model()
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    inner = [getattr(end, "base_layer", end) for end in ends]
    if inner != ends and None not in ends and inner[0].weight is inner[1].weight:
        inner[1].weight = nn.Parameter(inner[1].weight.detach().clone())
    tuner: Any = model.base_model
    return cast("PreTrainedModel", tuner.merge_and_unload(safe_merge=True))


def _merge(adapter: Path, folder: Path, dtype: str, trust_remote_code: bool) -> None:
    from huggingface_hub.errors import StrictDataclassError
    from peft import AutoPeftModelForSequenceClassification
    from safetensors import SafetensorError

    from rlhf_cli.models.model_folders import loaders_of

    config = json.loads((adapter / _CONFIG).read_text(encoding="utf-8"))
    is_reward_model = config.get("task_type") == "SEQ_CLS"
    given: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    given |= {"num_labels": 1} if is_reward_model else {}
    try:
        _, load_adapter, load_reader, _ = loaders_of(str(adapter), trust_remote_code=trust_remote_code)
        load = AutoPeftModelForSequenceClassification.from_pretrained if is_reward_model else load_adapter
        model = merged_into_base(load(str(adapter), **given))
        try:
            tokenizer = load_reader(str(adapter), trust_remote_code=trust_remote_code)
        except (OSError, ValueError):  # an adapter saved without one uses its base's
            given = {"revision": base_revision(adapter), "trust_remote_code": trust_remote_code}
            tokenizer = load_reader(config["base_model_name_or_path"], **given)
    except (OSError, ValueError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        what, got = "the adapter cannot be merged into its base", f"{adapter}: {type(error).__name__}: {error!s:.300}"
        expected = f"an adapter of {config.get('base_model_name_or_path')}, and that model"
        raise ModelError(what, where="model.path", got=got, expected=expected) from error
    save_whole(model, folder)
    tokenizer.save_pretrained(folder)
