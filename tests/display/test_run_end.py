"""The panel after a run, of a run folder written by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from rich.console import Console

from rlhf_cli.display.run_tables import held_out, show_end, time_line
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.terminal import drawn, printed


def run_of(place: Path, events: list[dict[str, Any]], **status: Any) -> RunFolder:
    folder = RunFolder(place / "runs" / "sums" / "one")
    folder.path.mkdir(parents=True)
    folder.config.write_text(yaml.safe_dump({"rewards": {"right": {"weight": 2.0}}}))
    folder.status.write_text(json.dumps({"state": "finished", "step": 2, **status}))
    folder.metrics.write_text("".join(json.dumps({"time_s": 1, **event}) + "\n" for event in events))
    return folder


def with_completions(folder: RunFolder, step: int, *rows: tuple[str, str, float]) -> None:
    (folder.path / "completions").mkdir(exist_ok=True)
    columns = dict(zip(("prompt", "completion", "advantage"), zip(*rows, strict=True), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), folder.path / "completions" / f"completions_{step:05d}.parquet")


def read(folder: RunFolder) -> list[str]:
    """The lines without the panel's frame."""
    return [line.strip("│ ") for line in printed(lambda console: show_end(console, folder))]


def test_rewards_curve_samples_and_what_to_type_next(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_table, files = pyarrow.parquet.read_table, list[Path]()
    monkeypatch.setattr(pyarrow.parquet, "read_table", lambda file: files.append(file) or read_table(file))
    rewards = [{"step": step, "reward": 0.5 * step, "rewards/right/mean": 0.25 * step} for step in (1, 2)]
    folder = run_of(place, [*rewards, {"step": 2, "eval_greedy/total": 0.875}], warnings=3)
    with_completions(folder, 99999, ("1+1=", "older", 0.0))
    with_completions(folder, 100000, ("1+1=", "2\n", 0.5), ("1+1=", "another", -0.5), ("2+2=", "[red]4", -1.0))
    lines = read(folder)
    assert [file.name for file in files] == ["completions_100000.parquet"]  # read once
    assert lines[0].startswith("╭─ finished after 2 steps")
    cells = [line.split() for line in lines]
    assert cells[1:4] == [
        ["reward", "weight", "start", "end", "change"],
        ["total", "0.500", "1.000", "+0.500", "▁█"],
        ["right", "2", "0.250", "0.500", "+0.250", "▁█"],
    ]
    assert ["held", "out", "step", "2"] in cells
    assert ["greedy", "total", "0.875"] in cells
    samples = next(place for place, line in enumerate(lines) if line.startswith("prompt"))
    assert cells[samples + 1 : samples + 3] == [["1+1=", "2\\n", "+0.50"], ["2+2=", "[red]4", "-1.00"]]
    assert "3 warnings in log.txt" in lines
    assert [line.partition("  #")[0] for line in lines[-2:]] == ["rlhf report runs/sums/one", "rlhf why runs/sums/one"]


@pytest.mark.parametrize(
    ("scores", "total", "right"),
    [
        ([None], ["total", "-", "0.500", "▄"], ["right", "2", "-", "-", "no", "score"]),  # one value is no change
        # as in a comparison: the last score of an earlier step is not its end
        ([0.5, 0.75, None], ["total", "0.500", "0.500", "+0.000", "▄▄▄"], ["right", "2", "0.500", "-", "▁█"]),
    ],
)
def test_a_reward_without_a_score_at_the_end(place: Path, scores, total: list[str], right: list[str]) -> None:
    events = [{"step": step, "reward": 0.5, "rewards/right/mean": score} for step, score in enumerate(scores)]
    assert [line.split() for line in read(run_of(place, events))[2:4]] == [total, right]


def test_without_rewards_what_is_learnt_stands_beside_what_held_out_rows_say(place: Path) -> None:
    events = [{"step": step, "rewards/margins": 0.5 * step, "eval_loss": 2.0 - step} for step in (1, 2)]
    assert [line.split() for line in read(run_of(place, events))[2:4]] == [
        ["margins", "0.500", "1.000", "+0.500"],
        ["loss,", "held", "out", "1.000", "0.000", "-1.000"],
    ]


def busy(place: Path) -> RunFolder:
    """A run with all that its end can say: twelve rewards, nine evaluations, failures, missed expectations, times."""
    rewards = {f"rewards/a_reward_of_a_long_name_{name}/mean": 0.1 for name in "abcdefghijkl"}
    failures = {"rewards/a_reward_of_a_long_name_a/errors": 1, "rewards/a_reward_of_a_long_name_a/calls": 10}
    times = {"time/elapsed_s": 9.0, **{f"time/share/reward/{name}": 0.1 for name in "abcdefghij"}}
    events = [
        {"step": step, "reward": 0.5 * step, **rewards, **failures, **times, "eval_greedy/total": 0.1 * step}
        for step in range(1, 10)
    ]
    folder = run_of(place, events, warnings=3, step=9, reason="stopped by rule: kl > 3: 3.1, 3.2 at steps 8 to 9")
    config = yaml.safe_load(folder.config.read_text())
    config["expect"] = [{"metric": "total", "at_least": number} for number in range(90, 96)]
    folder.config.write_text(yaml.safe_dump(config))
    lengths = {one: {"in_words": "9 tokens"} for one in ("train", "eval")}
    typed = [f"trainer.args.argument_{number}=1" for number in range(20)]
    folder.provenance.write_text(json.dumps({"lengths": lengths, "overrides": typed}))
    with_completions(folder, 9, *((f"{number}+1=", "2" * 99, 0.5) for number in range(9)))
    return folder


@pytest.mark.parametrize("width", [80, 120])
def test_after_a_run_stand_twenty_lines_at_most_with_two_commands(place: Path, width: int) -> None:
    """Seventeen lines of the panel and two commands; the verb prints the run folder below."""
    folder = busy(place)
    lines = printed(lambda console: show_end(console, folder), width=width)
    assert len(lines) <= 19
    assert sum(line.startswith("  rlhf ") for line in lines) == 2
    text = "\n".join(lines)
    parts = ("total ", "and 10 more", "expected: 0 of 6 met", "stopped by rule: kl > 3")
    assert [part for part in parts if part not in text] == []
    assert text.count("missed: ") == 3
    screen = io.StringIO()
    show_end(Console(file=screen, width=24), folder)
    assert "rlhf why" in screen.getvalue(), "too narrow for seventeen lines: the shortest panel"


def test_evaluations_stand_beside_one_another_with_their_named_rewards() -> None:
    first = {"greedy/total": 0.25, "greedy/total/low": 0.125, "greedy/total/high": 0.5, "sampled/total": 0.5}
    last = {"greedy/total": None, "sampled/truncated": 0.0625}
    last |= {"pass@1/right": 0.25, "pass@4/right": 0.75, "maj@4/right": 0.5}
    events = [{"step": 1, "loss": 0.5}]
    for step, logged in ((5, first | {"greedy/rewards/right": 0.125}), (10, last)):
        events.append({"step": step, **{f"eval_{name}": value for name, value in logged.items()}})
    table = held_out(events, best_step=5, rewards=["right"])
    assert table is not None
    assert [line.split() for line in drawn(table)] == [
        ["held", "out", "step", "5", "best", "step", "10"],
        ["greedy", "total", "0.25", "[0.12,", "0.50]", "-"],
        ["sampled", "total", "0.500", "-"],
        ["greedy", "right", "0.125", "-"],
        ["pass@4", "right", "-", "0.750"],
        ["truncated", "-", "0.062"],
    ]
    assert held_out([{"step": 1, "loss": 0.1}], None, []) is None


def timed(*events: dict[str, float]) -> str | None:
    line = time_line([{"step": number, **event} for number, event in enumerate(events, 1)])
    return None if line is None else line.plain


def test_times_the_longest_first_and_the_smallest_together() -> None:
    """120 s and 80 s: a reward 60 + 60, generation 60 + 16, saving 2, the rest 2 and 0: 60, 38 and 1 % of 200 s."""
    first = {"time/elapsed_s": 120.0, "time/share/generation": 0.5, "time/share/reward/judge": 0.5}
    second = {"time/elapsed_s": 80.0, "time/share/generation": 0.2, "time/share/reward/judge": 0.75}
    more = {"time/share/saving": 0.025, "time/share/rest": 0.025}
    whole = timed({**first, **dict.fromkeys(more, 0.0)}, {**second, **more})
    assert str(whole).startswith("time 3 min: reward judge 60%, generation 38%, ")
    many = {f"time/share/reward/{name}": 0.1 for name in "abcde"}
    said = timed({"time/elapsed_s": 4.0, "time/share/generation": 0.5, **many})
    assert said == "time 4 s: generation 50%, reward a 10%, reward b 10%, 3 more 30%"
    assert timed({"loss": 1.0}) is None
    # The waste of rounds that are drawn again.
    times = {"time/elapsed_s": 100.0, "time/share/generation": 1.0}
    draws = [{"sampling/draws": 2.0, "sampling/unused_token_share": 0.5}, {}, {"sampling/draws": 1.0}]
    line = timed(*({**times, **one} for one in draws))
    assert line == "time 5 min: generation 100%; rounds drawn 1.5 times, 50% of their tokens not trained on"
    assert timed(times) == "time 1 min: generation 100%"
