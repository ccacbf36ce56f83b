"""Runs as frames in a notebook, and runs from wandb by a stand-in for its public API."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import rlhf_cli
from rlhf_cli.analysis.comparison import frames
from rlhf_cli.analysis.comparison.comparison import ComparisonOptions, compare
from rlhf_cli.analysis.comparison.frames import read_wandb
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, named
from rlhf_cli.cli import run_arguments
from rlhf_cli.cli.run_arguments import read_by_words
from rlhf_cli.errors import RunError
from rlhf_cli.text.json_values import JsonTree
from scripts import structure
from tests.support.logged_runs import configured, in_memory, write_run, write_sweep


def test_many_metrics_cause_no_pandas_warning(place: Path) -> None:
    """pandas warns above 100 columns. A run without events has none."""
    many = {f"metric_{number}": [float(number)] * 2 for number in range(150)}
    for name, curves, shape in (("many", many, (2, 150)), ("silent", {}, (0, 0))):
        metrics = rlhf_cli.load_runs(write_run(place / name, configured(), curves).path).metrics
        assert (metrics.shape, metrics.index.names) == (shape, ["run", "step"])


def test_one_row_per_run_and_per_event(place: Path) -> None:
    curves = {"reward": [0.1, 0.2, 0.3], "late": [None, 0.5]}
    write_run(place / "runs" / "a", configured(0.0), curves)
    write_run(place / "runs" / "b", configured(0.5), {"reward": [0.4]}, state="failed")
    loaded = rlhf_cli.load_runs("runs")
    assert list(loaded.runs.index) == ["weight=0", "weight=0.5"]
    assert list(loaded.runs["rewards.brevity.weight"]) == [0.0, 0.5]
    assert list(loaded.runs["state"]) == ["finished", "failed"]
    assert list(loaded.metrics.index) == [("weight=0", 1), ("weight=0", 2), ("weight=0", 3), ("weight=0.5", 1)]
    assert list(loaded.metrics["reward"]) == [0.1, 0.2, 0.3, 0.4]
    assert list(loaded.metrics["late"].isna()) == [True, False, True, True]
    assert set(loaded.metrics.dtypes.astype(str)) == {"float64"}
    (verdict,) = loaded.compare(ComparisonOptions(metrics=("reward",), by="weight")).verdicts
    assert (verdict.measure.label, verdict.values) == ("reward", ("0", "0.5"))


def test_two_events_of_one_step_are_two_rows(place: Path) -> None:
    run = write_run(place / "a", configured(), {"reward": [0.1, 0.2]})
    with run.metrics.open("a") as stream:
        stream.write('{"step": 2, "time_s": 1, "eval_loss": 0.7}\n{"step": 2, "time_s": 1, "reward": 0.9}\n')
    metrics = rlhf_cli.load_runs(run.path).metrics
    assert (list(metrics["reward"]), list(metrics["eval_loss"].dropna())) == ([0.1, 0.2, 0.9], [0.7])


def test_runs_from_wandb_and_from_folders_together(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[bool]]] = []

    def read(word: str, *, wanted: Callable[[str], bool]) -> list[LoggedRun]:
        asked.append((word, [wanted(name) for name in ("loss", "reward")]))
        return [in_memory("theirs", settings={"seed": 7}, loss=[0.5])]

    monkeypatch.setattr(frames, "read_wandb", read)
    write_run(place / "a", configured(), {"loss": [0.1], "reward": [0.2]})
    loaded = rlhf_cli.load_runs("a", "wandb:team/rlhf", metrics=["loss"])
    assert (asked, loaded.metrics["loss"].tolist()) == ([("wandb:team/rlhf", [True, False])], [0.1, 0.5])
    again = rlhf_cli.load_runs("wandb:team/rlhf", "wandb:team/rlhf/group", metrics=["loss"])
    assert again.metrics["loss"].tolist() == [0.5], "a run that two words name counts once"
    monkeypatch.setattr(run_arguments, "read_wandb", read)
    by_words, _ = read_by_words(["wandb:team/rlhf", "wandb:team/rlhf/group"], wanted=None, where="compare")
    assert len(by_words) == 1


def test_importing_the_package_does_not_import_pandas() -> None:
    program = "import sys, rlhf_cli; print([name for name in ('pandas', 'numpy', 'scipy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_page_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of Python in docs/how-to/compare.md, in order, on a sweep as the page has it."""
    text = (structure.ROOT / "docs" / "how-to" / "compare.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    ends = {0.0: [0.6, 0.7, 0.65], 0.1: [0.62, 0.71, 0.68], 0.5: [0.5, 0.6, 0.52]}
    write_sweep(place / "runs" / "quickstart" / "weights", ends, num_steps=30)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "0.5" in capsys.readouterr().out


@dataclass
class StoredRun:
    """A run as wandb returns it: names of transformers' callback, TRL's arguments beside the experiment."""

    id: str
    config: JsonTree
    rows: list[dict[str, object]]
    state: str = "finished"
    name: str = "happy-cloud-7"

    def scan_history(self) -> Iterable[Mapping[str, object]]:
        return self.rows


@dataclass
class StandIn:
    stored: list[StoredRun]
    asked: list[tuple[str, object]] = field(default_factory=list)

    def runs(self, path: str, filters: dict[str, object] | None = None) -> list[StoredRun]:
        self.asked.append((path, filters))
        return self.stored


def stored(weight: float, seed: int, value: float, **named: str) -> StoredRun:
    config = {**configured(weight, seed), "learning_rate": 0.1 * seed, "output_dir": f"/x/{seed}"}
    rows: list[dict[str, object]] = [
        {"_step": 0, "train/global_step": 1, "rewards/correct/mean": value, "train/loss": None},
        {"_step": 1, "train/global_step": 1, "eval/greedy/total": 0.7},
        {"_step": 2, "train/global_step": 2, "train/rewards/correct/mean": value, "table": {"_type": "table"}},
    ]
    return StoredRun(f"{weight}-{seed}", config, rows, **named)


def test_a_group_of_wandb_is_compared_like_run_folders() -> None:
    api = StandIn([stored(weight, seed, 0.5 + weight) for weight in (0.0, 0.5) for seed in (0, 1)])
    runs = named(read_wandb("wandb:team/rlhf/quickstart/sweep", api=api))
    assert api.asked == [("team/rlhf", {"group": "quickstart/sweep"})]
    assert [run.name for run in runs] == [f"weight={weight},seed={seed}" for weight in (0, 0.5) for seed in (0, 1)]
    assert runs[0].place == "wandb:team/rlhf/0.0-0"
    assert list(runs[0].metrics) == ["rewards/correct/mean", "eval_greedy/total"]
    assert list(runs[0].metrics.series("rewards/correct/mean").steps) == [1, 2]
    assert compare(runs).estimates["weight=0.5"]["correct"].mean == 1.0


def test_other_weights_and_processes_of_wandb_forbid_a_verdict() -> None:
    stored_runs = [stored(weight, seed, 0.5 + weight) for weight in (0.0, 0.5) for seed in (0, 1)]
    for number, run in enumerate(stored_runs):
        commit, processes = ("aaaa", 1) if number < 2 else ("bbbb", 8)
        run.config["provenance"] = {"starting_model": {"commit": commit}, "world_size": processes}
    comparison = compare(named(read_wandb("wandb:team/rlhf", api=StandIn(stored_runs))))
    assert (comparison.verdicts, comparison.no_verdict is None) == ([], False)
    assert "model differs" in str(comparison.no_verdict)
    assert "batch differs" in str(comparison.no_verdict)


def test_what_of_a_run_in_wandb_is_read() -> None:
    """Every section tells runs apart. The report of a group is also a run, without a configuration."""
    for section in ("teacher", "rollout", "environment", "sampling"):
        stored_runs = [StoredRun(name, {**configured(), section: {"fn": name}}, []) for name in ("a", "b")]
        assert [run.name for run in named(read_wandb("wandb:a/b", api=StandIn(stored_runs)))] == ["fn=a", "fn=b"]
    api = StandIn([stored(0.0, 0, 0.5), StoredRun("report", {}, [{"_step": 0, "report": "html"}])])
    assert [run.place for run in read_wandb("wandb:a/b/c", api=api)] == ["wandb:a/b/0.0-0"]


def test_fields_read_from_a_wandb_run() -> None:
    """Steps have several names, an event may lie between steps, and keys beside the experiment are left out."""
    rows: list[dict[str, object]] = [
        {"_step": 3, "_runtime": 1.0, "step": 1, "loss": 0.5},
        {"global_step": 2, "train/loss": 0.25, "eval/loss": 0.75, "epoch": None},
        {"_step": 4, "_timestamp": 2.0},
        {"loss": 9.0},
        {"step": "x", "_step": 6.0, "loss": 0.125},
    ]
    config = {**configured(), "learning_rate": 0.1, "trainer": {"args": {"max_steps": 50}}}
    (run,) = read_wandb("wandb:a/b", api=StandIn([StoredRun("7", config, rows, state="running")]))
    assert (run.name, run.place, run.folder, run.state) == ("happy-cloud-7", "wandb:a/b/7", None, "running")
    assert (run.step, run.max_steps, run.reason, run.choices, run.trainer) == (6, 50, None, {}, "?")
    assert {name: list(run.metrics.series(name).values) for name in run.metrics} == {
        "loss": [0.5, 0.25, 0.125],
        "eval_loss": [0.75],
    }
    assert list(run.metrics.series("loss").steps) == [1, 2, 6]
    assert "learning_rate" not in run.settings
    assert (run.settings["trainer.args.max_steps"], run.weights) == (50, {"correct": 1.0, "brevity": 0.0})
    (odd,) = read_wandb("wandb:a/b", api=StandIn([StoredRun("7", {"trainer": {"args": {"max_steps": ""}}}, [], "odd")]))
    assert (odd.state, odd.max_steps, odd.step) == ("odd", None, 0)


def test_a_missing_login_is_explained_and_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class LoggedOut(StandIn):
        def runs(self, path: str, filters: dict[str, object] | None = None) -> list[StoredRun]:
            raise ValueError("api_key not configured (no-tty)")

    asked: list[float] = []
    monkeypatch.setattr("wandb.Api", lambda timeout: [asked.append(timeout), LoggedOut([])][1])
    with pytest.raises(RunError, match="wandb did not answer") as error:
        read_wandb("wandb:a/b/c")
    assert 0 < asked[0] < 600
    assert (error.value.where, error.value.got) == ("wandb:a/b/c", "api_key not configured (no-tty)")
    assert "wandb login" in str(error.value.expected)
    assert str(error.value.advice).startswith("rlhf compare runs/...")
    for word in ("wandb:a/b/c", "wandb:team", "wandb:", "wandb:team//group"):  # the first has no runs
        with pytest.raises(RunError) as error:
            read_wandb(word, api=StandIn([]))
        assert error.value.got == word
        assert (error.value.hint == "rlhf compare wandb:a/b") is (word == "wandb:a/b/c")
