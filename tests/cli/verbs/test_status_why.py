"""`rlhf status` and `rlhf why`: a row per run, or a diagnosis, of runs in any state."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.support.planted_logs import events_of, noisy, reward

Said, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
CONFIG = "trainer: {name: grpo, args: {max_completion_length: 32, learning_rate: 0.001}}\nrewards: {a: {weight: 1.0}}\n"
DEAD = events_of({**reward("a", mean=[1.0] * 30, std=0.0), "reward": [1.0] * 30, "loss": [0.0] * 30})
CURVE = noisy(0.2, 0.8, 0.05)
FINE = events_of({**reward("a", mean=CURVE), "reward": CURVE, "reward_std": [0.5] * 40})
ALIVE = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}


@pytest.fixture(autouse=True)
def without_slurm(place: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def make_run(name: str, events: list[dict[str, Any]] | None = None, **status: object) -> RunFolder:
    folder = RunFolder(Path("runs/exp", name).absolute())
    folder.path.mkdir(parents=True)
    folder.config.write_text(CONFIG)
    if events is not None:
        folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in events))
    update_status(folder, **{"state": "finished", "step": 30, "max_steps": 30, **status})
    return folder


def at(*steps_and_times: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"step": step, "time_s": time_s, "loss": 1.0} for step, time_s in steps_and_times]


def said(capsys: Said, *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


def rows(capsys: Said, *words: str) -> dict[str, dict[str, object]]:
    return {str(row["run"]): row for row in json.loads(said(capsys, "status", "--json", *words))}


def test_a_training_run(capsys: Said) -> None:
    """Steps 10, 12, 14 at 30, 35, 40 s are 2.5 s per step; the remaining 86 steps take 215 s."""
    events = at((10, 30.0), (12, 35.0), (14, 40.0))
    folder = make_run("one", events, **ALIVE, last_checkpoint="checkpoint-10", step=14, max_steps=100)
    old = time.time() - 90
    os.utime(folder.metrics, (old, old))
    row = rows(capsys)["runs/exp/one"]
    assert (row["state"], row["step"], row["max_steps"]) == ("running", 14, 100)
    assert (row["last_checkpoint"], row["s_per_step"], row["time_left_s"]) == ("checkpoint-10", 2.5, 215)
    assert row["log_age_s"] == pytest.approx(90, abs=20)
    table = said(capsys, "status")
    assert [part in table for part in ("14/100", "3 min", "step 10")] == [True] * 3


@pytest.mark.parametrize("content", ["{", '{"state": 3}', "\udcff"])
def test_a_damaged_run_does_not_hide_the_others(capsys: Said, content: str) -> None:
    make_run("broken").status.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    make_run("good")
    seen = rows(capsys)
    assert [seen[f"runs/exp/{name}"]["state"] for name in ("broken", "good")] == ["unreadable", "finished"]
    assert "status.json" in str(seen["runs/exp/broken"]["reason"])


def test_named_runs_are_shown_once(capsys: Said) -> None:
    """Name a run, a sweep of two and a folder of all; a run that is named twice has one row."""
    one, *sweep = names = ["runs/exp/one", "runs/exp/sweep/0", "runs/exp/sweep/1"]
    for name in names:
        make_run(name.removeprefix("runs/exp/"))
    assert list(rows(capsys, one)) == [one]
    assert list(rows(capsys, "runs/exp/sweep")) == sweep
    assert list(rows(capsys, one, "runs")) == list(rows(capsys)) == names


def test_a_run_stopped_by_its_user_is_not_called_preempted(capsys: Said) -> None:
    mine = make_run("mine", state="preempted", reason="Ctrl-C", step=3, max_steps=9)
    slurms = make_run("slurms", state="preempted", reason="SIGTERM", step=3, max_steps=9)
    assert {row["state"] for row in rows(capsys).values()} == {"preempted"}
    lines = {line.split()[0]: line.split()[1:] for line in said(capsys, "status").splitlines()}
    assert (lines["runs/exp/mine"], lines["runs/exp/mine:"]) == (["stopped", "3/9"], ["Ctrl-C"])
    assert (lines["runs/exp/slurms"], lines["runs/exp/slurms:"]) == (["preempted", "3/9"], ["SIGTERM"])
    why = said(capsys, "why", "runs/exp/mine")
    assert "runs/exp/mine: stopped by Ctrl-C at step 3 of 9" in why
    assert why.count("Ctrl-C") == 1
    assert read_status(mine).was_in_words == "was stopped by Ctrl-C at step 3"
    assert read_status(slurms).was_in_words == "was preempted at step 3: SIGTERM"


@pytest.mark.parametrize(("width", "left_out"), [("80", []), ("60", ["s/step", "saved"]), ("200", [])])
def test_the_table_is_one_at_any_width(capsys: Said, monkeypatch: Patch, width: str, left_out: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", width)
    prefix, names = "" if width == "200" else "runs/exp/", ["20260131-101500", "20260131-101501"]
    for name in names:
        events = at((10, 30.0), (12, 75.0), (14, 150.0))
        make_run(name, events, **ALIVE, step=120, max_steps=400, last_checkpoint="checkpoint-100")
    lines = said(capsys, "status").splitlines()
    (head,) = [line for line in lines if line.startswith("run ")]
    assert set(head.split()) == {"run", "state", "step", "s/step", "left", "logged", "saved"} - set(left_out)
    assert ("runs/exp/" in lines) is bool(prefix)
    shown = [f"runs/exp/{name}".removeprefix(prefix) for name in names]
    assert [line.split()[0] for line in lines if "running" in line] == shown
    assert all(any(name in line for line in lines if line.startswith("no room")) for name in left_out)


def test_a_finding_has_evidence_and_a_change_to_type(capsys: Said, monkeypatch: Patch) -> None:
    make_run("one", DEAD)
    monkeypatch.setenv("COLUMNS", "80")
    shown = said(capsys, "why", "runs/exp/one")
    for part in (
        *("finished at step 30, 30 log events", "serious  reward a is 1 on every row", "rewards.a.weight=0"),
        *("rewards/a/mean  1 on average over steps 1 to 30", "▄▄▄"),
    ):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads(said(capsys, "why", "runs/exp/one", "--json"))
    assert (found["state"], found["log_events"], found["findings"][0]["kind"]) == ("finished", 30, "dead_reward")
    assert found["findings"][0]["changes"][0]["words"] == "rewards.a.weight=0"
    kinds = {finding["kind"] for part in ("findings", "fine", "unseen") for finding in found[part]}
    assert kinds == {*FINDING_KINDS} - {"explained_variance", "value_loss"}, "there is no critic"
    make_run("healthy", FINE)  # negative control
    assert not {"serious", "warning", "try"} & set(said(capsys, "why", "runs/exp/healthy").split())


def test_a_short_log_shows_first_what_could_not_be_judged(capsys: Said, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    make_run("one", FINE[:3])
    _, _, first, *others = said(capsys, "why", "runs/exp/one").splitlines()
    assert "learns" in first
    kinds = [line.split()[0] for line in others if line.split()]
    assert kinds.index("learning") < kinds.index("non_finite")
    make_run("sweep/0", FINE[:3])
    make_run("sweep/1", FINE)
    short, fine = said(capsys, "why", "runs/exp/sweep").splitlines()[1:3]
    assert short.partition(" ")[2].strip() != fine.partition(" ")[2].strip()


@pytest.mark.parametrize("state", ["failed", "preempted"])
def test_the_reason_of_the_end_comes_first(state: str, capsys: Said) -> None:
    make_run("one", DEAD, state=state, reason="the loss is not finite\n  where: here", max_steps=90)
    lines = said(capsys, "why", "runs/exp/one").splitlines()
    assert lines[0] == f"runs/exp/one: {state} at step 30 of 90, 30 log events"
    assert lines[1].strip() == "the loss is not finite"


def test_killed_and_unstarted_runs(capsys: Said) -> None:
    make_run("one", FINE, state="running", pid=None)
    assert "killed at step 30" in said(capsys, "why", "runs/exp/one")
    make_run("two", state="created", step=0)
    shown = said(capsys, "why", "runs/exp/two")
    assert [part in shown for part in ("has not begun", ", 0 log events", "checks that")] == [True, True, False]


def test_a_sweep_has_one_line_per_run_also_if_it_is_unreadable(capsys: Said, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "140")  # wide enough for one line per run
    for number, events in enumerate((DEAD, FINE, FINE)):
        make_run(f"sweep/{number}", events)
    Path("runs/exp/sweep/2/metrics.jsonl").write_text("no event\n{}\n")
    dead, fine, broken = said(capsys, "why", "runs/exp/sweep").splitlines()[1:4]
    assert dead.startswith("0 ")
    assert "serious: reward a is 1 on every row" in dead
    assert (fine.split()[0], fine.split()[-1]) == ("1", "none")
    assert "metrics.jsonl cannot be read" in broken
    *readable, broken = json.loads(said(capsys, "why", "runs/exp/sweep", "--json"))
    assert [run["state"] for run in readable] == ["finished", "finished"]
    assert (broken["state"], broken["step"], broken["log_events"], broken["findings"]) == ("unreadable", 0, 0, [])
    assert broken["problem"].startswith("metrics.jsonl cannot be read: ")
    assert "no event" in broken["problem"]


@pytest.mark.parametrize("words", [[], ["nowhere"], ["--jsn", "."], ["runs/exp/broken"]])
def test_wrong_words_of_why(words: list[str], capsys: Said) -> None:
    make_run("broken", FINE).metrics.write_text("no event\n{}\n")
    assert main(["why", *words]) == 2
    assert "error:" in capsys.readouterr().err
