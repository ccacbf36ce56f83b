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


def test_weights_are_the_same_whatever_lies_beside_them(tmp_path: Path) -> None:
    weights = {"model-00001-of-00002.safetensors": "x", "model-00002-of-00002.safetensors": "y"}

    def hashed(name: str, **more: str) -> str | None:
        for file, text in {**weights, **more}.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file).write_text(text)
        return weights_hash(tmp_path / name)

    base = hashed("one")
    assert base is not None
    assert sha256(tmp_path / "one") == base
    assert hashed("two", **{"README.md": "a card", "config.json": "{}", "training_args.bin": "paths"}) == base
    assert hashed("bin", **{"adapter_model.bin": "more"}) != base
    assert hashed("three", **{"model-00002-of-00002.safetensors": "z"}) != base
    weights.clear()
    assert hashed("none", **{"config.json": "{}"}) is weights_hash(tmp_path / "gone") is None
    assert sha256(tmp_path / "gone") is None
    of_names = sha256(tmp_path / "none")  # without weights, of all files' names and contents
    (tmp_path / "none" / "config.json").rename(tmp_path / "none" / "moved.json")
    assert len({None, of_names, sha256(tmp_path / "none")}) == 3


def test_git_clean_and_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    (repository := tmp_path / "repository").mkdir()
    assert git_state(repository) is None
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    (repository / "a.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-q", "-m", "one"]):
        git(*words)
    head = git("rev-parse", "HEAD")
    assert git_state(repository) == {"commit": head, "dirty": False}
    (repository / "a.py").write_text("x = 2\n")
    assert git_state(repository) == {"commit": head, "dirty": True}
    git("checkout", "-q", "a.py")
    (repository / "untracked.txt").write_text("notes")
    assert git_state(repository) == {"commit": head, "dirty": False}


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
    told: dict[str, Any] = {"choices": {"exp": "mine"}, "overrides": ["+exp=mine"], "seed": 7}
    provenance.write_provenance(run, config=run.config.read_text(), **told, files={"data": data})
    found = read_json(run.provenance)
    assert found["command"] == "rlhf train +exp=mine 'track.notes=two words'"
    assert {**told, "cwd": str(Path.cwd())}.items() <= found.items()
    assert found["versions"]["rlhf"] == rlhf_cli.__version__
    assert found["versions"]["trl"].startswith("1.16")
    assert found["sha256"] == {
        "config": hashlib.sha256(run.config.read_bytes()).hexdigest(),
        "data": hashlib.sha256(b"abc").hexdigest(),
    }
    provenance.add_to_provenance(run, world_size=2)
    assert read_json(run.provenance) == {**found, "world_size": 2}
    provenance.note_files(run, {"code": data})
    data.write_bytes(b"changed")
    provenance.note_files(run, {"code": data})  # a file is hashed when it is first seen
    assert read_json(run.provenance)["sha256"] == {**found["sha256"], "code": found["sha256"]["data"]}
    provenance.rewrite_config(run, "seed: 7\n", files={}, note={"step": 3})
    provenance.rewrite_config(run, "seed: 8\n", files={"code": data}, note={"step": 5})
    rewritten = read_json(run.provenance)
    assert rewritten["sha256"]["config"] == sha256(run.config) == hashlib.sha256(b"seed: 8\n").hexdigest()
    assert rewritten["sha256"]["code"] == hashlib.sha256(b"changed").hexdigest()
    assert [note["step"] for note in rewritten["resumed"]] == [3, 5]
    assert {note["command"] for note in rewritten["resumed"]} == {found["command"]}
    assert durable == [True] * 9  # a power cut keeps it


def test_files_of_a_run_without_a_record_are_noted(make_run: MakeRun) -> None:
    run = make_run()
    provenance.note_files(run, {"code.mine": run.config})
    assert read_json(run.provenance) == {"sha256": {"code.mine": sha256(run.config)}}


def test_a_mark_is_of_this_user_and_of_exactly_this_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "mine"))
    record, code = tmp_path / "provenance.json", ["rewards.a.fn: ./a.py:f"]
    record.write_text(json.dumps({"made_by": made_by(code)}))
    (key,) = (tmp_path / "mine" / "maker").iterdir()
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)
    assert is_made_by_us(record, code)
    assert not is_made_by_us(record, ["rewards.a.fn: ./a.py:g"])
    key.unlink()  # the folder stays
    assert "mark" in made_by(code)
    assert not is_made_by_us(record, code)
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "another"))
    assert not is_made_by_us(record, code)
