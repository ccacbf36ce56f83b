"""Test run:NAME: the newest finished run of an experiment, or an error with a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.plan.prepare import prepare


def make_run(folder: Path, state: str, updated_at: float) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    (folder / "status.json").write_text(json.dumps({"state": state, "updated_at": updated_at}))
    return folder / "model"


def model_of(named: str) -> str | None:
    words = ["+exp=quickstart", f"++rewards.helpful.model='{named}'"]
    return prepare(words).experiment.rewards["helpful"].model


def test_the_newest_finished_run_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/my_reward/old", "finished", 1.0)
    newest = make_run(tmp_path / "runs/my_reward/new", "finished", 2.0)
    make_run(tmp_path / "runs/my_reward/broken", "failed", 3.0)
    assert model_of("run:my_reward") == str(newest)


def test_a_slip_is_answered_with_the_runs_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/my_reward/a", "finished", 3.0)
    for typed, hint in (
        ("run:my_rewrad", "run:my_reward"),
        ("run:my_rewrad/a", "run:my_reward/a"),
        ("run:a", "run:my_reward/a"),
    ):
        with pytest.raises(RunError) as caught:
            model_of(typed)
        assert caught.value.hint == hint


def test_a_run_whose_state_cannot_be_read_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make_run(tmp_path / f"runs/mine/{name}", "failed", 1.0)
    (tmp_path / "runs/mine/a/status.json").write_text("{")
    with pytest.raises(RunError) as caught:
        model_of("run:mine")
    assert [run.split()[0] for run in str(caught.value.got).split(", ")] == ["a", "b"]
    finished = make_run(tmp_path / "runs/mine/c", "finished", 2.0)
    assert model_of("run:mine") == str(finished)


def critic_of(named: str) -> str:
    critic = prepare(["+exp=quickstart", "trainer=ppo", f"critic.init='{named}'"]).experiment.critic
    assert critic is not None
    return critic.init


def test_a_critic_from_a_run_is_its_critic_where_it_had_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_run(tmp_path / "runs/mine/one", "finished", 1.0)
    assert critic_of("run:mine") == str(model)
    (tmp_path / "runs/mine/one/critic").mkdir()
    assert critic_of("run:mine") == str(tmp_path / "runs/mine/one/critic")
    with pytest.raises(RunError, match="no run of 'other' has finished") as caught:
        critic_of("run:other")
    assert caught.value.where == "critic.init"


def test_a_sweep_names_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run represents the sweep, whether the sweep or its experiment is named."""
    monkeypatch.chdir(tmp_path)
    for job in ("weight=0,seed=1", "weight=1,seed=1"):
        make_run(tmp_path / "runs/mine/sweep" / job, "finished", 1.0)
    (tmp_path / "runs/mine/sweep/sweep.json").write_text("{}")
    for named in ("run:mine/sweep", "run:mine"):
        with pytest.raises(RunError, match="is a sweep of 2 runs") as caught:
            model_of(named)
        assert str(caught.value.got).splitlines() == [f"runs/mine/sweep/weight={weight},seed=1" for weight in (0, 1)]
        assert caught.value.hint == "rewards.helpful.model=runs/mine/sweep/weight=1,seed=1/model"
        words = ["+exp=quickstart", f"rewards.helpful.model={str(caught.value.hint).partition('=')[2]}"]
        assert str(prepare(words).experiment.rewards["helpful"].model).endswith("seed=1/model")
    make_run(tmp_path / "runs/mine/single", "finished", 1.0)
    assert str(model_of("run:mine")).endswith("single/model")
