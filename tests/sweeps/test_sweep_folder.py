"""Where a sweep is, what its folder says of its jobs, and whose problem a problem is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rlhf_cli.errors import ConfigError, RewardError, RunError, UserError
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import update_status
from rlhf_cli.runs.tracking import wandb_files
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps import sweep_folder
from rlhf_cli.sweeps.sweep_folder import add_job, begin_sweep, for_each, new_sweep_folder, open_sweep, report
from rlhf_cli.sweeps.swept_words import SweepJob


@pytest.mark.parametrize(
    ("names", "notes"), [("a", ["a"]), ("abc", ["a  b  c"]), ("abcd", ["a  b  c and 1 more"]), ("abcde", [])]
)
def test_a_problem_names_three_of_its_jobs_unless_all_have_it(names: str, notes: list[str]) -> None:
    def check(job: SweepJob) -> None:
        if job.name in names:
            raise ConfigError("odd", where="seed")

    with pytest.raises(UserError) as caught:
        for_each([SweepJob(name, {}, ()) for name in "abcde"], check)
    assert [note.split(":")[1].strip() for note in getattr(caught.value, "__notes__", [])] == notes


@pytest.mark.parametrize("terminal", [True, False, None])
def test_the_progress_of_the_checks_is_shown_on_a_terminal_alone(monkeypatch, terminal: bool | None) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(sweep_folder, "track", lambda jobs, doing, **rules: asked.append(rules) or jobs)
    console = None if terminal is None else Console(force_terminal=terminal)
    assert sweep_folder.checked([], console) == []
    assert asked == [{"console": console, "transient": True, "disable": not terminal}]


def test_a_reward_that_raises_is_told_before_a_sweep_begins(place: Path) -> None:
    (place / "rewards.py").write_text("def odd(completions, **columns):\n    raise KeyError(completions)\n")
    words = ("+exp=quickstart", "track=none", "rewards.odd.fn=./rewards.py:odd")
    with pytest.raises(RewardError) as caught:
        sweep_folder.checked([SweepJob("one", {}, words)])
    assert caught.value.where.startswith("rewards.odd.fn")


def jobs_of(*experiments: str, name: str | None) -> Any:
    settings = SimpleNamespace(run=SimpleNamespace(root="runs", name=name))
    return [SimpleNamespace(prepared=SimpleNamespace(experiment=settings, composed=one)) for one in experiments]


def test_a_sweep_is_below_its_experiment_and_never_in_a_folder_that_exists(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(sweep_folder, "experiment_name", lambda composed: composed)
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    runs = place / "runs"
    assert new_sweep_folder(jobs_of("one", "one", name="mine")) == runs / "one" / "mine"
    assert new_sweep_folder(jobs_of("one", "two", name="mine")) == runs / "sweep" / "mine"
    assert new_sweep_folder(jobs_of("one", name=None)) == runs / "one" / "now"
    assert not new_sweep_folder(jobs_of("one", name="dry"), is_dry=True).exists()
    with pytest.raises(RunError) as caught:
        new_sweep_folder(jobs_of("one", name="mine"))
    assert caught.value.hint == "run.name=mine-2", "nothing in it can be resumed as a sweep"
    begin_sweep(runs / "one" / "mine", [], [], [])
    with pytest.raises(RunError) as caught:
        new_sweep_folder(jobs_of("one", name="mine"))
    assert "run.name=" in str(caught.value.hint)
    assert "rlhf resume runs/one/" in str(caught.value.hint)
    with only_writer(RunFolder(runs / "one" / "mine"), what="sweep"), pytest.raises(RunError) as caught:
        new_sweep_folder(jobs_of("one", name="mine"))
    assert f"process {os.getpid()} on " in str(caught.value.got)
    assert "rlhf status runs/one/mine" in str(caught.value.hint), "to resume what runs would be refused"


def test_the_jobs_of_a_sweep_are_read_as_they_were_written(place: Path) -> None:
    first, second = (SweepJob(f"seed={seed}", {"seed": seed}, ("exp=a", f"seed={seed}")) for seed in "12")
    (place / "deep" / "sweep").mkdir(parents=True)
    begin_sweep(place / "deep" / "sweep", ["seed=1,2"], ["seed"], [first])
    add_job(place / "deep" / "sweep", second)
    assert open_sweep(Path("deep/sweep")).path == place / "deep" / "sweep"
    assert open_sweep(Path("deep/sweep")).jobs == [first, second]
    file = place / "deep" / "sweep" / "sweep.json"
    content = json.loads(file.read_text())
    assert (content["overrides"], content["swept"], "made_by" in content) == (["seed=1,2"], ["seed"], True)
    bad_names = ("..", "../x", "/x", ".", "")
    for entry in ({"name": "seed=1", "values": {}}, *({**content["jobs"][0], "name": name} for name in bad_names)):
        file.write_text(json.dumps({"jobs": [entry]}))
        with pytest.raises(RunError) as caught:
            open_sweep(place / "deep" / "sweep")
        assert caught.value.where == "deep/sweep/sweep.json"


def test_one_run_that_wandb_recorded_offline_is_told(place: Path, monkeypatch, capsys) -> None:
    for name in "ab":
        (place / name).mkdir()
        (place / name / "config.yaml").touch()
    update_status(RunFolder(place / "b"), state="failed")
    monkeypatch.setattr(wandb_files, "unsent", lambda run: run.name == "b")
    monkeypatch.setattr("rlhf_cli.display.page.page_content.report_at_the_end", lambda folder: "a [bold]report of " * 3)
    report(Console(width=40), place)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "a [bold]report of " * 3
    assert "`rlhf sync" in said[1]
