"""The panel after a run, of a run folder written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.screen.run_end import show_end
from tests.support.terminal import printed


def run_of(place: Path, events: list[dict[str, Any]], **status: Any) -> RunFolder:
    folder = RunFolder(place / "runs" / "sums" / "one")
    folder.path.mkdir(parents=True)
    folder.config.write_text(yaml.safe_dump({"rewards": {"right": {"weight": 2.0}}}))
    folder.status.write_text(json.dumps({"state": "finished", "step": 2, **status}))
    folder.metrics.write_text("".join(json.dumps({"time_s": 1, **event}) + "\n" for event in events))
    return folder


def read(folder: RunFolder) -> list[str]:
    """The lines without the panel's frame."""
    return [line.strip("│ ") for line in printed(lambda console: show_end(console, folder))]


def test_rewards_curve_samples_and_what_to_type_next(place: Path) -> None:
    rewards = [{"step": step, "reward": 0.5 * step, "rewards/right/mean": 0.25 * step} for step in (1, 2)]
    folder = run_of(place, [*rewards, {"step": 2, "eval_greedy/total": 0.875}], warnings=3)
    completions = folder.path / "completions"
    completions.mkdir()
    rows = [
        {"prompt": "1+1=", "completion": "2\n", "advantage": 0.5},
        {"prompt": "1+1=", "completion": "another", "advantage": -0.5},
        {"prompt": "2+2=", "completion": "[red]4", "advantage": -1.0},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), completions / "completions_00002.parquet")
    (folder.path / "eval" / "training").mkdir(parents=True)
    (folder.path / "eval" / "training" / "history.png").write_bytes(b"")
    lines = read(folder)
    assert lines[0].startswith("╭─ finished after 2 steps")
    assert [line.split() for line in lines[1:4]] == [
        ["reward", "weight", "start", "end", "change"],
        ["total", "0.500", "1.000", "+0.500"],
        ["right", "2", "0.250", "0.500", "+0.250"],
    ]
    assert "reward by step" in lines
    assert ["step", "2", "0.875"] in [line.split()[:3] for line in lines]
    samples = lines.index(next(line for line in lines if line.startswith("prompt")))
    assert [line.split() for line in lines[samples + 1 : samples + 3]] == [
        ["1+1=", "2\\n", "+0.50"],
        ["2+2=", "[red]4", "-1.00"],
    ]
    assert "3 warnings are in log.txt" in lines
    assert [line.partition("  #")[0] for line in lines[-5:]] == [
        "runs/sums/one/eval/training/history.png",
        "rlhf compare runs/sums",
        "rlhf why runs/sums/one",
        "tail -1 runs/sums/one/metrics.jsonl",
        "rlhf list",
    ]


def test_a_curve_is_not_folded_on_a_narrow_terminal(place: Path) -> None:
    """Its frame begins and ends in one line, as at 80 columns; and comments without room leave the commands whole."""
    folder = run_of(place, [{"step": step, "loss": 1.0 / step} for step in (1, 2)])
    for width in (50, 60, 80):
        lines = printed(lambda console: show_end(console, folder), width=width)
        assert [line.count("┌") + line.count("┐") for line in lines if "┌" in line or "┐" in line] == [2]
        assert max(map(len, lines)) <= width
        assert any("tail -1 runs/sums/one/metrics.jsonl" in line for line in lines)


def test_a_run_without_rewards_shows_its_loss(place: Path) -> None:
    folder = run_of(place, [{"step": step, "loss": 1.0 / step} for step in (1, 2)], state="preempted")
    folder.provenance.write_text(json.dumps({"lengths": {"train": {"in_words": "12 to 40 tokens"}}}))
    lines = read(folder)
    assert lines[0].startswith("╭─ preempted after 2 steps")
    assert lines[2].split() == ["loss", "1.000", "0.500", "-0.500"]
    assert "loss by step" in lines
    assert "data: 12 to 40 tokens" in lines


def test_rows_that_failed_are_told_where_there_are_any(place: Path) -> None:
    """3 of 40 rows over both events; a reward without failures has an empty cell."""
    flaky = [("rewards/flaky/errors", (1, 2)), ("rewards/flaky/calls", (10, 30)), ("rewards/flaky/mean", (0.0, 1.0))]
    events = [
        {"step": step, "reward": 1.0, "rewards/right/mean": 1.0, "rewards/right/errors": 0, "rewards/right/calls": 10}
        | {name: values[step - 1] for name, values in flaky}
        for step in (1, 2)
    ]
    lines = [line.split() for line in read(run_of(place, events))]
    assert lines[1][-2:] == ["rows", "failed"]
    assert lines[3] == ["right", "2", "1.000", "1.000", "+0.000"]
    assert lines[4] == ["flaky", "0.000", "1.000", "+1.000", "7.5%"]
