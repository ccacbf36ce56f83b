"""`rlhf doctor`: its table, its JSON and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.project import doctor
from rlhf_cli.project.doctor import State

TOKEN = "hf_" + "PlantedTokenOfTheTests" * 2
KEYS = {"area", "name", "state", "found", "fix", "is_needed"}


@pytest.fixture(autouse=True)
def offline(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def test_json_has_every_condition_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert found["can_train"] is True
    assert all(set(condition) == KEYS for condition in found["conditions"])
    assert {condition["state"] for condition in found["conditions"]} <= set(State)
    names = [condition["name"] for condition in found["conditions"]]
    assert {"GPU", "Python", "vllm", "hub login", "wandb login", "runs", "sandbox"} <= set(names)
    assert len(names) == len(set(names))
    # Everything that is missing has a fix.
    wrong = [condition for condition in found["conditions"] if condition["state"] in ("missing", "unfit")]
    assert all(condition["fix"] or condition["name"] == "Slurm" for condition in wrong)
    assert TOKEN not in out


def test_a_wrong_version_of_a_needed_package_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version_of = doctor.version_of
    monkeypatch.setattr(
        doctor.package_conditions, "__defaults__", (lambda name: "0.9" if name == "trl" else version_of(name),)
    )
    monkeypatch.delattr("os.sched_getaffinity")  # as on macOS
    assert main(["doctor"]) == 2
    out = capsys.readouterr().out
    assert "rlhf cannot train here: trl" in out
    assert "pip install 'trl" in out
