"""run:NAME: the newest finished run of an experiment, and what is said when there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.config.compose import compose
from rlhf_cli.config.judge import judge
from rlhf_cli.errors import RunError
from rlhf_cli.plan.finished_runs import resolve_runs


def make_run(folder: Path, state: str, updated_at: float) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    (folder / "status.json").write_text(json.dumps({"state": state, "updated_at": updated_at}))
    return folder / "model"


def model_of(named: str) -> str | None:
    words = ["+exp=quickstart", f"++rewards.helpful.model='{named}'"]
    return resolve_runs(judge(compose(words))).rewards["helpful"].model


def test_the_newest_finished_run_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/my_reward/old", "finished", 1.0)
    newest = make_run(tmp_path / "runs/my_reward/new", "finished", 2.0)
    make_run(tmp_path / "runs/my_reward/broken", "failed", 3.0)
    assert model_of("run:my_reward") == str(newest)


def test_a_run_can_be_named_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = make_run(tmp_path / "runs/my_reward/old", "finished", 1.0)
    make_run(tmp_path / "runs/my_reward/new", "finished", 2.0)
    assert model_of("run:my_reward/old") == str(old)


def test_without_one_the_error_gives_the_command_that_makes_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/my_reward/broken", "failed", 3.0)
    with pytest.raises(RunError, match="no run of 'my_reward' has finished") as caught:
        model_of("run:my_reward")
    assert "broken failed" in str(caught.value)
    assert "rlhf train +exp=my_reward" in str(caught.value)


def test_other_models_are_left_as_they_are() -> None:
    assert model_of("org/model") == "org/model"
