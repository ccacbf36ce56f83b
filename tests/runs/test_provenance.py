"""What it would take to make a run again."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlhf_cli
from rlhf_cli.runs import provenance
from rlhf_cli.runs.provenance import git_state, is_made_by_us, made_by, sha256, weights_hash
from rlhf_cli.runs.run_folder import RunFolder, read_json

MakeRun = Callable[..., RunFolder]


def folder(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_weights_are_the_same_whatever_lies_beside_them(tmp_path: Path) -> None:
    weights = {"model-00001-of-00002.safetensors": "x", "model-00002-of-00002.safetensors": "y"}
    base = weights_hash(folder(tmp_path / "one", {**weights, "README.md": "a card", "config.json": "{}"}))
    assert base is not None
    assert weights_hash(folder(tmp_path / "two", weights)) == base
    assert weights_hash(folder(tmp_path / "saved", {**weights, "training_args.bin": "paths of the run"})) == base
    assert weights_hash(folder(tmp_path / "bin", {**weights, "adapter_model.bin": "more"})) != base
    assert weights_hash(folder(tmp_path / "three", {**weights, "model-00002-of-00002.safetensors": "z"})) != base
    assert weights_hash(folder(tmp_path / "none", {"config.json": "{}"})) is None
    assert weights_hash(tmp_path / "gone") is None


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    (path / "a.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=path, check=True)
    return path


def test_git_clean_and_dirty(repository: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True)
    assert git_state(repository) == {"commit": head.stdout.strip(), "dirty": False}
    (repository / "a.py").write_text("x = 2\n")
    assert git_state(repository) == {"commit": head.stdout.strip(), "dirty": True}
    subprocess.run(["git", "checkout", "-q", "a.py"], cwd=repository, check=True)
    (repository / "untracked.txt").write_text("notes")
    assert git_state(repository) == {"commit": head.stdout.strip(), "dirty": False}
    assert git_state(repository.parent) is None


def test_a_git_that_hangs_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(words: list[str], **rules: object) -> None:
        raise subprocess.TimeoutExpired(words, rules["timeout"])  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess, "run", hangs)
    assert git_state(tmp_path) is None


def test_the_file(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, durable = make_run(), list[object]()
    for name in ("write_json", "write_text"):
        write = getattr(provenance, name)

        def noted(*given: Any, _write: Any = write, **rules: Any) -> None:
            durable.append(rules.get("durable"))
            _write(*given, **rules)

        monkeypatch.setattr(provenance, name, noted)
    data = tmp_path / "rows.jsonl"
    data.write_bytes(b"abc")
    monkeypatch.setattr(sys, "argv", ["/some/where/rlhf", "train", "+exp=mine", "track.notes=two words"])
    told: Any = {"config": run.config.read_text(), "choices": {"exp": "mine"}, "overrides": ["+exp=mine"], "seed": 7}
    provenance.write_provenance(run, **told, files={"data": data})
    found = read_json(run.provenance)
    assert found["command"] == "rlhf train +exp=mine 'track.notes=two words'"
    assert found["cwd"] == str(Path.cwd())
    assert (found["choices"], found["overrides"], found["seed"]) == ({"exp": "mine"}, ["+exp=mine"], 7)
    assert found["versions"]["rlhf"] == rlhf_cli.__version__
    assert found["versions"]["trl"].startswith("1.16")
    assert found["sha256"] == {
        "config": hashlib.sha256(run.config.read_bytes()).hexdigest(),
        "data": hashlib.sha256(b"abc").hexdigest(),
    }
    provenance.add_to_provenance(run, world_size=2)
    assert read_json(run.provenance) == {**found, "world_size": 2}
    provenance.note_files(run, {"code": data})
    assert read_json(run.provenance)["sha256"] == {**found["sha256"], "code": found["sha256"]["data"]}
    provenance.rewrite_config(run, "seed: 8\n", files={}, note={"step": 3})
    rewritten = read_json(run.provenance)
    assert rewritten["sha256"]["config"] == sha256(run.config) == hashlib.sha256(b"seed: 8\n").hexdigest()
    assert [(note["step"], note["command"]) for note in rewritten["resumed"]] == [(3, found["command"])]
    assert durable == [True] * 6  # a power cut keeps it


def test_a_file_is_hashed_when_it_is_first_seen(make_run: MakeRun, tmp_path: Path) -> None:
    run, code = make_run(), tmp_path / "code.py"
    before = read_json(run.provenance)
    first = ""
    for text in ("x = 1", "x = 2"):
        code.write_text(text)
        first = first or sha256(code)
        provenance.note_files(run, {"code.mine": code})
        assert read_json(run.provenance) == {**before, "sha256": {**before.get("sha256", {}), "code.mine": first}}


def test_a_mark_is_of_this_user_and_of_exactly_this_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "mine"))
    record = tmp_path / "provenance.json"
    record.write_text(json.dumps({"made_by": made_by(["rewards.a.fn: ./a.py:f"])}))
    (key,) = (tmp_path / "mine" / "maker").iterdir()
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)
    assert is_made_by_us(record, ["rewards.a.fn: ./a.py:f"])
    assert not is_made_by_us(record, ["rewards.a.fn: ./a.py:g"])
    key.unlink()  # the folder stays
    assert "mark" in made_by(["rewards.a.fn: ./a.py:f"])
    assert not is_made_by_us(record, ["rewards.a.fn: ./a.py:f"])
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "another"))
    assert not is_made_by_us(record, ["rewards.a.fn: ./a.py:f"])
