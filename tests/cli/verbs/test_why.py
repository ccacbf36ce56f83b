"""`rlhf why`: a full diagnosis of one run, and one line per run for several, in any state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import update_status
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.support.planted_logs import Values, events_of, noisy, reward

Said, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
CONFIG = "trainer: {name: grpo, args: {max_completion_length: 32, learning_rate: 0.001}}\nrewards: {a: {weight: 1.0}}\n"
DEAD = {**reward("a", mean=[1.0] * 30, std=0.0), "reward": [1.0] * 30, "loss": [0.0] * 30}
FINE = {**reward("a", mean=noisy(0.2, 0.8, 0.05)), "reward": noisy(0.2, 0.8, 0.05), "reward_std": [0.5] * 40}


def make_run(place: Path, name: str, curves: dict[str, Values] | None = None, **status: object) -> RunFolder:
    folder = RunFolder(place / "runs" / "exp" / name)
    folder.path.mkdir(parents=True)
    folder.config.write_text(CONFIG)
    if curves is not None:
        folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in events_of(curves)))
    update_status(folder, **{"state": "finished", "step": 30, "max_steps": 30, **status})
    return folder


def why(capsys: Said, *words: str) -> str:
    capsys.readouterr()
    assert main(["why", *words]) == 0
    return capsys.readouterr().out


def test_a_finding_has_evidence_and_a_change_to_type(place: Path, capsys: Said, monkeypatch: Patch) -> None:
    make_run(place, "one", DEAD)
    monkeypatch.setenv("COLUMNS", "80")
    said = why(capsys, "runs/exp/one")
    assert "finished at step 30, 30 log events" in said
    assert "serious  reward a is 1 on every row" in said
    assert "rewards/a/mean  1 on average over steps 1 to 30" in said
    assert "rewards.a.weight=0" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "▄▄▄" in said


def test_json_has_every_kind_of_finding(place: Path, capsys: Said) -> None:
    make_run(place, "one", DEAD)
    said = json.loads(why(capsys, "runs/exp/one", "--json"))
    assert (said["state"], said["log_events"], said["findings"][0]["kind"]) == ("finished", 30, "dead_reward")
    assert said["findings"][0]["changes"][0]["words"] == "rewards.a.weight=0"
    assert {finding["kind"] for part in ("findings", "fine", "unseen") for finding in said[part]} == {
        *FINDING_KINDS
    } - {"explained_variance", "value_loss"}, "there is no critic"


def test_negative_control_a_healthy_run(place: Path, capsys: Said) -> None:
    make_run(place, "one", FINE)
    said = why(capsys, "runs/exp/one")
    assert not {"serious", "warning", "try"} & set(said.split())


def test_a_short_log_shows_first_what_could_not_be_judged(place: Path, capsys: Said, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    few = {name: values[:3] for name, values in FINE.items()}
    make_run(place, "one", few)
    _, _, first, *others = why(capsys, "runs/exp/one").splitlines()
    learning = next(number for number, line in enumerate(others) if line.strip().startswith("learning"))
    passed = next(number for number, line in enumerate(others) if line.strip().startswith("non_finite"))
    assert "learns" in first
    assert learning < passed
    make_run(place, "sweep/0", few)
    make_run(place, "sweep/1", FINE)
    short, fine = why(capsys, "runs/exp/sweep").splitlines()[1:3]
    assert short.partition(" ")[2].strip() != fine.partition(" ")[2].strip()


@pytest.mark.parametrize("state", ["failed", "preempted"])
def test_the_reason_of_the_end_comes_first(state: str, place: Path, capsys: Said) -> None:
    make_run(place, "one", DEAD, state=state, reason="the loss is not finite\n  where: here", max_steps=90)
    lines = why(capsys, "runs/exp/one").splitlines()
    assert lines[0] == f"runs/exp/one: {state} at step 30 of 90, 30 log events"
    assert lines[1].strip() == "the loss is not finite"


def test_killed_and_unstarted_runs(place: Path, capsys: Said) -> None:
    make_run(place, "one", FINE, state="running", pid=None)
    assert "killed at step 30" in why(capsys, "runs/exp/one")
    make_run(place, "two", None, state="created", step=0)
    said = why(capsys, "runs/exp/two")
    assert "has not begun" in said
    assert ", 0 log events" in said
    assert "checks that" not in said, "there was nothing to check"


def test_a_sweep_has_one_line_per_run_also_if_it_is_unreadable(place: Path, capsys: Said, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "140")  # wide enough for one line per run
    make_run(place, "sweep/0", DEAD)
    make_run(place, "sweep/1", FINE)
    make_run(place, "sweep/2", FINE).metrics.write_text("no event\n{}\n")
    said = why(capsys, "runs/exp/sweep")
    (dead,) = [line for line in said.splitlines() if line.startswith("0 ")]
    assert "serious: reward a is 1 on every row" in dead
    (fine,) = [line for line in said.splitlines() if line.startswith("1 ")]
    assert fine.rstrip().endswith("none")
    assert "metrics.jsonl cannot be read" in said
    states = [run["state"] for run in json.loads(why(capsys, "runs/exp/sweep", "--json"))]
    assert states == ["finished", "finished", "unreadable"]
    (*_, unreadable) = json.loads(why(capsys, "runs/exp/sweep", "--json"))
    assert unreadable["problem"].startswith("metrics.jsonl cannot be read: ")
    assert "no event" in unreadable["problem"]
    assert (unreadable["step"], unreadable["log_events"], unreadable["findings"]) == (0, 0, [])


def test_wrong_words_of_why(place: Path, capsys: Said) -> None:
    make_run(place, "broken", FINE).metrics.write_text("no event\n{}\n")
    for words in (["why"], ["why", "nowhere"], ["why", "--jsn", "."], ["why", "runs/exp/broken"]):
        assert main(words) == 2
        assert "error:" in capsys.readouterr().err
