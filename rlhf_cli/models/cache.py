"""Keep models that are made here once: the embedded ones, merged adapters and converted GGUF files.

A reference model or a critic is loaded from the same path as the policy; from an adapter's folder they would be loaded
without the adapter.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from rlhf_cli.errors import ModelError
from rlhf_cli.services.cache_folder import cache_folder


def is_built(name: str) -> bool:
    """Return whether the folder of the model called `name` is there, whole."""
    return (cache_folder("models") / name / "config.json").is_file()


def build_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of the model called `name`; on first use `make` writes it.

    Write to a temporary folder and rename it, so that an interruption leaves no half-written model. Safe to call from
    several processes at once: the first builds the model, the others wait.
    """
    folder = cache_folder("models") / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not is_built(name):
            shutil.rmtree(folder, ignore_errors=True)  # an incomplete model
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                unfinished = Path(temporary, "model")
                make(unfinished)
                unfinished.rename(folder)
    return folder


_CONFIG = "adapter_config.json"


def merged_model(path: str, *, dtype: str = "auto", trust_remote_code: bool = False) -> str:
    """Return `path` itself, or for an adapter's folder, a folder with the adapter merged into its base.

    Safe to call from several processes at once. Raise ModelError if the adapter or its base cannot be loaded.
    """
    adapter = Path(path).expanduser()
    if not (adapter / _CONFIG).is_file() or (adapter / "config.json").is_file():
        return path
    digest = hashlib.sha256(dtype.encode())
    for file in sorted(adapter.glob("adapter_*")):
        digest.update(file.read_bytes())
    name = f"merged-{digest.hexdigest()[:12]}"
    return str(build_once(name, lambda folder: _merge(adapter, folder, dtype, trust_remote_code)))


def _merge(adapter: Path, folder: Path, dtype: str, trust_remote_code: bool) -> None:
    from peft import AutoPeftModelForCausalLM, AutoPeftModelForSequenceClassification
    from transformers import AutoTokenizer

    config = json.loads((adapter / _CONFIG).read_text(encoding="utf-8"))
    is_reward_model = config.get("task_type") == "SEQ_CLS"
    kind = AutoPeftModelForSequenceClassification if is_reward_model else AutoPeftModelForCausalLM
    given: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    if is_reward_model:
        given["num_labels"] = 1
    try:
        model = kind.from_pretrained(str(adapter), **given).merge_and_unload()
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(adapter), trust_remote_code=trust_remote_code)
        except (OSError, ValueError):  # an adapter saved without one uses its base's
            base = config["base_model_name_or_path"]
            tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            "this adapter cannot be put on its base",
            where="model.path",
            got=f"{adapter}: {type(error).__name__}: {error!s:.300}",
            expected=f"an adapter of {config.get('base_model_name_or_path')}, and that model",
        ) from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
